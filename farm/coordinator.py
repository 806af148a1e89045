"""Runs jobs: claims them, plans, drives an executor, writes results to the ledger."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Sequence

from codegen.toolchain import Toolchain
from farm.claims import Claims
from farm.executors.contract import Executor
from farm.jobs import Job, Status
from farm.lease import LEASE_SECONDS, Lease
from farm.ledger import Ledger
from farm.plan import plan
from farm.progress import Progress
from farm.run import Run
from farm.settings import Settings
from farm.store.contract import Store

NO_COORDINATOR = "no coordinator: run farm compile again"
AWAY_SECONDS = 300.0
"""How long a database may be away before its jobs are given up; what is built meanwhile is kept."""
POLL_SECONDS = 0.5
"""How often a job that another coordinator runs is looked at."""


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
    ) -> None:
        self._ledger = ledger.waiting(AWAY_SECONDS)
        self._store = store
        self._executor = executor
        self._toolchain = toolchain
        self._settings = settings
        self._progress = progress or Progress()
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    def run(self, job_ids: Sequence[str]) -> list[Job]:
        """Runs the jobs to their end and gives them in the order given; waits for those that another coordinator runs.

        A failed job is a result, not an exception. An interruption (KeyboardInterrupt) puts unfinished jobs back to
        PENDING, what fails around them (UnreachableError) ends them as CRASHED; both are raised again.
        """
        try:
            self._run_all(list(dict.fromkeys(job_ids)))
        except BaseException:
            # Also what was claimed a moment ago and not begun.
            self._ledger.release(self.name, NO_COORDINATOR)
            raise
        return [self._ledger.job(each) for each in job_ids]

    def _run_all(self, unfinished: Sequence[str]) -> None:
        told: set[str] = set()
        while unfinished:
            claimed = self._ledger.claim_all(unfinished, self.name, LEASE_SECONDS)
            if claimed:
                self._run_claimed(claimed)
            jobs = [job for each in unfinished if not (job := self._ledger.job(each)).status.final]
            unfinished = [job.id for job in jobs]
            for job in jobs:
                if job.id not in told:
                    told.add(job.id)
                    self._progress.elsewhere(job)
            if unfinished and not claimed:
                time.sleep(POLL_SECONDS)

    def _run_claimed(self, job_ids: Sequence[str]) -> None:
        with Lease(self._ledger.waiting(0), self.name):
            claims = Claims(self._ledger, job_ids, self._progress)
            try:
                self._run_plan(claims)
            except BaseException as error:
                self._executor.cancel_all()
                if isinstance(error, Exception):
                    claims.end_all(Status.CRASHED, str(error) or type(error).__name__)
                else:
                    claims.keep()
                raise

    def _run_plan(self, claims: Claims) -> None:
        started = time.monotonic()
        todo = plan(claims.work(), self._toolchain)
        claims.start(todo)
        run = Run(
            todo,
            self._store,
            self._executor,
            max_retries=self._settings.max_retries,
            recache=self._settings.recache,
            progress=self._progress,
        )
        for batch in run.batches():
            for result in batch:
                claims.take(result)
            claims.write()
            if time.monotonic() - started > self._settings.job_timeout_seconds:
                self._executor.cancel_all()
                limit = f"{self._settings.job_timeout_seconds:g} s"
                claims.end_all(Status.FAILED, f"it did not end within {limit} (FARM_JOB_TIMEOUT)")
                return
