"""Every job ends and leaves no task behind, whatever jobs, workers, stores and other coordinators do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from codegen.ir.tiling import Part, Tiling
from farm.config.settings import load_settings
from farm.errors import StoreUnavailableError
from farm.scheduler.in_flight import InFlightKeys
from farm.scheduler.plan import Plan, Target
from farm.scheduler.retry import RetryPolicy
from farm.scheduler.scheduler import CubinDone, Scheduler
from farm.scheduler.task import ALLOWED_MOVES, CubinTask, State, TemplateTask
from farm.scheduler.task_graph import TaskGraph
from farm.store.contract import Record
from farm.store.memory import MemoryStore
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Result, TemplateRequest, failed
from tests.samples import SMALL
from tests.unit.farmyard import PlayedClock, PlayedExecutor
from tests.unit.test_eta import check_backlog

SETTINGS = load_settings({})
RETRY_POLICY = RetryPolicy(SETTINGS, "13.0.88")
TILING = Tiling("conv2d", 8, 8, 1, 4, 3, 2)
TEMPLATES = tuple(TemplateRequest(SMALL, TILING, f"compute_{i}0", f"{i}" * 64, 10 * i) for i in (7, 8))


def cubin(i: int, level: int) -> CubinRequest:
    """One of four layers, two of each template and mask, at -O3 or at -O1."""
    key, mask = f"c{i}" * 32, f"d{i % 2}" * 32
    high = CubinRequest(TEMPLATES[i % 2], f"{i:064}", Part(0, 1), "sm_90", ("-O3",), key, 100 + i, patch_template=mask)
    return high if level == 3 else RETRY_POLICY.lower(high)


def plan_of(job: str, layers: Sequence[int], level: int) -> Plan:
    requests = tuple(cubin(i, level) for i in layers)
    targets = {request.key: (Target(job, i, "sm_90", 0),) for i, request in zip(layers, requests, strict=True)}
    return Plan(TEMPLATES, requests, targets, {}, {})


class KeyRegistry:
    """Keys in flight, of this coordinator and of another."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        self.crashes = Counter[str]()

    def acquire_keys(self, coordinator: str, keys: Sequence[str], *, local: bool) -> dict[str, int]:
        assert local
        return {key: self.crashes[key] for key in keys if self.of.setdefault(key, coordinator) == coordinator}

    def count_crash(self, key: str) -> None:
        self.crashes[key] += 1

    def release_keys(self, coordinator: str, keys: Sequence[str]) -> None:
        for key in keys:
            assert self.of.pop(key) == coordinator


class MoodyStore(MemoryStore):
    """Is away at times."""

    away = False

    def get_record(self, stage: str, key: str) -> Record | None:
        if self.away:
            raise StoreUnavailableError("the store does not answer")
        return super().get_record(stage, key)


class StagedExecutor(PlayedExecutor):
    """Gives the results that it was told to give."""

    def __init__(self, store: MemoryStore, registry: KeyRegistry) -> None:
        super().__init__(store, capacity=3)
        self.registry = registry
        self.flying: dict[str, Request] = {}
        self.staged: list[Result] = []

    def submit(self, request: Request) -> None:
        assert request.key not in self.flying, "built twice at once"
        assert self.registry.of[request.key] == "me", "another coordinator may build it too"
        assert len(self.flying) < self.capacity
        if isinstance(request, CubinRequest) and request.patch_template:
            masks = {each.patch_template for each in self.flying.values() if isinstance(each, CubinRequest)}
            assert request.patch_template not in masks, "ptxas would run twice for one mask"
        self.flying[request.key] = request

    def stage(self, key: str, fault: Fault | None) -> None:
        request = self.flying[key]
        self.staged.append(failed(request, Failure(fault, "m")) if fault else self.build(request))

    def wait(self, timeout_seconds: float) -> list[Result]:
        results, self.staged = {each.key: each for each in self.staged}, []
        for key in results:
            del self.flying[key]
        return list(results.values())

    def cancel(self, keys: Sequence[str]) -> None:
        self.staged = [each for each in self.staged if each.key not in keys]
        for key in keys:
            del self.flying[key]


