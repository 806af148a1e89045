"""The estimate of remaining work agrees with a plain simulation of all tasks, on drawn task graphs."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from codegen.ir.tiling import Part, Tiling
from farm.scheduler import eta
from farm.scheduler.eta import LEFT_OF_LATE, PRIOR_SECONDS, REQUEST_SECONDS, URGENT_SHARE, Estimate, EtaEstimator
from farm.scheduler.plan import Target
from farm.scheduler.scheduler import CubinDone
from farm.scheduler.task import TO_BUILD, URGENT, CubinTask, Rank, State, Task, TemplateTask
from farm.scheduler.task_graph import TaskGraph
from farm.worker.messages import CubinFacts, CubinRequest, CubinResult, TemplateRequest
from tests.samples import LAUNCH, SMALL
from tests.unit.farmyard import PlayedClock

TILING = Tiling("conv2d", 8, 8, 1, 4, 3, 2)
SLOTS = 3
MEASURED_SECONDS = 50.0
FACTS = CubinFacts("ab" * 32, 4096, "cd" * 32, "cd" * 32, 100, 900, 32, 0, 0.0, MEASURED_SECONDS, LAUNCH)


def cubin(i: int, template: int, seconds: float) -> CubinRequest:
    of_template = TemplateRequest(SMALL, TILING, "compute_80", f"a{template:063}", 10, seconds=1.0 + template)
    return CubinRequest(of_template, f"{i:064}", Part(0, 1), "sm_90", ("-O3",), f"c{i:063}", 100, seconds=seconds)


def drawn_graph(rng: Random, clock: PlayedClock) -> tuple[TaskGraph, list[str]]:
    """A task graph at some moment of a run: jobs that share cubins and templates, tasks in all states."""
    tasks = TaskGraph()
    jobs = [f"job{i}" for i in range(rng.randint(1, 8))]
    for job_id in jobs:
        tasks.add_job(job_id)
    cubins = [cubin(i, rng.randrange(3), rng.choice([0.01, 0.3, 2.0, 40.0])) for i in range(rng.randint(1, 60))]
    for i, request in enumerate(cubins):
        wanted_by = rng.sample(jobs, rng.randint(1, len(jobs))) if rng.random() < 0.3 else [rng.choice(jobs)]
        tasks.add_cubin(request, [Target(job_id, i, "sm_90", 0) for job_id in wanted_by])
    for _ in range(2):
        for task in tasks.pop(State.LOOK_UP, rng.randint(0, len(tasks))):
            if isinstance(task, CubinTask) and task.template.state is not State.DONE:
                tasks.wait_for_template(task)
            else:
                tasks.move(task, State.READY)
    for _ in range(rng.randint(0, 3)):
        made = [task for task in tasks.in_state(State.READY) if isinstance(task, TemplateTask)]
        for made_task in made[: rng.randint(0, 2)]:
            tasks.move(made_task, State.IN_FLIGHT)
            if rng.random() < 0.7:
                tasks.template_made(made_task)
    for task in tasks.pop(State.READY, rng.randint(0, 4)):
        tasks.move(task, State.IN_FLIGHT)
        if isinstance(task, CubinTask) and rng.random() < 0.2:
            lower = replace(task.request, options=("-O1",), key=task.key.replace("c", "d", 1))
            tasks.wait_for_lower(task, lower)
    if rng.random() < 0.3 and len(jobs) > 1:
        tasks.release(jobs.pop(rng.randrange(len(jobs))))
    return tasks, jobs


@dataclass(frozen=True)
class PlainEstimate:
    ends: Mapping[str, float]
    running: Mapping[str, int]
    share: float
    urgent: Collection[Task]
    longest_seconds: float
    """Longest time of all tasks, with the idle time of the slots."""


def estimate_both_ways(
    tasks: TaskGraph, estimator: EtaEstimator, jobs: Sequence[str], clock: PlayedClock
) -> tuple[Estimate, PlainEstimate]:
    ranks = {task: task.rank for task in tasks}  # an estimate expedites tasks
    estimate = estimator.estimate(jobs)
    return estimate, plain_estimate(tasks, ranks, estimator, jobs, clock.now())


def plain_estimate(
    tasks: TaskGraph, ranks: Mapping[Task, Rank], estimator: EtaEstimator, jobs: Sequence[str], now: float
) -> PlainEstimate:
    """The estimate from all tasks, one by one, in the order in which they are submitted."""
    left = {task: estimator.expected_seconds(task.request) for task in tasks if task.state in TO_BUILD}
    begun = 0.0
    for task in left:
        if task.runs_since is not None:
            done = min(now - task.runs_since, (1 - LEFT_OF_LATE) * left[task])
            begun += done
            left[task] -= done
    work = MEASURED_SECONDS + REQUEST_SECONDS
    idle = PRIOR_SECONDS * SLOTS / (PRIOR_SECONDS * SLOTS + work + begun)
    slots = [0.0] * SLOTS
    ends, running = dict.fromkeys(jobs, 0.0), dict.fromkeys(jobs, 0)
    for task in sorted(left, key=lambda each: (each.runs_since is None, each.state != State.IN_FLIGHT, ranks[each])):
        end = slots[0] + left[task] * idle
        heapq.heapreplace(slots, end)
        targets = {target.job for target in task.all_targets()}
        for job_id in targets:
            ends[job_id] = max(ends[job_id], end)
        running[min(targets, key=tasks.order_of)] += task.runs_since is not None
    all_left = sum(left.values())
    long = [task for task in left if left[task] >= URGENT_SHARE * all_left / SLOTS]
    free = SLOTS - 1 - sum(task.state is State.IN_FLIGHT for task in long)
    ready = sorted((task for task in long if task.state is State.READY), key=lambda task: -task.request.seconds)
    urgent = ready[: max(0, free)]
    share = (work + begun) / (work + begun + all_left)
    return PlainEstimate(ends, running, share, urgent, idle * max(left.values(), default=0.0))


def estimator_of(tasks: TaskGraph, clock: PlayedClock) -> EtaEstimator:
    """An estimator that has seen SLOTS requests run at once, and one run of ptxas that took what was predicted."""
    estimator = EtaEstimator(tasks, clock)
    request = cubin(0, 0, MEASURED_SECONDS)
    measured = replace(FACTS, ptxas_seconds=MEASURED_SECONDS)
    running = [task.key for task in tasks.in_state(State.IN_FLIGHT)]
    keys = [*running, "x", "y", "z"][:SLOTS]
    estimator.observe([CubinDone(request, CubinResult(request.key, measured), [Target("x", 0, "sm_90", 0)])], keys)
    return estimator


@pytest.mark.parametrize("seed", range(200))
def test_the_estimate_of_few_tasks_is_the_plain_simulation_s(seed: int) -> None:
    rng, clock = Random(seed), PlayedClock()
    tasks, jobs = drawn_graph(rng, clock)
    estimator = estimator_of(tasks, clock)
    clock.sleep(rng.choice([0.0, 0.5, 20.0]))
    estimate, plain = estimate_both_ways(tasks, estimator, jobs, clock)
    assert estimate.share == pytest.approx(plain.share)
    assert {job_id: outlook.running for job_id, outlook in estimate.of_jobs.items()} == plain.running
    if estimate.left_seconds is not None:
        assert estimate.left_seconds == pytest.approx(max(plain.ends.values()))
        assert {job_id: each.left_seconds for job_id, each in estimate.of_jobs.items()} == pytest.approx(plain.ends)


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("simulated", [0, 10])
def test_the_estimate_of_many_tasks_is_off_by_the_longest_task_at_most(
    seed: int, simulated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eta, "SIMULATED_TASKS", simulated)
    rng, clock = Random(seed), PlayedClock()
    tasks, jobs = drawn_graph(rng, clock)
    estimator = estimator_of(tasks, clock)
    estimate, plain = estimate_both_ways(tasks, estimator, jobs, clock)
    assert estimate.share == pytest.approx(plain.share)
    if estimate.left_seconds is not None:
        latest = 0.0
        for job_id in jobs:  # oldest first; a job may share the cubins of an older one, and then ends with that
            latest = max(latest, plain.ends[job_id])
            left = estimate.of_jobs[job_id].left_seconds
            assert left is not None
            assert plain.ends[job_id] - plain.longest_seconds - 1e-9 <= left <= latest + plain.longest_seconds + 1e-9


@pytest.mark.parametrize("seed", range(100))
def test_exactly_the_longest_ready_tasks_that_would_delay_the_end_are_expedited(seed: int) -> None:
    rng, clock = Random(seed), PlayedClock()
    tasks, jobs = drawn_graph(rng, clock)
    estimator = estimator_of(tasks, clock)
    _, plain = estimate_both_ways(tasks, estimator, jobs, clock)
    expedited = [task for task in tasks.in_state(State.READY) if task.order == URGENT]
    assert sorted(task.request.seconds for task in expedited) == sorted(task.request.seconds for task in plain.urgent)


def test_what_the_direct_assembler_takes_says_nothing_about_ptxas() -> None:
    tasks, clock = TaskGraph(), PlayedClock()
    tasks.add_job("job")
    tasks.add_cubin(cubin(0, 0, 10.0), [Target("job", 0, "sm_90", 0)])
    late = replace(cubin(1, 0, 0.03), assembler="direct")
    tasks.add_cubin(late, [Target("job", 1, "sm_90", 0)])
    for task in tasks.pop(State.LOOK_UP, 2):
        tasks.move(task, State.READY)
    estimator = estimator_of(tasks, clock)
    tasks.move(tasks.pop(State.READY, 1)[0], State.IN_FLIGHT)
    estimator.observe([], [late.key])
    clock.sleep(5.0)  # a skeleton is made first
    estimator.estimate(["job"])
    assert estimator.expected_seconds(cubin(0, 0, 10.0)) == pytest.approx(10.0, rel=0.02)
    assert estimator.expected_seconds(late) > 0.2


def test_long_tasks_leave_one_slot_to_the_short_ones_of_their_job() -> None:
    tasks, clock = TaskGraph(), PlayedClock()
    tasks.add_job("job")
    for i in range(13):
        tasks.add_cubin(cubin(i, 0, 600.0 if i < 3 else 1.0), [Target("job", i, "sm_90", 0)])
    for task in tasks.pop(State.LOOK_UP, 13):
        tasks.move(task, State.READY)
    estimator = estimator_of(tasks, clock)
    for _ in range(2):  # an expedited task counts as long as it waits
        estimator.estimate(["job"])
        assert sum(task.order == URGENT for task in tasks) == SLOTS - 1
    submitted = tasks.pop(State.READY, SLOTS)
    assert [task.request.seconds for task in submitted] == [600.0, 600.0, 1.0]
    for task in submitted:
        tasks.move(task, State.IN_FLIGHT)
    estimator.estimate(["job"])
    assert [task.request.seconds for task in tasks.pop(State.READY, 13)] == [1.0] * 9 + [600.0]


def test_the_backlog_follows_every_change_of_a_task() -> None:
    for seed in range(100):
        tasks, _ = drawn_graph(Random(seed), PlayedClock())
        check_backlog(tasks)


def check_backlog(tasks: TaskGraph) -> None:
    """Asserts that the backlog has exactly the unsubmitted tasks, in order, with their sums."""
    waiting = [task for task in tasks if task.state in TO_BUILD and task.state is not State.IN_FLIGHT]
    groups = tasks.backlog.groups()
    assert [task for _, group in groups for task in group] == sorted(waiting, key=lambda task: task.rank)
    for place, group in groups:
        assert {task.rank[:2] for task in group} == {place}
        assert group.seconds == pytest.approx(sum(task.request.seconds for task in group))
        assert group.longest_seconds == max(task.request.seconds for task in group)
