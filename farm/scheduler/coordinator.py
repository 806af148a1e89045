"""The coordinator: claims jobs, drives an executor, and writes results to the ledger."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from codegen.toolchain.cpu_slots import slot_wait
from codegen.toolchain.tools import Toolchain
from farm.config.settings import Settings, cores_folder
from farm.errors import NotFoundError, UnreachableError
from farm.executors import open_executor
from farm.executors.contract import Executor, WorkerState
from farm.jobs.model import Job, Status
from farm.ledger import Ledger
from farm.ledger.filters import no_such_job
from farm.scheduler.clock import Clock
from farm.scheduler.eta import EtaEstimator
from farm.scheduler.held_jobs import HeldJobs
from farm.scheduler.in_flight import InFlightKeys
from farm.scheduler.lease import BEAT_SECONDS, LEASE_SECONDS, Lease
from farm.scheduler.progress import Progress
from farm.scheduler.retry import RetryPolicy
from farm.scheduler.scheduler import Scheduler
from farm.scheduler.traces import Traces, open_traces
from farm.store.contract import Store
from farm.worker.messages import Fault

POLL_SECONDS = 0.5
"""Interval of claiming new jobs, and of looking at jobs that another coordinator runs."""
ESTIMATE_SECONDS = 1.0
"""Interval of the estimates of the jobs' ends."""
JOBS_AT_ONCE = 64
"""Most jobs claimed in one transaction: leaves jobs to other coordinators and bounds memory."""


