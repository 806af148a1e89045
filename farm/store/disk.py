"""A store in a folder: `v1/cas/<aa>/<sha256>` for blobs, `v1/ac/<stage>/<aa>/<key>.json` for action records."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from pathlib import Path

from farm.errors import StoreError
from farm.store.contract import Record, blob_digest, check_name


class DiskStore:
    """Any number of processes may use the folder at once: files appear whole or not at all."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self._root = root
        self._read_only = read_only

    def get(self, digest: str) -> bytes | None:
        """The blob; None where it is missing or damaged."""
        data = self._read(self._blob(digest))
        return data if data is not None and blob_digest(data) == digest else None

    def put(self, data: bytes) -> str:
        """Writes a blob once and gives its digest; replaces one that is damaged."""
        digest = blob_digest(data)
        # Reading it back costs less than it saves: a damaged blob is replaced, a good one is not written again.
        if self.get(digest) is None:
            self._write(self._blob(digest), data)
        return digest

    def holds(self, digest: str) -> bool:
        """Whether there is a blob, right or damaged."""
        return self._blob(digest).exists()

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

    def describe(self) -> str:
        """Where it is, for people."""
        return f"folder {self._root}"

    def _blob(self, digest: str) -> Path:
        check_name("blob", digest)
        return self._root / "v1" / "cas" / digest[:2] / digest

    def _record(self, stage: str, key: str) -> Path:
        check_name(stage, key)
        return self._root / "v1" / "ac" / stage / key[:2] / f"{key}.json"

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"the store cannot read {path} ({error.strerror}): name a folder of yours in FARM_STORE"
            ) from None

    def _write(self, path: Path, data: bytes) -> None:
        if self._read_only:
            raise StoreError(f"the store {self._root} is read-only here: unset FARM_READ_ONLY to build something")
        # Not a file of `tempfile`: only its owner could read that, and a store may be shared.
        temporary = path.with_name(f".new-{uuid.uuid4().hex}")
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
