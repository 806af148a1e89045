"""What is made once for many cubins and kept in the store, or refused for good: skeletons and patch templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codegen.errors import MachineCodeError
from farm.store.contract import Record, Store


class RefusableStage:
    """A stage of the store whose records have a cubin, or the reason why there is none."""

    def __init__(
        self, name: str, store: Store, put_record: Callable[[str, str, Record], None], *, recache: bool
    ) -> None:
        self._name = name
        self._store = store
        self._put_record = put_record
        self._recache = recache

    def found(self, key: str) -> tuple[Record, bytes] | None:
        """Facts and cubin, if they are there. Raises MachineCodeError for what was refused before."""
        record = None if self._recache else self._store.get_record(self._name, key)
        if record is None:
            return None
        if "refused" in record:
            raise MachineCodeError(str(record["refused"]))
        data = self._store.get(str(record["cubin"]))
        return None if data is None else (record, data)

    def keep(self, key: str, data: bytes, **facts: Any) -> None:
        self._put_record(self._name, key, {"cubin": self._store.put(data), **facts})

    def refuse(self, key: str, reason: str) -> None:
        self._put_record(self._name, key, {"refused": reason})
