"""Garbage is what nobody refers to, and nothing else, also while jobs run."""

from __future__ import annotations

import os
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from farm.errors import BusyError, LeaseLostError, NotFoundError, StoreError, UsageError
from farm.jobs.model import BuildOptions, JobSet, NewSubmission, Status
from farm.jobs.submission import new_job
from farm.ledger.retention import Retention
from farm.ledger.tables import leases
from farm.maintenance import exclusive
from farm.maintenance.exclusive import LEASE_SECONDS
from farm.maintenance.gc import COLLECTION, Limits, Sweep, collect_garbage
from farm.maintenance.inventory import open_inventory
from farm.maintenance.remove import remove_cached
from farm.maintenance.scrub import Damage, scrub
from farm.store.contract import Record, Store, StoredBlob, StoredRecord, digests_in
from farm.store.disk import DiskStore
from farm.store.memory import MemoryStore
from farm.worker.cache_lookup import CUBIN_STAGE, TEMPLATE_STAGE
from farm.worker.messages import CubinFacts
from tests.samples import LAUNCH
from tests.store_contract import blob_name
from tests.unit.farmyard import NET, Farmyard

DAY = 86_400.0
OLD = 30 * DAY


NESTED = "[" * 700 + "]" * 700
"""JSON that can be read, but not by a function that calls itself for each list."""


