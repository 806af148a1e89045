"""Inventory of a store: its blobs, its records with the blobs they refer to, and which of them jobs need."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice

from farm.errors import StoreError
from farm.ledger import Reference
from farm.store.contract import Record, RecordName, Store, StoredRecord, digests_in, is_name
from farm.store.signed import unchecked_record

READERS = 8
"""Threads that read records; they mostly wait for S3."""
BATCH = 1000
"""Records or blobs that are read, written or removed together."""
_CACHE_KIB = 64 * 1024
"""Memory of the temporary database; the rest is in its file."""
_STEPS = 5_000_000
"""Instructions of SQLite's virtual machine between two reports of a statement; about half a second."""

Tell = Callable[[str, int], None]
"""Receives progress: what is counted, and the count so far."""


def tell_nobody(what: str, count: int) -> None:
    """Ignores progress."""


@dataclass(frozen=True)
class Entry:
    """A record and its references."""

    stored: StoredRecord
    record: Record | None
    """None for a damaged record."""
    refers_to: frozenset[str]
    """Digests of blobs, which may be missing."""
    unsigned: bool = False
    """Whether the store demands signatures and the record has no valid one."""

    @property
    def namespace(self) -> str:
        """Namespace of the job that made it; empty if unknown."""
        namespace = (self.record or {}).get("namespace")
        return namespace.encode(errors="replace").decode() if isinstance(namespace, str) else ""


@dataclass(frozen=True)
class Item:
    """A record with its blobs, or a blob that no record refers to."""

    stage: str
    """Stage of the record, "weights" for a blob that jobs have as weights, "other" for another blob."""
    name: str
    size_bytes: int
    unused_seconds: float
    needed: bool
    """Whether jobs refer to the record's key, or to the blob."""


@dataclass(frozen=True)
class StageSummary:
    """The items of a stage."""

    stage: str
    entries: int
    needed: int
    size_bytes: int
    oldest_seconds: float
    newest_seconds: float


@dataclass(frozen=True)
class AgedRecord:
    """A record with the time since it or a blob of it was made or last used, exact to an hour."""

    id: int
    """Number of the record in the inventory."""
    name: RecordName
    size_bytes: int
    """Size of the record alone, without its blobs."""
    unused_seconds: float
    namespace: str
    needed: bool
    """Whether jobs refer to its key or a blob of it."""


# Each script ends with the begin of a transaction: without one, each statement's commit walks all cached pages.
_TABLES = """
CREATE TABLE records (id INTEGER PRIMARY KEY, stage TEXT, key BLOB, size INT, age REAL, namespace TEXT, unsigned INT);
CREATE TABLE refs (record INT, digest BLOB, PRIMARY KEY (record, digest)) WITHOUT ROWID;
CREATE TABLE blobs (digest BLOB PRIMARY KEY, size INT, age REAL) WITHOUT ROWID;
CREATE TABLE needed (name BLOB, kind TEXT, PRIMARY KEY (name, kind)) WITHOUT ROWID;
CREATE TABLE garbage_records (id INTEGER PRIMARY KEY);
CREATE TABLE garbage_blobs (digest BLOB PRIMARY KEY, rebuilt INT) WITHOUT ROWID;
BEGIN;
"""
# A blob is as old as its last use, and a record no older than its youngest blob.
_VIEWS = """
CREATE INDEX refs_digest ON refs (digest);
CREATE TABLE aged AS
    SELECT r.id, min(r.age, coalesce(min(b.age), r.age)) AS age, r.size + coalesce(sum(b.size), 0) AS total,
        EXISTS (SELECT 1 FROM needed WHERE name = r.key AND kind = 'key') AS keyed,
        coalesce(max(EXISTS (SELECT 1 FROM needed WHERE name = f.digest AND kind != 'key')), 0) AS used
    FROM records r LEFT JOIN refs f ON f.record = r.id LEFT JOIN blobs b ON b.digest = f.digest GROUP BY r.id;
CREATE VIEW free AS SELECT * FROM blobs b WHERE NOT EXISTS (SELECT 1 FROM refs f WHERE f.digest = b.digest);
CREATE VIEW unneeded AS
    SELECT * FROM blobs b WHERE NOT EXISTS (SELECT 1 FROM needed n WHERE n.name = b.digest AND n.kind != 'key');
CREATE VIEW items AS
    SELECT r.stage, r.key AS name, a.total AS size, a.age, a.keyed AS needed, r.namespace
        FROM aged a JOIN records r ON r.id = a.id
    UNION ALL
    SELECT CASE WHEN EXISTS (SELECT 1 FROM needed n WHERE n.name = b.digest AND n.kind = 'weights')
        THEN 'weights' ELSE 'other' END, b.digest, b.size, b.age,
        EXISTS (SELECT 1 FROM needed n WHERE n.name = b.digest AND n.kind != 'key'), NULL FROM free b;
BEGIN;
"""


