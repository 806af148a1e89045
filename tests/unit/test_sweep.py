"""A pruning sweep through one coordinator, by a played clock: which jobs end first, and when it says that they will."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from cli.commands.serve import ServeProgress
from cli.progress.eta import remaining
from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Part
from codegen.model_zoo import random_weights
from codegen.selection.choose import choose_parts, choose_tiling
from farm.jobs.model import Build, BuildOptions, Job, NewJob, NewSubmission, Status
from farm.scheduler.coordinator import Coordinator
from farm.scheduler.progress import Progress, RunStatus
from farm.worker.messages import CubinRequest, CubinResult, Request, Result, TemplateRequest, TemplateResult
from tests.samples import fixed_toolchain
from tests.unit.farmyard import Farmyard, PlayedClock, PlayedExecutor

LAYERS = (
    Conv2d(64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1)),
    Conv2d(64, 14, 14, 128, 3, 3, padding=(1, 1, 1, 1)),
    Conv2d(128, 14, 14, 128, 3, 3, padding=(1, 1, 1, 1)),
    Conv2d(3, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1)),
    Conv2d(128, 14, 14, 32, 1, 1),
)
CPUS = 4


class Tools(PlayedExecutor):
    """Take the time that is predicted, a factor and chance apart, on that many CPUs."""

    def __init__(self, farm: Farmyard, clock: PlayedClock, *, nvcc: float = 1.0, ptxas: float = 1.0, chance: float = 0):
        super().__init__(farm.store, capacity=2 * CPUS)
        self.clock = clock
        self.factors = {TemplateRequest: nvcc, CubinRequest: ptxas}
        self.chance = chance
        self.random = random.Random(0)
        self.ends: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def running(self) -> Sequence[str]:
        return [request.key for request in self._waiting][:CPUS]

    def submit(self, request: Request) -> None:
        super().submit(request)
        by_chance = self.random.lognormvariate(0, self.chance)
        self.seconds[request.key] = request.seconds * self.factors[type(request)] * by_chance
        self._begin()

    def _begin(self) -> None:
        for key in self.running():
            self.ends.setdefault(key, self.clock.now() + self.seconds[key])

    def wait(self, timeout_seconds: float) -> list[Result]:
        running = self.running()
        if not running:
            return []
        first = min(running, key=lambda key: self.ends[key])
        self.clock.sleep(max(0.0, min(timeout_seconds, self.ends[first] - self.clock.now())))
        if self.ends[first] > self.clock.now():
            return []
        [request] = [request for request in self._waiting if request.key == first]
        self._waiting.remove(request)
        self._begin()
        result = self.build(request)
        if isinstance(result, TemplateResult):
            return [replace(result, seconds=self.seconds[first])]
        assert isinstance(result, CubinResult)
        return [replace(result, made=replace(result.made, ptxas_seconds=self.seconds[first]))]


class Watch(Progress):
    """Records of each job's end and of the announced end of all."""

    def __init__(self, clock: PlayedClock) -> None:
        self.clock = clock
        self.ended: dict[str, float] = {}
        self.said: list[tuple[float, RunStatus]] = []

    def status_changed(self, status: RunStatus) -> None:
        self.said.append((self.clock.now(), status))

    def job_done(self, job: Job) -> None:
        assert job.status is Status.SUCCEEDED
        self.ended[job.name] = self.clock.now()


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farmyard]:
    farm = Farmyard(tmp_path)
    yield farm
    farm.ledger.close()


@pytest.fixture
def clock() -> PlayedClock:
    return PlayedClock()


def checkpoint_of(name: str, layers: Sequence[Conv2d], sparsity: float = 0.9) -> NewJob:
    builds = []
    for position, spec in enumerate(layers):
        nonzeros = random_weights(spec, sparsity).nonzeros_per_output
        tiling = choose_tiling(spec, 64, nonzeros)
        parts = choose_parts(spec, tiling, nonzeros)
        weights = f"{name}-{position}".encode().hex().ljust(64, "0")
        layer = f"conv{position}"
        builds.append(
            Build(0, name, position, layer, "x", "y", spec, tiling, weights, int(nonzeros.sum()), weights, tuple(parts))
        )
    options = BuildOptions(("sm_80", "sm_90"))
    digest = name.encode().hex().ljust(64, "0")
    return NewJob(name, name, f"/models/{name}.onnx", "cd" * 32, digest, options, tuple(builds))