@dataclass
class Yard:
    """A farm whose store is a folder, so that what lies there can be made old."""

    folder: Path
    farm: Farmyard
    store: DiskStore

    def age(self, seconds: float) -> None:
        """Everything in the store."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                status = path.stat()
                os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))

    def collect(self, limits: Limits, *, dry_run: bool = False) -> Sweep:
        return collect_garbage(self.store, self.farm.ledger, limits, dry_run=dry_run)

    def forget_jobs(self) -> None:
        time.sleep(0.01)
        list(self.farm.ledger.retention.prune(0))

    def record(self, key: str, data: bytes, namespace: str = "") -> str:
        digest = self.store.put(data)
        facts = CubinFacts(digest, len(data), "ab" * 32, "ab" * 32, 1, 9, 32, 0, 0.1, 0.2, LAUNCH)
        self.store.put_record(CUBIN_STAGE, key * 32, {**facts.to_json(), "namespace": namespace})
        return digest

    def contents(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    farm = Farmyard(tmp_path)
    farm.store = store = DiskStore(tmp_path / "store")
    yield Yard(tmp_path / "store", farm, store)
    farm.ledger.close()


def test_nothing_that_a_job_refers_to_goes_however_old_it_is(yard: Yard) -> None:
    [job_id] = yard.farm.submit("one")
    yard.farm.run([job_id])
    yard.age(OLD)
    before = yard.contents()
    done = yard.collect(Limits(older_than_seconds=0, size_bytes=0))
    assert (done.records, done.blobs, done.bytes_freed) == ((), (), 0)
    assert done.kept_for_jobs == 6  # two templates, four cubins
    assert yard.contents() == before


def test_all_goes_once_the_jobs_are_forgotten(yard: Yard) -> None:
    yard.farm.run(yard.farm.submit("one"))
    yard.age(OLD)
    yard.forget_jobs()
    size = sum(path.stat().st_size for path in yard.folder.rglob("*") if path.is_file())
    done = yard.collect(Limits(older_than_seconds=DAY))
    assert (done.bytes_before, done.bytes_freed) == (size, size)
    assert {name.rpartition("/")[0][:8] for name in yard.contents()} == {"v1/trash"}
    assert done.bytes_trashed == sum((yard.folder / name).stat().st_size for name in yard.contents())
    yard.age(OLD)
    yard.collect(Limits())
    assert yard.contents() == set()


def test_weights_that_were_collected_come_back_for_a_job_that_another_ledger_knows(yard: Yard) -> None:
    weights = yard.store.put(b"weights of a job in another database")
    cubin = yard.record("aa", b"cubin")
    yard.age(OLD)
    done = yard.collect(Limits(older_than_seconds=DAY))
    assert set(done.blobs) == {weights, cubin}
    assert yard.store.get(weights) == b"weights of a job in another database"
    assert yard.store.get(cubin) is None  # it can be built again
    assert yard.collect(Limits(older_than_seconds=DAY)).blobs == ()


def test_the_weights_of_a_job_that_waits_stay(yard: Yard) -> None:
    yard.farm.submit("waits")
    yard.age(OLD)
    before = yard.contents()
    assert before
    assert yard.collect(Limits(older_than_seconds=0)).blobs == ()
    assert yard.contents() == before


def test_the_network_of_a_job_stays_until_the_job_is_forgotten(yard: Yard) -> None:
    network = yard.store.put(b"what is left of a model")
    job = new_job(NET, BuildOptions(("sm_80",)), namespace="test", name="net", store=yard.store)
    yard.farm.ledger.record_submission(NewSubmission("s", "ada", (replace(job, network=network),)))
    yard.age(OLD)
    assert yard.collect(Limits(older_than_seconds=0)).blobs == ()
    assert yard.farm.ledger.retention.users(network) == [job.id]
    yard.farm.ledger.cancel(JobSet(ids=(job.id,)), "not wanted")
    yard.forget_jobs()
    assert network in yard.collect(Limits(older_than_seconds=DAY)).blobs


def test_what_is_younger_than_the_grace_period_stays(yard: Yard) -> None:
    yard.record("aa", b"young")
    yard.store.put(b"not yet referred to")
    assert yard.collect(Limits(older_than_seconds=0, size_bytes=0)).kept_young == 2
    assert len(yard.contents()) == 3
    with pytest.raises(UsageError, match="grace period of 60 s is too short"):
        yard.collect(Limits(grace_seconds=60))


def test_without_a_limit_only_blobs_that_nothing_refers_to_go(yard: Yard) -> None:
    yard.record("aa", b"recorded")
    alone = yard.store.put(b"alone")
    yard.age(OLD)
    done = yard.collect(Limits())
    assert (done.records, done.blobs) == ((), (alone,))


def test_a_dry_run_says_what_would_go_and_removes_nothing(yard: Yard) -> None:
    yard.record("aa", b"old")
    yard.age(OLD)
    before = yard.contents()
    would = yard.collect(Limits(older_than_seconds=DAY), dry_run=True)
    assert yard.contents() == before
    assert yard.collect(Limits(older_than_seconds=DAY)).blobs == would.blobs
    assert yard.contents() == set()


def test_what_was_not_used_for_longest_goes_until_the_rest_fits(yard: Yard) -> None:
    for key in ("aa", "bb", "cc", "dd"):
        yard.record(key, key.encode() * 5000)
        yard.age(2 * DAY)
    yard.store.get(str((yard.store.get_record(CUBIN_STAGE, "aa" * 32) or {})["cubin"]))  # used now
    done = yard.collect(Limits(size_bytes=22_000))
    assert [each.key[:2] for each in done.records] == ["bb", "cc"]
    assert done.bytes_before - done.bytes_freed <= 22_000
    assert {record.key[:2] for record in yard.store.records()} == {"aa", "dd"}


def test_a_blob_of_two_records_goes_with_the_second(yard: Yard) -> None:
    digest = yard.record("aa", b"shared")
    yard.age(10 * DAY)
    yard.store.put_record(CUBIN_STAGE, "bb" * 32, {"cubin": digest})
    os.utime(yard.folder / blob_name(digest), (time.time() - OLD,) * 2)
    assert yard.collect(Limits(older_than_seconds=2 * DAY)).blobs == ()
    assert yard.store.get_record(CUBIN_STAGE, "aa" * 32) is None
    assert yard.store.get(digest) == b"shared"


def test_one_namespace_s_garbage_leaves_the_records_of_others(yard: Yard) -> None:
    yard.record("aa", b"a", "team-a")
    yard.record("bb", b"b", "team-b")
    yard.age(OLD)
    done = yard.collect(Limits(older_than_seconds=DAY, namespace="team-a"))
    assert [each.key for each in done.records] == ["aa" * 32]
    assert yard.store.get_record(CUBIN_STAGE, "bb" * 32) is not None


def test_a_refusal_keeps_the_ptx_that_its_command_names(yard: Yard) -> None:
    digest = yard.store.put(b"ptx")
    record = {"error": "e", "command": f"ptxas -O3 {digest}, a blob of folder x", "stderr": ""}
    yard.store.put_record(CUBIN_STAGE, "aa" * 32, record)
    yard.age(OLD)
    assert yard.collect(Limits()).blobs == ()
    assert yard.collect(Limits(older_than_seconds=DAY)).blobs == (digest,)


def test_whatever_looks_like_a_digest_counts_as_a_reference() -> None:
    a, b, c = "aa" * 32, "bb" * 32, "cc" * 32
    assert digests_in({"x": a, "y": [f"see {b}.", {"z": c}], "n": 1, "long": a + "0", "none": None}) == {a, b, c}


@pytest.mark.parametrize("poison", [f'{{"a": {NESTED}}}', f'{{"namespace": {NESTED}}}', r'{"namespace": "\ud800"}'])
def test_a_record_of_any_content_is_collected_as_any_other(yard: Yard, poison: str) -> None:
    yard.store.put_record(CUBIN_STAGE, "aa" * 32, {})
    [path] = yard.folder.rglob("*.json")
    path.write_text(poison)
    yard.age(OLD)
    assert [each.key for each in yard.collect(Limits(older_than_seconds=DAY)).records] == ["aa" * 32]


class SlowStore(DiskStore):
    """Does something just before a blob is removed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.before_removal = lambda: None

    def remove_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        self.before_removal()
        return super().remove_blobs(digests, unused_seconds)


