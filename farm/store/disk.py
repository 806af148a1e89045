"""A store in a folder: `v1/cas/<aa>/<sha256>` for blobs, `v1/ac/<stage>/<aa>/<key>.json` for action records."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from farm.errors import StoreError
from farm.store.contract import (
    FRESH_SECONDS,
    Record,
    StoredBlob,
    StoredRecord,
    blob_digest,
    check_beginning,
    check_name,
    is_name,
)

_NEW = ".new-"
_GONE = ".gone-"
"""Files that are being written, and that are being removed."""


class DiskStore:
    """Any number of processes may use the folder at once: files appear whole or not at all."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self._root = root
        self._read_only = read_only

    def get(self, digest: str) -> bytes | None:
        """The blob; None where it is missing or damaged."""
        path = self._blob(digest)
        data = self._read(path)
        if data is None or blob_digest(data) != digest:
            return None
        return data if self._refresh(path, data) else None

    def put(self, data: bytes) -> str:
        """Writes a blob once and gives its digest; replaces one that is damaged."""
        digest = blob_digest(data)
        # Reading it back costs less than it saves: a damaged blob is replaced, a good one is not written again.
        if self.get(digest) is None:
            self._write(self._blob(digest), data)
        return digest

    def holds(self, digest: str) -> bool:
        """Whether there is a blob, right or damaged."""
        path = self._blob(digest)
        return path.exists() and self._refresh(path, None)

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record; None where it is missing or damaged."""
        data = self._read(self._record(stage, key))
        try:
            record = None if data is None else json.loads(data)
        except ValueError:
            return None
        return record if isinstance(record, dict) else None

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Writes an action record; the last one wins."""
        self._write(self._record(stage, key), json.dumps(record, sort_keys=True).encode())

    def blobs(self, beginning: str = "") -> Iterator[StoredBlob]:
        """Every blob whose digest begins so, right or damaged."""
        check_beginning(beginning)
        now = time.time()
        for path, size_bytes, modified in self._files(self._root / "v1" / "cas", beginning):
            if is_name("blob", path.name):
                yield StoredBlob(path.name, size_bytes, now - modified)

    def records(self, beginning: str = "") -> Iterator[StoredRecord]:
        """Every action record whose key begins so, of all stages."""
        check_beginning(beginning)
        now = time.time()
        for stage in _entries(self._root / "v1" / "ac"):
            for path, size_bytes, modified in self._files(stage, beginning):
                if path.suffix == ".json" and is_name(stage.name, path.stem):
                    yield StoredRecord(stage.name, path.stem, size_bytes, now - modified)

    def is_damaged(self, digest: str) -> bool:
        """Whether there is a blob with other bytes than its digest says."""
        data = self._read(self._blob(digest))
        return data is not None and blob_digest(data) != digest

    def remove_blob(self, digest: str, unused_seconds: float) -> bool:
        """Removes a blob unless it was written or asked for within that time; whether it did."""
        return self._remove(self._blob(digest), lambda path: _age_seconds(path) >= unused_seconds)

    def remove_damaged(self, digest: str) -> bool:
        """Removes a blob if it is damaged; whether it did."""
        return self._remove(self._blob(digest), lambda path: blob_digest(path.read_bytes()) != digest)

    def remove_record(self, stage: str, key: str) -> None:
        """Removes an action record, if it is there."""
        self._remove(self._record(stage, key), lambda _: True)

    def remove_leftovers(self, unused_seconds: float) -> int:
        """Removes what killed writers left half written, that long ago; how many bytes that were."""
        freed_bytes = 0
        for folder in (self._root / "v1" / "cas", *_entries(self._root / "v1" / "ac")):
            for path, size_bytes, _ in self._files(folder, ""):
                if path.name.startswith((_NEW, _GONE)) and self._remove(
                    path, lambda path: _age_seconds(path) >= unused_seconds
                ):
                    freed_bytes += size_bytes
        return freed_bytes

    def describe(self) -> str:
        """Where it is, for people."""
        return f"folder {self._root}"

    def _blob(self, digest: str) -> Path:
        check_name("blob", digest)
        return self._root / "v1" / "cas" / digest[:2] / digest

    def _record(self, stage: str, key: str) -> Path:
        check_name(stage, key)
        return self._root / "v1" / "ac" / stage / key[:2] / f"{key}.json"

    def _files(self, folder: Path, beginning: str) -> Iterator[tuple[Path, int, float]]:
        """The files two levels down whose names begin so: path, bytes, time of the last change."""
        try:
            for part in _entries(folder):
                if part.name.startswith(beginning[:2]):
                    for path in _entries(part):
                        with suppress(FileNotFoundError):  # another process removed it
                            status = path.stat()
                            if path.name.startswith(beginning):
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
        """Makes a blob young again; False if it is being removed at this moment."""
        if self._read_only:
            return True
        try:
            if _age_seconds(path) > FRESH_SECONDS:
                os.utime(path)
        except FileNotFoundError:
            return False
        except PermissionError:
            # A file of somebody else in a shared store: one of ours takes its place, if it can.
            if data is not None:
                with suppress(StoreError):
                    self._write(path, data)
        except OSError as error:
            raise self._unreadable(path, error) from None
        return True

    def _remove(self, path: Path, may_go: Callable[[Path], bool]) -> bool:
        """Removes a file that may go; whether it did.

        It is set aside first and looked at again there. Who asks for it meanwhile does not find it, and makes it
        anew; who asked before has made it young.
        """
        if self._read_only:
            raise StoreError(f"the store {self._root} is read-only here: unset FARM_READ_ONLY to remove something")
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
            raise StoreError(
                f"the store cannot remove {path} ({error.strerror}): check the folder's permissions"
            ) from None
        return False

    def _write(self, path: Path, data: bytes) -> None:
        if self._read_only:
            raise StoreError(f"the store {self._root} is read-only here: unset FARM_READ_ONLY to build something")
        # Not a file of `tempfile`: only its owner could read that, and a store may be shared.
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
            with suppress(OSError):  # it is there only if something went wrong
                temporary.unlink()


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, by name; nothing where there is none."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _age_seconds(path: Path) -> float:
    return time.time() - path.stat().st_mtime
