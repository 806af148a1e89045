"""Runs jobs: claims them, plans, drives an executor, writes results to the ledger."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from codegen.toolchain.tools import Toolchain
from farm.config.settings import Settings
from farm.errors import UnreachableError
from farm.executors import open_executor
from farm.executors.contract import Executor
from farm.jobs.model import Job, Status
from farm.ledger import Ledger
from farm.scheduler.clock import Clock
from farm.scheduler.eta import Pace
from farm.scheduler.held_jobs import Claims
from farm.scheduler.in_flight import Flights
from farm.scheduler.lease import BEAT_SECONDS, LEASE_SECONDS, Lease
from farm.scheduler.progress import Progress
from farm.scheduler.retry import Retries
from farm.scheduler.run import Run
from farm.store.contract import Store
from farm.worker.messages import Fault

NO_COORDINATOR = "no coordinator: run farm compile again or farm serve"
POLL_SECONDS = 0.5
"""How often a job that another coordinator runs is looked at, and whether there are new ones."""
LOOK_SECONDS = 1.0
"""How often it is told when jobs will end."""
JOBS_AT_ONCE = 64
"""Claimed together, at most: others have a share too, and what is held in memory stays small."""


class Coordinator:
    """One process that runs jobs. Several may work on one ledger: a job is claimed by one at a time."""

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
        """Runs the jobs to their end and gives them in the order given; waits for those that another coordinator runs.

        A failed job is a result, not an exception. An interruption (KeyboardInterrupt) puts unfinished jobs back to
        PENDING, what fails around them (UnreachableError) ends them as CRASHED; both are raised again.
        """
        unfinished = list(dict.fromkeys(job_ids))
        told: set[str] = set()

        def claim() -> list[str]:
            return self._ledger.claim_all(unfinished, self.name, self._lease_seconds, limit=JOBS_AT_ONCE)

        def over() -> bool:
            jobs = self._ledger.jobs_by_id(unfinished).values()
            unfinished[:] = [job.id for job in jobs if not job.status.final]
            for job in jobs:
                if not job.status.final and job.id not in told:
                    told.add(job.id)
                    self._progress.elsewhere(job)
            return not unfinished

        self._work(claim, over, serves=False)
        found = self._ledger.jobs_by_id(job_ids)
        return [found[each] for each in job_ids]

    def serve(self, *, drain: bool = False) -> None:
        """Runs whatever is pending until it is interrupted or, with `drain`, until nothing is.

        An interruption (KeyboardInterrupt) puts unfinished jobs back to PENDING, and so does what fails around them
        (UnreachableError): both are raised again.
        """
        if not drain:
            _ = self._executor.capacity  # workers that cannot be reached are no reason to claim a job

        def claim() -> list[str]:
            return self._ledger.claim_next(self.name, self._lease_seconds, JOBS_AT_ONCE)

        self._work(claim, lambda: drain, serves=True)

    def _work(self, claim: Callable[[], list[str]], over: Callable[[], bool], *, serves: bool) -> None:
        coordinators = self._ledger.coordinators
        coordinators.register(self.name, self.node, serves=serves, lease_seconds=self._lease_seconds)
        retries = Retries(self._settings, self._toolchain.ptxas_version)
        claims = Claims(
            self._ledger,
            self.name,
            retries,
            self._progress,
            timeout_seconds=self._settings.job_timeout_seconds,
            clock=self._clock,
        )
        try:
            with Lease(
                self._ledger.waiting(0),
                self.name,
                self._executor.workers,
                tell=self._progress.lease_troubled,
                lease_seconds=self._lease_seconds,
                beat_seconds=self._beat_seconds,
            ) as lease:
                self._loop(claims, retries, lease, claim, over)
        except BaseException as error:
            self._executor.cancel_all()
            self._give_up(claims, error, serves=serves)
            raise
        coordinators.leave(self.name)

    def _loop(
        self, claims: Claims, retries: Retries, lease: Lease, claim: Callable[[], list[str]], over: Callable[[], bool]
    ) -> None:
        run = Run(
            self._store,
            self._executor,
            Flights(self._ledger.coordinators, self.name, self._clock),
            retries,
            recache=self._settings.recache,
            clock=self._clock,
        )
        pace = Pace(run.pieces, self._clock)
        asked_at = looked_at = -LOOK_SECONDS
        while True:
            lease.check()
            asks = run.hungry and (not claims.job_ids or self._clock.now() - asked_at >= POLL_SECONDS)
            new: list[str] = []
            if asks:
                asked_at = self._clock.now()
                if new := [*claims.take_orphans(), *claim()]:
                    run.release(new)  # one may have been lost, and claimed again before that was noticed
                    run.add(claims.begin(new, self._toolchain), new)
            if run.busy:
                events = run.step()
                claims.take(events)
                run.add_parts(claims.cut(self._toolchain))
                claims.at_work(run.pieces.at_work())
                pace.observe(events, self._executor.running())
            run.release(claims.write())
            if claims.job_ids and self._clock.now() - looked_at >= LOOK_SECONDS:
                looked_at = self._clock.now()
                claims.note(pace.look(claims.job_ids))
            if asks and not new and not claims.job_ids:
                if over():
                    return
                self._clock.sleep(POLL_SECONDS)

    def _give_up(self, claims: Claims, error: BaseException, *, serves: bool) -> None:
        """Ends or gives back what is claimed, also what was claimed a moment ago and not begun."""
        reason = str(error) or type(error).__name__
        if not isinstance(error, Exception):
            claims.keep()
            self._ledger.release(self.name, NO_COORDINATOR)
        elif serves and isinstance(error, UnreachableError):
            claims.keep()
            self._ledger.release(self.name, f"its coordinator ended ({reason}): the next farm serve goes on")
        else:
            claims.end_all(Status.CRASHED, reason, Fault.FARM)
            self._ledger.release(self.name, NO_COORDINATOR)
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
    """A coordinator with an executor of its own, which waits so long for a machine; None: as the settings say."""
    progress = progress or Progress()
    with open_executor(
        settings, store, toolchain, notice=progress.waiting, patience_seconds=patience_seconds
    ) as executor:
        yield Coordinator(ledger, store, executor, toolchain, settings, progress)