class Coordinator:
    """Runs jobs in this process. Several coordinators may share a ledger: each job is held by one of them."""

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        executor: Executor,
        toolchain: Toolchain,
        settings: Settings,
        progress: Progress | None = None,
        *,
        lease_seconds: float = LEASE_SECONDS,
        beat_seconds: float = BEAT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or Clock()
        self._ledger = ledger.waiting(settings.away_seconds)
        self._store = store
        self._executor = executor
        self._toolchain = toolchain
        self._settings = settings
        self._progress = progress or Progress()
        self._lease_seconds = lease_seconds
        self._beat_seconds = beat_seconds
        self.node = socket.gethostname()
        self.name = f"{self.node}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    def run(self, job_ids: Sequence[str]) -> list[Job]:
        """Run jobs to their end and return them in the given order; waits for jobs that another coordinator runs.

        A failed job is a result, not an exception. An interruption (KeyboardInterrupt) returns unfinished jobs to
        PENDING; a failure of the surroundings (UnreachableError) ends them as CRASHED. Both are raised again. Raises
        NotFoundError for an unknown id, before any job runs.
        """
        unfinished = list(dict.fromkeys(job_ids))
        if unknown := set(unfinished) - self._ledger.jobs_by_id(unfinished).keys():
            raise NotFoundError(no_such_job(min(unknown)))
        told: set[str] = set()

        def claim() -> list[str]:
            return self._ledger.claim_all(unfinished, self.name, self._lease_seconds, limit=JOBS_AT_ONCE)

        def over() -> bool:
            left = self._ledger.unfinished(unfinished)
            unfinished[:] = [job_id for job_id in unfinished if job_id in left]
            for job in self._ledger.jobs_by_id(left - told).values():
                self._progress.elsewhere(job)
            told.update(left)
            return not unfinished

        self._work(claim, over, serves=False)
        found = self._ledger.jobs_by_id(job_ids)
        return [found[each] for each in job_ids]

    def serve(self, *, drain: bool = False) -> None:
        """Run pending jobs until interrupted or, with `drain`, until no job is pending.

        An interruption (KeyboardInterrupt) and a failure of the surroundings (UnreachableError) return unfinished jobs
        to PENDING. Both are raised again.
        """
        if not drain:
            _ = self._executor.capacity  # fails before a job is claimed if the workers are unreachable

        def claim() -> list[str]:
            return self._ledger.claim_next(self.name, self._lease_seconds, JOBS_AT_ONCE)

        self._work(claim, lambda: drain, serves=True)

    def _work(self, claim: Callable[[], list[str]], over: Callable[[], bool], *, serves: bool) -> None:
        with open_traces(self._settings.otlp_endpoint, self._clock) as traces:
            self._work_traced(claim, over, traces, serves=serves)

    def _work_traced(
        self, claim: Callable[[], list[str]], over: Callable[[], bool], traces: Traces | None, *, serves: bool
    ) -> None:
        coordinators = self._ledger.coordinators
        coordinators.register(self.name, self.node, serves=serves, lease_seconds=self._lease_seconds)
        retry_policy = RetryPolicy(self._settings, self._toolchain.ptxas_version)
        held_jobs = HeldJobs(
            self._ledger,
            self.name,
            retry_policy,
            self._progress,
            timeout_seconds=self._settings.job_timeout_seconds,
            clock=self._clock,
            traces=traces,
        )
        try:
            with Lease(
                self._ledger.waiting(0),
                self.name,
                self._workers,
                tell=self._progress.lease_troubled,
                lease_seconds=self._lease_seconds,
                beat_seconds=self._beat_seconds,
            ) as lease:
                self._loop(held_jobs, retry_policy, lease, claim, over)
        except BaseException as error:
            self._executor.cancel_all()
            self._give_up(held_jobs, error, serves=serves)
            raise
        coordinators.leave(self.name)

    def _loop(
        self,
        held_jobs: HeldJobs,
        retry_policy: RetryPolicy,
        lease: Lease,
        claim: Callable[[], list[str]],
        over: Callable[[], bool],
    ) -> None:
        scheduler = Scheduler(
            self._store,
            self._executor,
            InFlightKeys(self._ledger.coordinators, self.name, self._clock),
            retry_policy,
            recache=self._settings.recache,
            clock=self._clock,
        )
        eta = EtaEstimator(scheduler.tasks, self._clock)
        asked_at = estimated_at = -ESTIMATE_SECONDS
        while True:
            lease.check()
            asks = scheduler.wants_jobs and (not held_jobs.job_ids or self._clock.now() - asked_at >= POLL_SECONDS)
            new: list[str] = []
            if asks:
                asked_at = self._clock.now()
                if new := [*held_jobs.take_orphans(), *claim()]:
                    scheduler.release(new)  # a job may have been lost and claimed again before this was noticed
                    scheduler.add(held_jobs.begin(new, self._toolchain), new)
            if scheduler.busy:
                events = scheduler.step()
                held_jobs.take(events)
                scheduler.add_parts(held_jobs.cut(self._toolchain))
                held_jobs.set_active(scheduler.tasks.active_jobs())
                eta.observe(events, self._executor.running())
            scheduler.release(held_jobs.write())
            if held_jobs.job_ids and self._clock.now() - estimated_at >= ESTIMATE_SECONDS:
                estimated_at = self._clock.now()
                held_jobs.report(eta.estimate(held_jobs.job_ids), self._core_wait())
            if asks and not new and not held_jobs.job_ids:
                if over():
                    return
                self._clock.sleep(POLL_SECONDS)

    def _core_wait(self) -> str:
        """The wait of this machine's tools for cores that other processes hold, in words; empty without one."""
        wait = slot_wait(cores_folder(self._settings))
        return "" if wait is None else wait.text

    def _workers(self) -> list[WorkerState]:
        """The executor's workers; the one on this machine may wait for a core."""
        wait = self._core_wait()
        return [
            replace(each, reason=each.reason or wait) if each.node == self.node else each
            for each in self._executor.workers()
        ]

    def _give_up(self, held_jobs: HeldJobs, error: BaseException, *, serves: bool) -> None:
        """End or release all held jobs, including claimed ones that have not begun."""
        reason = str(error) or type(error).__name__
        if not isinstance(error, Exception):
            held_jobs.keep()
            self._ledger.release(self.name)
        elif serves and isinstance(error, UnreachableError):
            held_jobs.keep()
            self._ledger.release(self.name, f"coordinator stopped ({reason}): the next farm serve continues")
        else:
            held_jobs.end_all(Status.CRASHED, reason, Fault.FARM)
            self._ledger.release(self.name)
        self._ledger.coordinators.leave(self.name)


@contextmanager
def open_coordinator(
    settings: Settings,
    store: Store,
    ledger: Ledger,
    toolchain: Toolchain,
    progress: Progress | None = None,
    patience_seconds: float | None = None,
) -> Iterator[Coordinator]:
    """A coordinator with its own executor.

    The executor waits `patience_seconds` for a machine; None: as the settings say.
    """
    progress = progress or Progress()
    with open_executor(
        settings, store, toolchain, notice=progress.waiting, patience_seconds=patience_seconds
    ) as executor:
        yield Coordinator(ledger, store, executor, toolchain, settings, progress)
