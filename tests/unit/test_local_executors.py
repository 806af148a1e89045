"""The choice of the executor by the length of the work, and the order of requests in local processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import pytest

from farm.errors import UsageError
from farm.executors import open_executor, processes
from farm.executors.auto import SHORT_SECONDS, AutomaticExecutor
from farm.executors.processes import ProcessExecutor
from farm.executors.ray.builds import ClusterExecutor
from farm.store import open_store
from farm.store.memory import MemoryStore
from farm.testing import laptop_settings
from farm.worker.messages import CubinRequest, CubinResult, Failure, Fault, Request, Result, failed
from tests.unit.farmyard import Farmyard, PlayedExecutor, fixed_toolchain
from tests.unit.test_nodes import CUBIN, TEMPLATE

JOBS = 2
LONG = replace(CUBIN, seconds=SHORT_SECONDS * JOBS + 1)


@pytest.fixture
def automatic() -> AutomaticExecutor:
    store = MemoryStore()
    here, ray = (PlayedExecutor(store, lambda request: None, capacity) for capacity in (1, 2))
    return AutomaticExecutor(here, lambda: ray, JOBS)


def test_short_work_stays_on_this_machine_and_long_work_gets_ray(automatic: AutomaticExecutor) -> None:
    automatic.foresee([replace(CUBIN, seconds=SHORT_SECONDS), replace(CUBIN, seconds=SHORT_SECONDS)])
    assert automatic.capacity == 1
    automatic.foresee([LONG])  # what it has begun with stays
    assert automatic.capacity == 1


def test_long_work_gets_ray(automatic: AutomaticExecutor) -> None:
    automatic.foresee([LONG])
    assert automatic.capacity == 2


def test_asking_for_capacity_before_the_work_is_known_chooses_ray(automatic: AutomaticExecutor) -> None:
    assert automatic.capacity == 2


def test_without_work_nothing_is_started(automatic: AutomaticExecutor) -> None:
    automatic.expect([])
    automatic.cancel([])
    assert (automatic.wait(0.0), automatic.running(), automatic.workers()) == ([], (), ())
    automatic.cancel_all()
    automatic.close()


def test_the_work_is_announced_once_before_the_first_request(tmp_path: Path) -> None:
    class Foreseeing(PlayedExecutor):
        heard: Sequence[Request] = ()

        def foresee(self, requests: Sequence[Request]) -> None:
            assert not self.submitted
            assert not self.heard
            self.heard = requests

    farm = Farmyard(tmp_path)
    executor = Foreseeing(farm.store)
    farm.coordinator(executor).run(farm.submit("a", "b"))
    assert {each.key for each in executor.heard} == {each.key for each in executor.submitted}
    farm.ledger.close()


@pytest.mark.parametrize(
    ("executor", "address", "kind"),
    [
        ("auto", None, AutomaticExecutor),
        ("auto", "host:6379", ClusterExecutor),
        ("ray", None, ClusterExecutor),
        ("processes", "host:6379", ProcessExecutor),
    ],
)
def test_the_settings_name_the_executor(executor: str, address: str | None, kind: type, tmp_path: Path) -> None:
    settings = replace(laptop_settings(tmp_path), executor=executor, ray_address=address)
    assert type(open_executor(settings, open_store(settings), fixed_toolchain())) is kind
    with pytest.raises(UsageError, match="cannot read a store in memory"):
        open_executor(settings, MemoryStore(), fixed_toolchain())


@dataclass(eq=False)
class PlayedProcess:
    """A worker that builds when a test lets it; the test sees its requests."""

    at_work: Request | None = None

    def __post_init__(self) -> None:
        self.templates: set[str] = set()
        self.may_end = Event()
        self.runs = self.killed = self.is_quick = False

    def start(self) -> None:
        if not self.runs:
            self.runs, self.killed = True, False

    def build(self, request: Request) -> Result:
        self.at_work = request
        self.templates.add(request.template_key)
        was_killed = self.killed or not self.may_end.wait(60)
        self.may_end.clear()
        self.at_work = None
        if was_killed or (self.killed and not self.is_quick):
            self.end()
            return failed(request, Failure(Fault.CRASH, "it was killed"))
        return CubinResult(request.key, Failure(Fault.INPUT, "built"))

    def kill(self) -> None:
        self.killed = True
        self.may_end.set()

    def end(self) -> None:
        self.runs, self.killed = False, True


class Played:
    """An executor with two played processes."""

    def __init__(self, folder: Path) -> None:
        self.processes: list[PlayedProcess] = []
        settings = replace(laptop_settings(folder), executor="processes", jobs=JOBS)
        self.executor = ProcessExecutor(settings, open_store(settings))

    def process(self, *_: object) -> PlayedProcess:
        self.processes.append(PlayedProcess())
        return self.processes[-1]

    def begin(self) -> None:
        """Gives each process a request: a1 to one, b1 to the other."""
        for request in (cubin("a1", "a"), cubin("b1", "b")):
            self.executor.submit(request)
        self.works_on("a1", "b1")

    def works_on(self, *keys: str) -> None:
        """Comes back once the processes work on these, and on nothing else."""
        for _ in range(10_000):
            found = {each.at_work.key for each in self.processes if each.at_work is not None}
            if found == set(keys):
                return
            Event().wait(0.001)
        raise AssertionError(f"they work on {sorted(found)}, not on {sorted(keys)}")

    def finish(self, key: str) -> None:
        [process] = [each for each in self.processes if each.at_work is not None and each.at_work.key == key]
        process.may_end.set()
        assert [result.key for result in self.executor.wait(60)] == [key]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    played = Played(tmp_path)
    monkeypatch.setattr(processes, "WorkerProcess", played.process)
    monkeypatch.setattr(processes, "memory_bytes", lambda: 2**31)
    yield played
    played.executor.close()


def cubin(name: str, template: str, **changes: object) -> CubinRequest:
    return replace(CUBIN, key=name, template=replace(TEMPLATE, key=template), cost=1, **changes)  # type: ignore[arg-type]


def test_a_process_takes_a_request_whose_template_it_has_read_before_an_earlier_one(played: Played) -> None:
    played.begin()
    for request in (cubin("c1", "c"), cubin("b2", "b"), cubin("a2", "a")):
        played.executor.submit(request)
    played.finish("b1")
    played.works_on("a1", "b2")
    played.finish("a1")
    played.works_on("a2", "b2")


def test_a_process_leaves_a_template_that_another_has_read_to_that_one(played: Played) -> None:
    played.begin()
    for request in (cubin("a2", "a"), cubin("c1", "c")):
        played.executor.submit(request)
    played.finish("b1")
    played.works_on("a1", "c1")


def test_templates_come_first_whatever_a_process_has_read(played: Played) -> None:
    played.begin()
    for request in (replace(TEMPLATE, key="c"), cubin("a2", "a")):
        played.executor.submit(request)
    played.finish("a1")
    played.works_on("b1", "c")


def test_direct_cubins_come_before_templates(played: Played) -> None:
    direct = cubin("direct", "d", assembler="direct")
    played.begin()
    for request in (cubin("a2", "a"), replace(TEMPLATE, key="c"), direct):
        played.executor.submit(request)
    played.finish("a1")
    played.works_on("b1", "direct")


def test_requests_that_would_fill_the_memory_together_run_one_after_the_other(played: Played) -> None:
    large = {"memory_limit_bytes": 2**31}
    for request in (cubin("large", "a", **large), cubin("larger", "b", **large), cubin("small", "c")):
        assert request.memory_bytes <= 2**31
        played.executor.submit(request)
    played.works_on("large")
    played.finish("large")
    played.works_on("larger")
    played.finish("larger")
    played.works_on("small")


def test_a_request_larger_than_the_memory_runs_alone(played: Played) -> None:
    played.executor.submit(cubin("huge", "a", memory_limit_bytes=2**40))
    played.works_on("huge")


def test_a_request_that_is_cancelled_while_it_waits_is_never_built(played: Played) -> None:
    for name in ("a", "b", "c", "d"):
        played.executor.submit(cubin(name, name))
    played.works_on("a", "b")
    played.executor.cancel(["c", "a"])
    played.works_on("b", "d")
    assert list(played.executor.running()) == ["b", "d"]
    [state] = played.executor.workers()
    assert (state.cpus, state.running, state.pending, state.accepted) == (JOBS, 2, 0, 4)


def test_a_process_that_answers_as_it_is_killed_crashes_no_later_request(played: Played) -> None:
    played.begin()
    [process] = [each for each in played.processes if each.at_work and each.at_work.key == "a1"]
    process.is_quick = True
    played.executor.submit(cubin("a2", "a"))
    played.executor.cancel(["a1"])
    played.works_on("a2", "b1")
    process.may_end.set()
    assert played.executor.wait(60) == [CubinResult("a2", Failure(Fault.INPUT, "built"))]
