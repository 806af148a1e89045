"""The limits of store and ledger hold without a command, on both databases and with a store in a folder."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from farm.config.settings import Settings
from farm.errors import StoreError
from farm.jobs.model import Status
from farm.ledger import Ledger
from farm.ledger.tables import jobs, marks
from farm.maintenance.gc import Sweep
from farm.maintenance.scheduled import ScheduledMaintenance
from farm.scheduler.progress import Progress
from farm.store.contract import StoredBlob, StoredRecord
from farm.store.disk import DiskStore
from farm.testing import laptop_settings
from tests.services.ledger_rows import new_job, result, submit

DAY = 86_400.0
PATIENCE_SECONDS = 30.0


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


class Heard(Progress):
    """Events that maintenance reported, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.sweeps: list[Sweep] = []

    def jobs_pruned(self, count: int) -> None:
        self.said.append(f"forgot {count}")

    def garbage_collected(self, sweep: Sweep) -> None:
        self.said.append(f"removed {sweep.record_count} records, {sweep.blob_count} blobs")
        self.sweeps.append(sweep)

    def maintenance_failed(self, reason: str) -> None:
        self.said.append(reason)


class Kept:
    """A ledger with jobs and a store with what they refer to, old enough to go, and the limits that are set."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.store = DiskStore(folder / "store")
        self.settings = laptop_settings(folder)
        self.folder = folder

    def job(self, job_id: str, *, ended: bool = True) -> str:
        """A job of one build, with the digest of its cubin; each has a record of its own."""
        submit(self.ledger, new_job(job_id, job_id, layers=1))
        [build] = self.ledger.builds(job_id)
        digest = self.store.put(job_id.encode() * 1000)
        key = hashlib.sha256(job_id.encode()).hexdigest()
        self.store.put_record("cubin", key, {"cubin": digest})
        self.ledger.claim_all([job_id], "c", 60)
        made = replace(result(build.id), cubin_key=key, cubin=digest, ptx=None, command="")
        self.ledger.record_results([made])
        if ended:
            self.ledger.finish(job_id, Status.SUCCEEDED, "")
        return digest

    def age(self, seconds: float) -> None:
        """Everything: files, ends of jobs, and what was done last."""
        with self.ledger._database.writing() as connection:
            connection.execute(update(jobs).values(finished_at=jobs.c.finished_at - seconds))
            connection.execute(update(marks).values(at=marks.c.at - seconds))
        for path in (self.folder / "store").rglob("*"):
            if path.is_file():
                os.utime(path, (time.time() - seconds, time.time() - seconds))

    def keep(self, settings: Settings, until: Callable[[Heard], object]) -> Heard:
        heard = Heard()
        with ScheduledMaintenance(settings, self.store, self.ledger, heard, look_seconds=0.05):
            wait_until(lambda: until(heard))
        return heard

    def blobs(self) -> set[str]:
        return {blob.digest for blob in self.store.blobs()}


def test_old_jobs_are_forgotten_and_then_what_they_needed_and_nothing_that_another_job_refers_to(
    ledger: Ledger, tmp_path: Path
) -> None:
    kept = Kept(ledger, tmp_path)
    old, running = kept.job("old"), kept.job("running", ended=False)
    kept.age(40 * DAY)
    new = kept.job("new")
    settings = replace(kept.settings, store_age_seconds=30 * DAY, ledger_age_seconds=35 * DAY)
    heard = kept.keep(settings, lambda heard: heard.sweeps)
    assert heard.said == ["forgot 1", "removed 1 records, 1 blobs"]
    assert {job.id for job in ledger.jobs()} == {"running", "new"}
    assert old not in kept.blobs()
    assert {running, new} <= kept.blobs()
    assert heard.sweeps[0].kept_for_jobs == 1


def test_a_store_that_is_too_large_loses_what_was_not_used_for_longest_and_keeps_what_jobs_need(
    ledger: Ledger, tmp_path: Path
) -> None:
    kept = Kept(ledger, tmp_path)
    unneeded = [kept.store.put(bytes([i]) * 5000) for i in range(2)]
    for i, digest in enumerate(unneeded):
        kept.store.put_record("cubin", f"{i:064x}", {"cubin": digest})
    needed = kept.job("needed")
    kept.age(40 * DAY)
    assert kept.store.get(unneeded[1]) is not None  # which makes it young
    heard = kept.keep(replace(kept.settings, store_bytes=1), lambda heard: heard.sweeps)
    assert {needed, unneeded[1]} <= kept.blobs()
    assert unneeded[0] not in kept.blobs()
    assert (heard.sweeps[0].kept_for_jobs, heard.sweeps[0].kept_young > 0) == (1, True)
    assert [job.id for job in ledger.jobs()] == ["needed"]


def test_of_several_coordinators_one_does_it_each_hour(ledger: Ledger, tmp_path: Path) -> None:
    kept = Kept(ledger, tmp_path)
    settings = replace(kept.settings, ledger_age_seconds=DAY)
    heard = Heard()
    with ExitStack() as coordinators:
        for _ in range(4):
            coordinators.enter_context(ScheduledMaintenance(settings, kept.store, ledger, heard, look_seconds=0.01))
        wait_until(lambda: heard.said == ["forgot 0"])
        kept.age(3601)
        wait_until(lambda: heard.said == ["forgot 0"] * 2)


def test_a_turn_is_taken_once_in_its_time_and_each_name_has_its_own(ledger: Ledger, tmp_path: Path) -> None:
    take = ledger.retention.take_turn
    assert [take("a", 3600), take("a", 3600), take("b", 3600)] == [True, False, True]
    Kept(ledger, tmp_path).age(3601)
    assert [take("a", 3600), take("a", 3600)] == [True, False]


def test_a_read_only_store_is_left_to_others_and_the_log_says_so(ledger: Ledger, tmp_path: Path) -> None:
    kept = Kept(ledger, tmp_path)
    digest = kept.job("old")
    kept.age(40 * DAY)
    settings = replace(kept.settings, store_bytes=1, ledger_age_seconds=DAY, read_only=True)
    heard = kept.keep(settings, lambda heard: len(heard.said) > 1)
    assert heard.said == ["the store is read-only here: its limits are not applied", "forgot 1"]
    assert digest in kept.blobs()
    assert ledger.retention.take_turn("store garbage collection", 3600)


class Refusing(DiskStore):
    """A store that this machine may not look into at first, as with a role that lacks the right."""

    def __init__(self, root: Path, error: Exception) -> None:
        super().__init__(root)
        self.error: Exception | None = error

    def records(self, beginning: str = "") -> Iterator[StoredRecord]:
        if self.error is not None:
            raise self.error
        return super().records(beginning)


@pytest.mark.parametrize(
    ("error", "said"),
    [(StoreError("access denied"), "access denied"), (KeyError("a bug"), "KeyError: 'a bug'")],
)
def test_what_fails_is_said_and_tried_again_an_hour_later(
    ledger: Ledger, tmp_path: Path, error: Exception, said: str
) -> None:
    kept = Kept(ledger, tmp_path)
    store, heard = Refusing(tmp_path / "store", error), Heard()
    with ScheduledMaintenance(replace(kept.settings, store_bytes=1), store, ledger, heard, look_seconds=0.01):
        wait_until(lambda: heard.said)
        store.error = None
        kept.age(3601)
        wait_until(lambda: heard.sweeps)
    assert heard.said == [
        f"store garbage collection failed: {said}. The next run is in an hour.",
        "removed 0 records, 0 blobs",
    ]


def test_leaving_does_not_wait_for_the_end_of_a_long_collection(ledger: Ledger, tmp_path: Path) -> None:
    listed = threading.Event()

    class Endless(DiskStore):
        def blobs(self, beginning: str = "") -> Iterator[StoredBlob]:
            for i in itertools.count():
                listed.set()
                yield StoredBlob(f"{i:064x}", 1, 0.0)

    settings = replace(laptop_settings(tmp_path), store_bytes=1)
    with ScheduledMaintenance(settings, Endless(tmp_path / "store"), ledger, Heard()):
        assert listed.wait(PATIENCE_SECONDS)


def test_without_limits_nothing_runs_and_nothing_goes(ledger: Ledger, tmp_path: Path) -> None:
    kept = Kept(ledger, tmp_path)
    digest = kept.job("old")
    kept.age(4000 * DAY)
    with ScheduledMaintenance(kept.settings, kept.store, ledger, Heard()):
        assert "maintenance" not in {thread.name for thread in threading.enumerate()}
    assert digest in kept.blobs()
    assert [job.id for job in ledger.jobs()] == ["old"]