class Inventory:
    """Contents of a store in a temporary database on disk, so that memory does not grow with the store.

    Not a snapshot: others may write while it is read.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._sql = connection

    def read(self, store: Store, references: Iterable[Reference], tell: Tell) -> None:
        """Reads every record, then lists the blobs, so that blobs of the records read are among them."""
        self._sql.executescript(_TABLES)
        self._read_records(store, tell)
        read = 0
        listed = store.blobs()
        while batch := list(islice(listed, BATCH)):
            rows = [(bytes.fromhex(each.digest), each.size_bytes, each.age_seconds) for each in batch]
            # A blob that is written anew while it is listed may be listed twice.
            self._sql.executemany("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", rows)
            read += len(batch)
            tell("blobs", read)
        self.need(references, tell)
        self._sql.executescript(_VIEWS)

    def need(self, references: Iterable[Reference], tell: Tell = tell_nobody) -> None:
        """Adds references of jobs."""
        read = 0
        given = iter(references)
        while batch := list(islice(given, BATCH)):
            rows = [(bytes.fromhex(each.name), each.kind) for each in batch if is_name("blob", each.name)]
            self._sql.executemany("INSERT OR IGNORE INTO needed VALUES (?, ?)", rows)
            read += len(batch)
            tell("references", read)

    @property
    def total_bytes(self) -> int:
        """Size of the whole store, each blob counted once."""
        return self._number("SELECT (SELECT coalesce(sum(size), 0) FROM records) + coalesce(sum(size), 0) FROM blobs")

    @property
    def unsigned(self) -> int:
        """Number of records whose signatures are missing or invalid."""
        return self._number("SELECT count(*) FROM records WHERE unsigned")

    def summaries(self, namespace: str | None = None) -> list[StageSummary]:
        """The stages, with all items or the records of a namespace."""
        rows = self._sql.execute(
            "SELECT stage, count(*), sum(needed), sum(size), max(age), min(age) FROM items "
            "WHERE ?1 IS NULL OR namespace = ?1 GROUP BY stage ORDER BY stage",
            (namespace,),
        )
        return [StageSummary(*row) for row in rows]

    def items(self, stage: str, namespace: str | None, limit: int) -> list[Item]:
        """The least recently used items of a stage."""
        rows = self._sql.execute(
            "SELECT stage, lower(hex(name)), size, age, needed FROM items "
            "WHERE stage = ?1 AND (?2 IS NULL OR namespace = ?2) ORDER BY age DESC LIMIT ?3",
            (stage, namespace, limit),
        )
        return [Item(stage, name, size, age, bool(needed)) for stage, name, size, age, needed in rows]

    def records_by_age(self) -> Iterator[AgedRecord]:
        """All records, least recently used first."""
        rows = self._sql.execute(
            "SELECT r.id, r.stage, lower(hex(r.key)), r.size, a.age, r.namespace, a.keyed OR a.used "
            "FROM aged a JOIN records r ON r.id = a.id ORDER BY a.age DESC"
        )
        for number, stage, key, size, age, namespace, needed in rows:
            yield AgedRecord(number, RecordName(stage, key), size, age, namespace, bool(needed))

    def condemn_free_blobs(self, grace_seconds: float) -> int:
        """Makes blobs garbage that neither records nor jobs refer to, and returns their size."""
        return self._condemn("SELECT digest FROM free", (), grace_seconds, rebuilt=False)

    def condemn(self, record: AgedRecord, grace_seconds: float) -> int:
        """Makes a record garbage, with the blobs that nothing else refers to, and returns their size."""
        self._sql.execute("INSERT INTO garbage_records VALUES (?)", (record.id,))
        alone = (
            "SELECT digest FROM refs f WHERE record = ? AND NOT EXISTS (SELECT 1 FROM refs o WHERE "
            "o.digest = f.digest AND o.record NOT IN (SELECT id FROM garbage_records))"
        )
        return record.size_bytes + self._condemn(alone, (record.id,), grace_seconds, rebuilt=True)

    def _condemn(self, digests: str, parameters: tuple[int, ...], grace_seconds: float, *, rebuilt: bool) -> int:
        chosen = f"FROM unneeded WHERE digest IN ({digests}) AND age >= ?"
        given = (*parameters, grace_seconds)
        freed = self._number(f"SELECT coalesce(sum(size), 0) {chosen}", given)
        self._sql.execute(f"INSERT INTO garbage_blobs SELECT digest, {rebuilt:d} {chosen}", given)
        return freed

    def count_young_blobs(self, grace_seconds: float) -> int:
        """Number of blobs to which nothing refers, younger than that."""
        return self._number(
            "SELECT count(*) FROM free JOIN unneeded USING (digest) WHERE free.age < ?", (grace_seconds,)
        )

    def garbage_records(self) -> Iterator[dict[RecordName, int]]:
        """The records that are garbage, in batches, with their sizes."""
        rows = self._sql.execute("SELECT stage, lower(hex(key)), size FROM garbage_records JOIN records USING (id)")
        while batch := rows.fetchmany(BATCH):
            yield {RecordName(stage, key): size for stage, key, size in batch}

    def garbage_blobs(self, *, rebuilt: bool) -> Iterator[dict[str, int]]:
        """The blobs that are garbage and not needed since, in batches, by digest with their sizes.

        Blobs of records are built again when they are missed; the others, such as weights, cannot be.
        """
        rows = self._sql.execute(
            "SELECT lower(hex(digest)), size FROM garbage_blobs JOIN unneeded USING (digest) WHERE rebuilt = ?",
            (rebuilt,),
        )
        while batch := rows.fetchmany(BATCH):
            yield dict(batch)

    def _read_records(self, store: Store, tell: Tell) -> None:
        entries = enumerate(read_entries(store), 1)
        while batch := list(islice(entries, BATCH)):
            rows = [_record_row(number, entry) for number, entry in batch]
            self._sql.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            refs = [(number, bytes.fromhex(digest)) for number, entry in batch for digest in sorted(entry.refers_to)]
            self._sql.executemany("INSERT INTO refs VALUES (?, ?)", refs)
            tell("records", batch[-1][0])

    def _number(self, query: str, parameters: tuple[float, ...] = ()) -> int:
        return int(self._sql.execute(query, parameters).fetchone()[0])


def _record_row(number: int, entry: Entry) -> tuple[object, ...]:
    stored = entry.stored
    key = bytes.fromhex(stored.key)
    return number, stored.stage, key, stored.size_bytes, stored.age_seconds, entry.namespace, entry.unsigned


@contextmanager
def open_inventory(store: Store, references: Iterable[Reference], tell: Tell = tell_nobody) -> Iterator[Inventory]:
    """The inventory of a store. Raises StoreError if its temporary file cannot be written."""
    connection = sqlite3.connect("", isolation_level=None)  # SQLite removes the file, also after a crash
    steps = count(1)
    stopped: list[BaseException] = []

    def tell_of_statement() -> bool:
        """Called while a statement runs, which may take minutes; True ends it."""
        try:
            tell("steps of comparison", next(steps))
        except BaseException as error:  # noqa: BLE001 - SQLite drops it, so it is raised below
            stopped.append(error)
        return bool(stopped)

    connection.set_progress_handler(tell_of_statement, _STEPS)
    try:
        connection.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{_CACHE_KIB}"
        )
        inventory = Inventory(connection)
        inventory.read(store, references, tell)
        yield inventory
    except sqlite3.Error as error:
        if stopped:
            raise stopped[0] from None
        raise StoreError(
            f"the inventory of the store cannot be made ({error}): make room, or name another folder in TMPDIR"
        ) from None
    finally:
        connection.close()


def read_entries(store: Store) -> Iterator[Entry]:
    """Every record, read in parallel."""

    def read(stored: StoredRecord) -> Entry:
        record = store.get_record(stored.stage, stored.key)
        if record is not None:
            return Entry(stored, record, digests_in(record))
        # Collected as any other: with the wrong keys, garbage collection must not empty the store.
        record = unchecked_record(store, stored.stage, stored.key)
        return Entry(stored, record, digests_in(record), unsigned=record is not None)

    listed = store.records()
    with ThreadPoolExecutor(READERS) as pool:
        while batch := list(islice(listed, BATCH)):
            yield from pool.map(read, batch)