def serve(farm: Farmyard, tools: Tools, progress: Progress, jobs: Sequence[NewJob]) -> float:
    """Gives the seconds that it took."""
    farm.ledger.record_submission(NewSubmission(f"sweep of {jobs[0].name}", "ada", tuple(jobs)))
    start = tools.clock.now()
    coordinator = Coordinator(
        farm.ledger, farm.store, tools, fixed_toolchain(), farm.settings, progress, clock=tools.clock
    )
    coordinator.serve(drain=True)
    return tools.clock.now() - start


SWEEP = [checkpoint_of(f"step{i:02}", LAYERS, 0.85 + 0.01 * i) for i in range(10)]


def test_the_jobs_of_a_sweep_end_one_after_the_other_in_the_order_they_were_submitted(
    farm: Farmyard, clock: PlayedClock
) -> None:
    watch, tools = Watch(clock), Tools(farm, clock, nvcc=10, ptxas=10)
    seconds = serve(farm, tools, watch, SWEEP)
    assert list(watch.ended) == [job.name for job in SWEEP]
    ended = list(watch.ended.values())
    assert all(0 < after - before < 0.2 * seconds for before, after in pairwise(ended))


def test_cubins_whose_templates_are_there_begin_in_the_order_of_their_jobs(farm: Farmyard, clock: PlayedClock) -> None:
    first, *rest = (checkpoint_of(f"step{i:02}", LAYERS) for i in range(8))
    serve(farm, Tools(farm, clock), Watch(clock), [first])  # makes the templates of all
    tools = Tools(farm, clock)
    serve(farm, tools, Watch(clock), rest)
    cubins = [request.weights for request in tools.submitted if isinstance(request, CubinRequest)]
    assert len(cubins) == len(tools.submitted)
    names = [bytes.fromhex(each.rstrip("0") + "0" * (len(each.rstrip("0")) % 2)).decode()[:6] for each in cubins]
    assert names == sorted(names)


def test_a_sweep_takes_no_longer_than_the_work_takes_all_cpus(farm: Farmyard, clock: PlayedClock) -> None:
    """However large the last job's layers are: what would be waited for at the end is begun in time."""
    small = [checkpoint_of(f"step{i:02}", LAYERS[-2:]) for i in range(12)]
    large = checkpoint_of("z-large", [Conv2d(64, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1), data_type="float16")])
    tools = Tools(farm, clock)
    seconds = serve(farm, tools, Watch(clock), [*small, large])
    work, longest = sum(tools.seconds.values()), max(tools.seconds.values())
    chain = max(tools.seconds[request.template.key] for request in tools.submitted if isinstance(request, CubinRequest))
    assert seconds <= max(work / CPUS, longest + chain) + 2.0


def test_a_job_s_duration_counts_from_its_first_work_not_from_when_it_was_claimed(
    farm: Farmyard, clock: PlayedClock
) -> None:
    jobs = SWEEP[:3]
    begun: list[list[bool]] = []

    class Look(Watch):
        def status_changed(self, status: RunStatus) -> None:
            found = [farm.ledger.job(job.id) for job in jobs]
            begun.append([job.started_at is not None for job in found])
            assert all(job.started_at is not None or (job.stage, job.running) == ("", 0) for job in found)

    serve(farm, Tools(farm, clock, nvcc=10, ptxas=10), Look(clock), jobs)
    assert [True, False, False] in begun
    assert begun[-1][:2] == [True, True]


LARGE = checkpoint_of(
    "large", [*LAYERS, *(Conv2d(kernels, 14, 14, kernels, 3, 3, padding=(1, 1, 1, 1)) for kernels in (192, 256))]
)


