"""A lease survives failed beats, and its coordinator hears when it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from farm.errors import LeaseLostError
from farm.executors.contract import WorkerState
from farm.jobs.model import Job, Status
from farm.ledger import Ledger
from farm.scheduler.coordinator import Coordinator
from farm.scheduler.lease import Lease
from farm.scheduler.progress import Progress
from farm.worker.messages import Request, Result
from tests.samples import fixed_toolchain
from tests.unit.farmyard import Farmyard, PlayedExecutor


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farmyard]:
    farm = Farmyard(tmp_path)
    yield farm
    farm.ledger.close()


def wait_for(event: threading.Event) -> None:
    assert event.wait(30)


def test_a_lease_survives_any_exception_of_a_beat(farm: Farmyard) -> None:
    told: list[str] = []
    beats, recovered = [0], threading.Event()

    def workers() -> Sequence[WorkerState]:
        beats[0] += 1
        if beats[0] <= 3:
            raise RuntimeError("Ray has lost its head")
        recovered.set()
        return ()

    with Lease(farm.ledger, "me", workers, tell=told.append, beat_seconds=0.01) as lease:
        wait_for(recovered)
        lease.check()
    assert len(told) == 1
    assert "RuntimeError: Ray has lost its head" in told[0]


def test_a_lease_survives_that_nobody_can_be_told(farm: Farmyard) -> None:
    failed, recovered = threading.Event(), threading.Event()

    def workers() -> Sequence[WorkerState]:
        if not failed.is_set():
            raise RuntimeError("Ray has lost its head")
        recovered.set()
        return ()

    def tell(_reason: str) -> NoReturn:
        failed.set()
        raise BrokenPipeError("the terminal is gone")

    with Lease(farm.ledger, "me", workers, tell=tell, beat_seconds=0.01):
        wait_for(recovered)


class Broken(Ledger):
    """Cannot extend a lease."""

    def waiting(self, seconds: float) -> Broken:
        return self

    def extend_lease(self, coordinator: str, lease_seconds: float) -> None:
        raise RuntimeError("a bug")


def test_a_coordinator_whose_lease_is_lost_gives_its_jobs_back_and_says_why(farm: Farmyard) -> None:
    [job_id] = farm.submit("a")

    class Waits(PlayedExecutor):
        def wait(self, timeout_seconds: float) -> list[Result]:
            time.sleep(0.02)  # what it has never ends
            return []

        def submit(self, request: Request) -> None:
            self._waiting.append(request)

    coordinator = Coordinator(
        Broken(farm.ledger._database),
        farm.store,
        Waits(farm.store),
        fixed_toolchain(),
        farm.settings,
        Progress(),
        lease_seconds=0.3,
        beat_seconds=0.02,
    )
    with pytest.raises(LeaseLostError, match="RuntimeError: a bug"):
        coordinator.serve()
    job = farm.ledger.job(job_id)
    assert job.status is Status.PENDING
    assert "a bug" in job.reason


def test_a_job_that_another_coordinator_runs_is_waited_for(farm: Farmyard) -> None:
    [job_id] = farm.submit("a")
    told: list[str] = []
    other = threading.Timer(0.2, lambda: farm.ledger.finish(job_id, Status.FAILED, "theirs"))

    class Watch(Progress):
        def elsewhere(self, job: Job) -> None:
            told.append(job.id)
            other.start()

    assert farm.ledger.claim_all([job_id], "somebody else", lease_seconds=30)
    executor = PlayedExecutor(farm.store)
    [job] = farm.coordinator(executor, Watch()).run([job_id])
    other.join()
    assert (job.status, job.reason, executor.submitted, told) == (Status.FAILED, "theirs", [], [job_id])


def test_a_job_whose_coordinator_died_is_taken_over_when_its_lease_ends(farm: Farmyard) -> None:
    [job_id] = farm.submit("a")
    assert farm.ledger.claim_all([job_id], "somebody who died", lease_seconds=0.3)
    [job] = farm.run([job_id])
    assert (job.status, job.tries) == (Status.SUCCEEDED, 2)


def test_a_lease_lasts_as_long_as_its_coordinator_works(farm: Farmyard) -> None:
    [job_id] = farm.submit("a")
    assert farm.ledger.claim_all([job_id], "me", lease_seconds=0.2)
    with Lease(farm.ledger, "me", beat_seconds=0.05):
        time.sleep(0.4)
        assert not farm.ledger.claim_all([job_id], "another", lease_seconds=1)