def test_what_a_job_finds_while_garbage_is_collected_stays(yard: Yard) -> None:
    yard.farm.run(yard.farm.submit("one"))
    yard.age(OLD)
    yard.forget_jobs()
    store = SlowStore(yard.folder)
    hits: list[str] = []

    def submit_and_run() -> None:
        store.before_removal = lambda: None
        [job_id] = yard.farm.submit("two")
        yard.farm.run([job_id])
        hits.append(job_id)

    store.before_removal = submit_and_run
    collect_garbage(store, yard.farm.ledger, Limits(older_than_seconds=DAY))
    [job_id] = hits
    for result in yard.farm.results(job_id):
        assert result.cubin is not None
        assert yard.store.get(result.cubin) is not None
    for build in yard.farm.ledger.builds(job_id):
        assert yard.store.get(build.weights) is not None


def test_a_second_collection_is_refused_while_one_runs(yard: Yard) -> None:
    yard.record("aa", b"old")
    yard.age(OLD)
    store = SlowStore(yard.folder)

    def collect_too() -> None:
        with pytest.raises(BusyError, match=r"garbage collection is running already \(.*process \d+\): wait until"):
            yard.collect(Limits(older_than_seconds=DAY))
        assert yard.collect(Limits(older_than_seconds=DAY), dry_run=True).blobs

    store.before_removal = collect_too
    assert len(collect_garbage(store, yard.farm.ledger, Limits(older_than_seconds=DAY)).blobs) == 1
    yard.collect(Limits())