@pytest.mark.parametrize(
    ("jobs", "nvcc", "ptxas", "chance"),
    [
        (SWEEP, 10, 10, 0.0),
        (SWEEP, 14, 10, 0.28),
        (SWEEP, 9, 12, 0.28),
        (SWEEP, 12, 12, 0.28),
        ([LARGE], 10, 10, 0.0),
        ([LARGE], 15, 10, 0.1),
        ([LARGE], 8, 12, 0.1),
    ],
    ids=["sweep", "sweep, slow nvcc", "sweep, slow ptxas", "sweep, slow machine", "one", "one, nvcc", "one, ptxas"],
)
def test_from_a_tenth_of_the_work_on_the_end_is_known_to_a_factor_of_one_and_a_half(
    farm: Farmyard, clock: PlayedClock, jobs: list[NewJob], nvcc: float, ptxas: float, chance: float
) -> None:
    """Tools take a multiple of what is predicted, and each run of one by chance more or less: by 28 % as measured."""
    watch, tools = Watch(clock), Tools(farm, clock, nvcc=nvcc, ptxas=ptxas, chance=chance)
    seconds = serve(farm, tools, watch, jobs)
    end, work = clock.now(), sum(tools.seconds.values())
    told = 0
    for at, status in watch.said:
        done = sum(tools.seconds[key] for key, ended in tools.ends.items() if ended <= at)
        cubins = {request.key for request in tools.submitted if isinstance(request, CubinRequest)}
        of_both = any(tools.ends.get(key, end + 1) <= at for key in cubins)
        if done >= 0.1 * work and of_both and end - at > 0.1 * seconds:
            assert status.estimate.left_seconds is not None
            assert 1 / 1.5 < status.estimate.left_seconds / (end - at) < 1.5, (at, status)
            told += 1
    assert told > 20


def test_slots_that_have_nothing_left_to_do_make_the_last_kernel_no_slower(farm: Farmyard, clock: PlayedClock) -> None:
    spec = Conv2d(256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1))
    [last] = checkpoint_of("last", [spec]).builds
    whole = replace(last, parts=(Part(0, last.parts[-1].end),))
    watch, tools = Watch(clock), Tools(farm, clock, nvcc=10, ptxas=10)
    job = replace(SWEEP[0], builds=(*SWEEP[0].builds, whole), options=BuildOptions(("sm_90",)))
    seconds = serve(farm, tools, watch, [job])
    late = [(at, each) for at, each in watch.said if 0.1 * seconds < clock.now() - at < 0.4 * seconds]
    assert len(late) > 10
    for at, status in late:
        assert status.estimate.left_seconds is not None
        assert 1 / 1.2 < status.estimate.left_seconds / (clock.now() - at) < 1.2


def test_each_job_s_end_is_predicted_and_written_to_the_ledger(farm: Farmyard, clock: PlayedClock) -> None:
    watch = Watch(clock)
    jobs = SWEEP[:4]
    serve(farm, Tools(farm, clock, nvcc=10, ptxas=10), watch, jobs)
    ids = [job.id for job in jobs]
    at, status = next((at, each) for at, each in watch.said if each.estimate.left_seconds is not None)
    ends = [at + (status.estimate.of_jobs[job_id].left_seconds or 0) for job_id in ids[1:]]
    for expected, name in zip(ends, ids[1:], strict=True):
        assert 1 / 1.5 < (expected - 1000) / (watch.ended[name] - 1000) < 1.5
    assert [(job.running, job.ends_at) for job in farm.ledger.jobs()] == [(0, None)] * 4  # all have ended


def lines_of(text: str) -> list[str]:
    return [line[21:] for line in text.splitlines()]


def test_serve_says_a_line_for_each_template_and_cubin_and_every_so_often_where_it_stands(
    farm: Farmyard, clock: PlayedClock, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Tools(farm, clock, nvcc=20, ptxas=20)
    serve(farm, slow, ServeProgress(clock.now), SWEEP[:2])
    lines = lines_of(capsys.readouterr().err)
    assert re.fullmatch(r"claimed 2 jobs: \d+ templates, \d+ cubins", lines[0])
    made = [line for line in lines if line.startswith("made    template ")]
    built = [line for line in lines if line.startswith("built   step0")]
    cubins = len([each for each in slow.submitted if isinstance(each, CubinRequest)])
    assert (len(made), len(built)) == (len(slow.submitted) - cubins, cubins)
    assert re.fullmatch(
        r"built   (step0\d) \1 conv\d sm_\d\d( part \d of \d)?: rewrite 10 ms, ptxas \S+, 32 .*", built[0]
    )
    stands = [line for line in lines if re.fullmatch(rf"\d+/{cubins} cubins, [1-4] running(, ~.* left)?", line)]
    assert len(stands) >= 3
    assert "left" in stands[-1]
    assert lines[-1].startswith("SUCCEEDED step01")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "~5 s left"), (42, "~40 s left"), (540, "~9 min left"), (5000, "~83 min left"), (9000, "~2.5 h left")],
)
def test_what_is_left_is_said_as_exactly_as_it_is_known(seconds: float, text: str) -> None:
    assert remaining(seconds) == text
