"""A real ledger and store, and a scripted executor that runs no tools."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from codegen.ir.tiling import Part
from farm.config.settings import Settings
from farm.executors.contract import Executor, WorkerState
from farm.jobs.model import BuildOptions, BuildResult, Job, NewSubmission
from farm.jobs.submission import new_job
from farm.ledger import Ledger, open_ledger
from farm.scheduler.clock import Clock
from farm.scheduler.coordinator import Coordinator
from farm.scheduler.progress import Progress
from farm.store.memory import MemoryStore
from farm.testing import laptop_settings
from farm.worker.cache_lookup import CUBIN_STAGE, TEMPLATE_STAGE
from farm.worker.messages import CubinFacts, CubinResult, Request, Result, TemplateRequest, TemplateResult
from tests.samples import LAUNCH, SMALLER, checkpoint, fixed_toolchain, layer

NET = checkpoint(layer("conv1"), layer("conv2", spec=SMALLER))
ARCHS = ("sm_80", "sm_90")

Play = Callable[[Request], Result | None]
"""The outcome of a request; None is success."""


class PlayedClock(Clock):
    """A clock that advances only when a caller sleeps."""

    def __init__(self) -> None:
        self._now = 1000.0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


class PlayedExecutor(Executor):
    """Keeps the contract of an executor and writes to the store what a worker would write."""

    def __init__(self, store: MemoryStore, play: Play = lambda request: None, capacity: int = 2) -> None:
        self._store = store
        self._play = play
        self._capacity = capacity
        self._waiting: deque[Request] = deque()
        self.submitted: list[Request] = []
        self.expected: list[Request] = []
        self.cancelled = 0
        self.dropped: list[str] = []

    @property
    def capacity(self) -> int:
        return self._capacity

    def submit(self, request: Request) -> None:
        assert len(self._waiting) < self._capacity
        self._waiting.append(request)
        self.submitted.append(request)

    def expect(self, requests: Sequence[Request]) -> None:
        self.expected = list(requests)

    def wait(self, timeout_seconds: float) -> list[Result]:
        if not self._waiting:
            return []
        request = self._waiting.popleft()
        return [self._play(request) or self.build(request)]

    def cancel(self, keys: Collection[str]) -> None:
        self.dropped += [request.key for request in self._waiting if request.key in keys]
        self._waiting = deque(request for request in self._waiting if request.key not in keys)

    def running(self) -> Collection[str]:
        return [request.key for request in self._waiting]

    def workers(self) -> Sequence[WorkerState]:
        return ()

    def cancel_all(self) -> None:
        self.cancelled += 1
        self._waiting.clear()

    def close(self) -> None:
        self.cancel_all()

    def build(self, request: Request) -> Result:
        """The result of a request, written to the store."""
        blob = self._store.put(request.key.encode())
        if isinstance(request, TemplateRequest):
            self._store.put_record(TEMPLATE_STAGE, request.key, {"ptx": blob, "seconds": 1.5})
            return TemplateResult(request.key, seconds=1.5)
        facts = CubinFacts(blob, 64, "ab" * 32, "ab" * 32, 10, 90, 32, 0, 0.01, 0.2, LAUNCH)
        self._store.put_record(CUBIN_STAGE, request.key, facts.to_json())
        return CubinResult(request.key, facts)


class Farmyard:
    """A ledger, a store and a way to run jobs in them."""

    def __init__(self, folder: Path, database_url: str | None = None) -> None:
        settings = laptop_settings(folder)
        self.settings: Settings = replace(settings, database_url=database_url or settings.database_url)
        self.ledger: Ledger = open_ledger(self.settings)
        self.store = MemoryStore()

    def submit(self, *names: str, archs: tuple[str, ...] = ARCHS, parts: int = 1, optimisation: int = 3) -> list[str]:
        """Jobs of NET, with each layer cut into that many parts."""
        cut = tuple(Part(i, i + 1) for i in range(parts))
        jobs = []
        for name in names:
            job = new_job(
                NET, BuildOptions(archs, optimisation=optimisation), namespace="test", name=name, store=self.store
            )
            builds = tuple(replace(build, parts=cut) for build in job.builds)
            jobs.append(replace(job, builds=builds, request_digest=name.ljust(64, ".")))
        return [job.id for job in self.ledger.record_submission(NewSubmission(f"s-{names[0]}", "ada", tuple(jobs)))]

    def coordinator(
        self, executor: PlayedExecutor, progress: Progress | None = None, clock: Clock | None = None
    ) -> Coordinator:
        return Coordinator(self.ledger, self.store, executor, fixed_toolchain(), self.settings, progress, clock=clock)

    def run(
        self,
        job_ids: Sequence[str],
        play: Play = lambda request: None,
        capacity: int = 2,
        clock: Clock | None = None,
    ) -> list[Job]:
        self.executor = PlayedExecutor(self.store, play, capacity)
        return self.coordinator(self.executor, clock=clock).run(job_ids)

    def results(self, job_id: str) -> list[BuildResult]:
        return self.ledger.results(job_id)
