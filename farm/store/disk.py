"""A store in a folder: `v1/cas/<aa>/<sha256>` for blobs, `v1/ac/<stage>/<aa>/<key>.json` for action records."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile

from farm.errors import StoreError
from farm.store.contract import (
    FRESH_SECONDS,
    Record,
    RecordName,
    StoredBlob,
    StoredRecord,
    blob_digest,
    check_name,
    check_prefix,
    is_name,
    read_record,
    record_bytes,
)

_NEW = ".new-"
_GONE = ".gone-"
"""Prefixes of files that are being written, and of files that are being removed."""


class DiskStore:
    """A store in a folder, for any number of concurrent processes: files appear whole or not at all."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self._root = root
        self._read_only = read_only

    def get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest; None if it is missing or damaged."""
        path = self._found(digest)
        data = self._read(path)
        if data is None or blob_digest(data) != digest:
            return None
        return data if self._refresh(path, data) else None

    def put(self, data: bytes) -> str:
        """Writes a blob unless it exists undamaged, and returns its digest."""
        digest = blob_digest(data)
        # Reading first is worth it: a damaged blob is replaced, and an undamaged one is not written again.
        if self.get(digest) is None:
            self._write(self._blob(digest), data)
        return digest

    def holds(self, digest: str, size_bytes: int | None = None) -> bool:
        """Whether the blob exists, and has that size if one is given; its bytes are not read."""
        path = self._found(digest)
        try:
            found = path.stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unreadable(path, error) from None
        return size_bytes in (None, found.st_size) and self._refresh(path, None)

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record; None if it is missing or damaged."""
        return read_record(self._read(self._record(stage, key)))

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Writes an action record; the last writer wins."""
        self._write(self._record(stage, key), record_bytes(record))

    def blobs(self, prefix: str = "") -> Iterator[StoredBlob]:
        """All blobs whose digests have that prefix, damaged ones too."""
        check_prefix(prefix)
        for path, size_bytes, modified in self._files(self._root / "v1" / "cas", prefix):
            if is_name("blob", path.name):
                yield StoredBlob(path.name, size_bytes, self._now() - modified)

    def records(self, prefix: str = "") -> Iterator[StoredRecord]:
        """All action records, of all stages, whose keys have that prefix."""
        check_prefix(prefix)
        for stage in self._stages():
            for path, size_bytes, modified in self._files(stage, prefix):
                if path.suffix == ".json" and is_name(stage.name, path.stem):
                    yield StoredRecord(stage.name, path.stem, size_bytes, self._now() - modified)

    def is_damaged(self, digest: str) -> bool:
        """Whether the blob exists and its bytes do not match its digest."""
        data = self._read(self._blob(digest))
        return data is not None and blob_digest(data) != digest

    def remove_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Removes the blobs that were neither written nor read within that time, and returns them."""
        is_old = self._at_least(unused_seconds)
        return frozenset(digest for digest in digests if self._remove(self._blob(digest), is_old))

    def trash_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Moves the blobs that were neither written nor read within that time into the trash, and returns them."""
        return frozenset(digest for digest in digests if self._trash(digest, unused_seconds))

    def empty_trash(self, trashed_seconds: float) -> int:
        """Deletes blobs that have been in the trash for that time; returns their size in bytes."""
        self._check_removal()
        freed_bytes = 0
        for path, size_bytes, _ in self._files(self._root / "v1" / "trash", ""):
            if is_name("blob", path.name) and self._remove(path, self._at_least(trashed_seconds)):
                freed_bytes += size_bytes
        return freed_bytes

    def remove_damaged(self, digest: str) -> bool:
        """Removes a blob if it is damaged; returns whether it did."""
        return self._remove(self._blob(digest), lambda path: blob_digest(path.read_bytes()) != digest)

    def remove_records(self, records: Sequence[RecordName]) -> None:
        """Removes those action records that exist."""
        for stage, key in records:
            self._remove(self._record(stage, key), lambda _: True)

    def remove_leftovers(self, unused_seconds: float) -> int:
        """Removes unfinished files of killed writers that are older than that; returns their size in bytes."""
        freed_bytes = 0
        for folder in (self._root / "v1" / "cas", self._root / "v1" / "trash", *_entries(self._root / "v1" / "ac")):
            for path, size_bytes, _ in self._files(folder, ""):
                if path.name.startswith((_NEW, _GONE)) and self._remove(path, self._at_least(unused_seconds)):
                    freed_bytes += size_bytes
        return freed_bytes

    def describe(self) -> str:
        """The store's location, for messages."""
        return f"folder {self._root}"

    def _now(self) -> float:
        return time.time() - self._clock_ahead_seconds

    def _age_seconds(self, path: Path) -> float:
        return self._now() - path.stat().st_mtime

    def _at_least(self, seconds: float) -> Callable[[Path], bool]:
        return lambda path: self._age_seconds(path) >= seconds

    @cached_property
    def _clock_ahead_seconds(self) -> float:
        """Lead of this machine's clock over the folder's, which another machine may serve; to the second."""
        try:
            here = time.time()
            with TemporaryFile(dir=self._root / "v1") as probe:
                return float(round(here - os.fstat(probe.fileno()).st_mtime))
        except OSError:
            return 0.0  # a folder that this process may not write, and so removes nothing from

    def _blob(self, digest: str) -> Path:
        check_name("blob", digest)
        return self._root / "v1" / "cas" / digest[:2] / digest

    def _trashed(self, digest: str) -> Path:
        check_name("blob", digest)
        return self._root / "v1" / "trash" / digest[:2] / digest

    def _found(self, digest: str) -> Path:
        """The path of a blob, brought back from the trash if it is only there."""
        path, trashed = self._blob(digest), self._trashed(digest)
        try:
            if path.exists() or not trashed.exists():
                return path
            if self._read_only:
                return trashed
            os.utime(trashed)
            path.parent.mkdir(parents=True, exist_ok=True)
            trashed.replace(path)
        except FileNotFoundError:
            pass  # another process brought it back
        except OSError as error:
            raise self._unreadable(trashed, error) from None
        return path

    def _trash(self, digest: str, unused_seconds: float) -> bool:
        """Moves a blob into the trash if it is unused, and tests again there; returns whether it did."""
        self._check_removal()
        path, trashed = self._blob(digest), self._trashed(digest)
        try:
            if self._age_seconds(path) < unused_seconds:
                return False
            trashed.parent.mkdir(parents=True, exist_ok=True)
            path.replace(trashed)
            if self._age_seconds(trashed) >= unused_seconds:
                os.utime(trashed)
                return True
            trashed.replace(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unremovable(path, error) from None
        return False

    def _record(self, stage: str, key: str) -> Path:
        check_name(stage, key)
        return self._root / "v1" / "ac" / stage / key[:2] / f"{key}.json"

    def _stages(self) -> list[Path]:
        folder = self._root / "v1" / "ac"
        try:
            return _entries(folder)
        except OSError as error:
            raise self._unreadable(folder, error) from None

    def _files(self, folder: Path, prefix: str) -> Iterator[tuple[Path, int, float]]:
        """The files two levels down whose names have that prefix: path, size, time of the last change."""
        try:
            for part in _entries(folder):
                if part.name.startswith(prefix[:2]):
                    for path in _entries(part):
                        with suppress(FileNotFoundError):  # another process removed it
                            status = path.stat()
                            if path.name.startswith(prefix):
                                yield path, status.st_size, status.st_mtime
        except OSError as error:
            raise self._unreadable(folder, error) from None

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(path, error) from None

    def _unreadable(self, path: Path, error: OSError) -> StoreError:
        return StoreError(f"the store cannot read {path} ({error.strerror}): name a folder of yours in FARM_STORE")

    def _refresh(self, path: Path, data: bytes | None) -> bool:
        """Refreshes a blob's age; False if it is being removed at this moment."""
        if self._read_only:
            return True
        try:
            if self._age_seconds(path) > FRESH_SECONDS:
                os.utime(path)
                path.stat()  # utime finds the file before it sets the age: another process may have removed it between
        except FileNotFoundError:
            return False
        except PermissionError:
            # Another user's file in a shared store: replaced by one of ours if possible.
            if data is not None:
                with suppress(StoreError):
                    self._write(path, data)
        except OSError as error:
            raise self._unreadable(path, error) from None
        return True

    def _remove(self, path: Path, may_go: Callable[[Path], bool]) -> bool:
        """Removes a file if `may_go` allows it; returns whether it did.

        The file is renamed first and tested again. A process that reads it meanwhile finds nothing and makes it again;
        one that read it before has refreshed its age.
        """
        self._check_removal()
        aside = path.with_name(f"{_GONE}{uuid.uuid4().hex}")
        try:
            if not may_go(path):
                return False
            path.rename(aside)
            if may_go(aside):
                aside.unlink()
                return True
            aside.replace(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unremovable(path, error) from None
        return False

    def _check_removal(self) -> None:
        if self._read_only:
            raise StoreError(f"the store {self._root} is read-only here: unset FARM_READ_ONLY to remove something")

    def _unremovable(self, path: Path, error: OSError) -> StoreError:
        return StoreError(f"the store cannot remove {path} ({error.strerror}): check the folder's permissions")

    def _write(self, path: Path, data: bytes) -> None:
        if self._read_only:
            raise StoreError(f"the store {self._root} is read-only here: unset FARM_READ_ONLY to build something")
        # `tempfile` would make a file that only its owner can read, but a store may be shared.
        temporary = path.with_name(f"{_NEW}{uuid.uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise StoreError(
                f"the store cannot write {path} ({error.strerror}): make room or name another folder in FARM_STORE"
            ) from None
        finally:
            with suppress(OSError):  # it exists only after a failure
                temporary.unlink()


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder by name; none if it does not exist."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