def test_a_run_that_lost_its_lease_stops_before_the_next_removal(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("aa", "bb", "cc"):
        yard.record(key, key.encode())
    yard.age(OLD)
    store = SlowStore(yard.folder)

    def stand_still_while_another_begins() -> None:
        with yard.farm.ledger._database.writing() as connection:
            connection.execute(update(leases).values(expires_at=leases.c.expires_at - LEASE_SECONDS))
        assert yard.farm.ledger.leases.acquire(COLLECTION, "another", 60) == "another"
        monotonic = time.monotonic() + LEASE_SECONDS
        patch.setattr(exclusive, "time", SimpleNamespace(monotonic=lambda: monotonic))

    store.before_removal = stand_still_while_another_begins
    monkeypatch.setattr("farm.maintenance.inventory.BATCH", 1)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(LeaseLostError, match="another run began"):
        collect_garbage(store, yard.farm.ledger, Limits(older_than_seconds=DAY))
    assert len(list(yard.store.blobs())) == 2
    assert yard.farm.ledger.leases.acquire(COLLECTION, "third", 60) == "another"  # its lease is untouched


def test_jobs_lose_nothing_while_garbage_is_collected_all_the_time(yard: Yard) -> None:
    stop = threading.Event()
    removed: list[str] = []
    failures: list[Exception] = []

    def collect() -> None:
        try:
            while not stop.is_set():
                removed.extend(yard.collect(Limits(older_than_seconds=0)).blobs)
        except Exception as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        for i in range(15):
            [job_id] = yard.farm.submit(f"job{i}")
            [job] = yard.farm.run([job_id])
            assert job.status is Status.SUCCEEDED
            for result in yard.farm.results(job_id):
                assert result.cubin is not None
                assert yard.store.get(result.cubin) is not None
            yard.forget_jobs()
            yard.age(OLD)
    finally:
        stop.set()
        collector.join()
    assert not failures
    assert removed


def test_a_read_only_store_is_not_collected(yard: Yard) -> None:
    yard.record("aa", b"old")
    yard.age(OLD)
    store: Store = DiskStore(yard.folder, read_only=True)
    with pytest.raises(StoreError, match="unset FARM_READ_ONLY to remove something"):
        collect_garbage(store, yard.farm.ledger, Limits(older_than_seconds=DAY))
    assert collect_garbage(store, yard.farm.ledger, Limits(older_than_seconds=DAY), dry_run=True).blobs
    assert len(yard.contents()) == 2


@pytest.mark.parametrize("is_made", [True, False])
def test_a_blob_is_removed_by_name_whatever_its_clock_says(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    digest = yard.store.put(b"blob")
    yard.age(-60)
    monkeypatch.setattr(Retention, "made", lambda *_: is_made)
    assert remove_cached(yard.store, yard.farm.ledger, digest).name == digest
    assert list(yard.store.blobs()) == []


def test_one_record_is_removed_by_the_prefix_of_its_key(yard: Yard) -> None:
    digest = yard.record("aa", b"data")
    yard.record("ab", b"other")
    for prefix in ("aa", "", "..", "../../etc", "AAAA", "zzzz", "a" * 65):
        with pytest.raises(UsageError, match="is not a prefix of a key or digest"):
            remove_cached(yard.store, yard.farm.ledger, prefix)
    with pytest.raises(NotFoundError, match="no key or digest that begins with 0000"):
        remove_cached(yard.store, yard.farm.ledger, "0000")
    assert remove_cached(yard.store, yard.farm.ledger, "aaaa").stage == CUBIN_STAGE
    assert yard.store.get_record(CUBIN_STAGE, "aa" * 32) is None
    assert remove_cached(yard.store, yard.farm.ledger, digest[:12]).name == digest
    assert digest not in {each.digest for each in yard.store.blobs()}


def test_a_removed_blob_comes_back_from_the_trash_if_it_is_used(yard: Yard) -> None:
    digest = yard.record("aa", b"data")
    remove_cached(yard.store, yard.farm.ledger, digest, force=True)
    assert not list(yard.store.blobs(digest))
    assert yard.store.get(digest) == b"data"


def test_a_prefix_of_several_names_removes_none(yard: Yard) -> None:
    for stage in (TEMPLATE_STAGE, CUBIN_STAGE):
        yard.store.put_record(stage, "aa" * 32, {})
    with pytest.raises(UsageError, match=r"begins more than one name \(cubin aa.*, template aa"):
        remove_cached(yard.store, yard.farm.ledger, "aaaa")
    assert len(list(yard.store.records())) == 2


def test_what_a_job_refers_to_is_removed_by_force_only(yard: Yard) -> None:
    [job_id] = yard.farm.submit("one")
    yard.farm.run([job_id])
    result = yard.farm.results(job_id)[0]
    for name in (result.cubin_key, result.template_key, str(result.cubin), yard.farm.ledger.builds(job_id)[0].weights):
        with pytest.raises(UsageError, match=f"is needed by job {job_id}: --force removes it"):
            remove_cached(yard.store, yard.farm.ledger, name)
    remove_cached(yard.store, yard.farm.ledger, result.cubin_key, force=True)
    assert yard.store.get_record(CUBIN_STAGE, result.cubin_key) is None


def test_what_was_removed_is_made_anew_by_the_next_job(yard: Yard) -> None:
    [job_id] = yard.farm.submit("one")
    yard.farm.run([job_id])
    result = yard.farm.results(job_id)[0]
    remove_cached(yard.store, yard.farm.ledger, str(result.cubin), force=True)
    [again] = yard.farm.submit("two")
    [job] = yard.farm.run([again])
    assert (job.status, job.hits) == (Status.SUCCEEDED, 3)
    assert yard.store.get(str(result.cubin)) is not None


def test_damage_is_found_and_removed_only_when_asked(yard: Yard) -> None:
    digest, right = yard.record("aa", b"right"), yard.record("bb", b"also right")
    (yard.folder / blob_name(digest)).write_bytes(b"wrong")
    yard.store.put_record(TEMPLATE_STAGE, "cc" * 32, {})
    broken = yard.folder / "v1" / "ac" / TEMPLATE_STAGE / "cc" / f"{'cc' * 32}.json"
    broken.write_text("{")
    found = [Damage(TEMPLATE_STAGE, "cc" * 32, 1, False), Damage("blob", digest, 5, False)]
    before = yard.contents()
    assert list(scrub(yard.store)) == found
    assert yard.contents() == before
    assert list(scrub(yard.store, repair=True)) == [replace(each, removed=True) for each in found]
    assert list(scrub(yard.store)) == []
    assert yard.store.get(right) == b"also right"


def test_an_inventory_counts_each_blob_once(yard: Yard) -> None:
    yard.record("aa", b"shared" * 100)
    yard.record("bb", b"shared" * 100)
    with open_inventory(yard.store, []) as inventory:
        total = sum(path.stat().st_size for path in yard.folder.rglob("*") if path.is_file())
        assert inventory.total_bytes == total
        assert sum(item.size_bytes for item in inventory.items(CUBIN_STAGE, None, 9)) == total + 600


class Listing(MemoryStore):
    """Lists records of a blob each, without holding them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def blobs(self, prefix: str = "") -> Iterator[StoredBlob]:
        return (StoredBlob(f"{i:064x}", 1, OLD) for i in range(self._count))

    def records(self, prefix: str = "") -> Iterator[StoredRecord]:
        return (StoredRecord(CUBIN_STAGE, f"{i:064x}", 1, OLD) for i in range(self._count))

    def get_record(self, stage: str, key: str) -> Record | None:
        return {"cubin": key}

    def remove_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        return frozenset(digests)


def test_the_memory_of_a_collection_does_not_grow_with_the_store(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.maintenance.inventory.BATCH", 100)
    monkeypatch.setattr("farm.maintenance.gc.LISTED", 100)
    peaks = []
    for count in (500, 500, 5000):  # the first one imports
        tracemalloc.start()
        done = collect_garbage(Listing(count), yard.farm.ledger, Limits(older_than_seconds=DAY))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (done.record_count, done.blob_count, len(done.records)) == (count, count, 100)
    assert peaks[2] < 1.5 * peaks[1]


def test_a_long_statement_of_the_inventory_is_stopped_by_whoever_listens(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.maintenance.inventory._STEPS", 1)

    def stop(what: str, _count: int) -> None:
        if what == "steps of comparison":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_garbage(yard.store, yard.farm.ledger, Limits(), tell=stop)
    assert yard.collect(Limits()).blobs == ()  # the lease was released