class Scheduling(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = PlayedClock()
        self.store = MoodyStore()
        self.registry = KeyRegistry()
        self.executor = StagedExecutor(self.store, self.registry)
        keys = InFlightKeys(self.registry, "me", self.clock)
        self.scheduler = Scheduler(self.store, self.executor, keys, RETRY_POLICY, recache=False, clock=self.clock)
        self.jobs: dict[str, set[int]] = {}
        """By id, the layers still to come."""
        self.count = 0

    @rule(layers=st.sets(st.integers(0, 3), min_size=1), level=st.sampled_from([3, 1]))
    def submit(self, layers: set[int], level: int) -> None:
        self.count += 1
        name = f"job{self.count}"
        self.jobs[name] = set(layers)
        self.scheduler.add(plan_of(name, sorted(layers), level), [name])

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.jobs)))
        del self.jobs[name]
        self.scheduler.release([name])

    @precondition(lambda self: self.executor.flying)
    @rule(data=st.data(), fault=st.sampled_from([None, None, Fault.TIME, Fault.TIME, *Fault]))
    def end_one(self, data: st.DataObject, fault: Fault | None) -> None:
        self.executor.stage(data.draw(st.sampled_from(sorted(self.executor.flying))), fault)

    @rule()
    def lose_the_workers(self) -> None:
        for key in self.executor.flying:
            self.executor.stage(key, Fault.CRASH)

    @rule(key=st.sampled_from([*(each.key for each in TEMPLATES), *(cubin(i, 3).key for i in range(4))]))
    def another_acquires_or_releases(self, key: str) -> None:
        if self.registry.of.setdefault(key, "another") == "another" and self.count % 2:
            del self.registry.of[key]

    @rule()
    def the_store_comes_or_goes(self) -> None:
        self.store.away = not self.store.away

    @rule()
    def the_store_is_emptied(self) -> None:
        self.store._records.clear()

    @rule(seconds=st.sampled_from([0.1, 0.6, 30.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @rule()
    def step(self) -> None:
        for event in self.scheduler.step():
            if isinstance(event, CubinDone):
                for target in event.targets:
                    self.jobs[target.job].remove(target.build)  # of a live job, and not told twice
        ended = [name for name, layers in self.jobs.items() if not layers]
        self.scheduler.release(ended)
        for name in ended:
            del self.jobs[name]

    @invariant()
    def every_task_is_wanted_and_goes_on(self) -> None:
        tasks = {task.key: task for task in self.scheduler.tasks}
        assert {key for key, task in tasks.items() if task.state is State.IN_FLIGHT} == set(self.executor.flying)
        for task in tasks.values():
            if isinstance(task, TemplateTask):
                assert task.users
                assert bool(task.dependents) == (task.state not in (State.IDLE, State.DONE))
            elif isinstance(task, CubinTask):
                assert task.wanted
                waits = task.state in (State.NEEDS_TEMPLATE, State.NEEDS_MASK, State.NEEDS_LOWER)
                assert (task.dependency is not None) == waits
                if task.dependency is not None:
                    assert tasks[task.dependency.key] is task.dependency
                    assert task.dependency.dependents[task.key] is task
                    assert task.dependency.order <= task.order
            for each in task.dependents.values():
                assert each.dependency is task

    @invariant()
    def the_backlog_has_every_unsubmitted_task(self) -> None:
        check_backlog(self.scheduler.tasks)

    @invariant()
    def every_job_has_a_task_for_each_layer_to_come(self) -> None:
        found = {
            (target.job, target.build) for p in self.scheduler.tasks if isinstance(p, CubinTask) for target in p.targets
        }
        assert found == {(name, layer) for name, layers in self.jobs.items() for layer in layers}

    def teardown(self) -> None:
        """From wherever it stands, all goes well: then every job ends, and nothing is left."""
        self.store.away = False
        self.registry.of = {key: who for key, who in self.registry.of.items() if who == "me"}
        for _ in range(100):
            if not self.jobs:
                break
            for key in self.executor.flying:
                self.executor.stage(key, None)
            self.step()
            self.every_task_is_wanted_and_goes_on()
            self.clock.sleep(25.0)
        assert self.jobs == {}
        assert len(self.scheduler.tasks) == 0
        assert self.registry.of == {}
        assert not any(self.scheduler.tasks.in_state(state) for state in State)


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_direct_cubins_go_first_then_templates_then_those_of_ptxas_and_of_each_the_shortest() -> None:
    tasks = TaskGraph()
    tasks.add_job("a")
    made = replace(cubin(0, 3), template=replace(TEMPLATES[0], key="d" * 64))
    requests = [
        replace(made, key="long", seconds=60.0),
        replace(made, key="short", seconds=1.0),
        replace(made, key="direct", assembler="direct", seconds=2.0),
        replace(cubin(1, 3), key="waits"),
    ]
    for i, request in enumerate(requests):
        tasks.add_cubin(request, [Target("a", i, "sm_90", 0)])
    for task in tasks.pop(State.LOOK_UP, 4):
        if isinstance(task, CubinTask) and task.key == "waits":
            tasks.wait_for_template(task)
        else:
            tasks.move(task, State.READY)
    tasks.move(tasks.pop(State.LOOK_UP, 1)[0], State.READY)
    order = [task.key for task in tasks.pop(State.READY, 9)]
    assert order == ["direct", TEMPLATES[1].key, "short", "long"]


def test_a_task_that_has_changed_its_place_in_a_queue_is_seen_once() -> None:
    tasks = TaskGraph()
    tasks.add_job("a")
    for i in (0, 1):
        tasks.add_cubin(cubin(i, 3), [Target("a", i, "sm_90", 0)])
    first, second = tasks.in_state(State.LOOK_UP)
    tasks.expedite(second)
    assert tasks.peek(State.LOOK_UP, 3) == [second, first]


def test_a_transition_that_is_not_allowed_raises() -> None:
    tasks = TaskGraph()
    tasks.add_job("a")
    request = cubin(0, 3)
    tasks.add_cubin(request, [Target("a", 0, "sm_90", 0)])
    [task] = tasks.in_state(State.LOOK_UP)
    with pytest.raises(AssertionError, match="cannot move from 'look-up' to 'in flight'"):
        tasks.move(task, State.IN_FLIGHT)
    assert set(ALLOWED_MOVES) == set(State)


def test_a_cubin_that_an_older_job_wants_too_takes_the_older_job_s_place_in_the_queue() -> None:
    tasks = TaskGraph()
    for name in ("old", "young"):
        tasks.add_job(name)
    tasks.add_cubin(cubin(0, 3), [Target("young", 0, "sm_90", 0)])
    tasks.add_cubin(cubin(1, 3), [Target("young", 1, "sm_90", 0)])
    tasks.add_cubin(cubin(0, 3), [Target("old", 0, "sm_90", 0)])
    assert [task.key for task in tasks.pop(State.LOOK_UP, 1)] == ["c0" * 32]
    assert replace(cubin(1, 3)) == tasks.pop(State.LOOK_UP, 9)[0].request
    assert tasks.pop(State.LOOK_UP, 9) == []
