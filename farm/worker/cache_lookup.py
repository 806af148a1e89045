"""Cache lookups in the store: templates, cubins, intermediate cubins, and facts about the tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from codegen.errors import MachineCodeError, ToolError
from codegen.toolchain.compiler_files import stamp_of
from codegen.toolchain.tools import Toolchain, ToolFacts
from farm.errors import BlobLostError, StoreError
from farm.store.contract import Record, Store
from farm.worker.messages import CubinFacts, CubinResult, Failure, Fault

TEMPLATE_STAGE = "template"
CUBIN_STAGE = "cubin"
PATCH_STAGE = "patch"
TOOLS_STAGE = "tools"


class _UnreadableIsMiss:
    """Context manager that leaves its block at an unreadable record; the statement after the block returns the miss.

    A record may contain anything, and the coordinator reads it too. Errors of the store itself are raised.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, Exception) and not isinstance(error, StoreError)


def find_template(store: Store, key: str) -> str | None:
    """PTX of a stored template; None on a miss, also if the record's blob is gone."""
    record = store.get_record(TEMPLATE_STAGE, key)
    with _UnreadableIsMiss():
        ptx = None if record is None else store.get(str(record["ptx"]))
        return None if ptx is None else ptx.decode()
    return None


def has_template(store: Store, key: str) -> bool:
    """Whether a template is stored; its bytes are not read."""
    record = store.get_record(TEMPLATE_STAGE, key)
    with _UnreadableIsMiss():
        return record is not None and store.holds(str(record["ptx"]))
    return False


def find_cubin(store: Store, key: str, *, whole: bool = False) -> CubinResult | None:
    """A stored cubin or a stored failure of ptxas; None on a miss, also if the record's blob is gone or truncated.

    Its bytes are not read: `read_cubin` finds other damage. `whole` accepts a stored refusal to assemble the layer as
    one cubin, too.
    """
    record = store.get_record(CUBIN_STAGE, key)
    if record is None:
        return None
    with _UnreadableIsMiss():
        if whole and "in_parts" in record:
            return CubinResult(key, Failure(Fault.PARTS, str(record["in_parts"])), hit=True)
        if "error" in record:
            failure = Failure(Fault.INPUT, str(record["error"]), str(record["command"]), str(record["stderr"]))
            return CubinResult(key, failure, hit=True)
        facts = CubinFacts.from_json(record)
        return CubinResult(key, facts, hit=True) if store.holds(facts.cubin, facts.cubin_bytes) else None
    return None


def has_patch_template(store: Store, key: str) -> bool | None:
    """Whether a mask's patch template is stored; False if it is known that there can be none, None on a miss."""
    record = store.get_record(PATCH_STAGE, key)
    with _UnreadableIsMiss():
        if record is not None and "refused" in record:
            return False
        return True if record is not None and store.holds(str(record["cubin"])) else None
    return None


def read_cubin(store: Store, digest: str | None, name: str) -> bytes:
    """The bytes of a cubin; a damaged one is removed, so that the next lookup is a miss and it is built again.

    Raises BlobLostError if it is lost or damaged; `name` stands in the message.
    """
    way_out = "run farm compile again"
    if digest is not None:
        data = store.get(digest)
        if data is not None:
            return data
        try:
            store.remove_damaged(digest)
        except StoreError:  # read-only, or without the right to remove: it stays a hit
            way_out += " with FARM_RECACHE=1"
    raise BlobLostError(f"{store.describe()} has lost the cubin {name}: {way_out}")


def known_toolchain(toolchain: Toolchain, store: Store) -> Toolchain:
    """A toolchain with the facts about its tools, from the store if it knows these files, else from the tools."""
    if (known := _recorded_facts(toolchain, store)) is not None:
        return replace(toolchain, known=known)
    key, facts = toolchain.fingerprint, toolchain.facts
    with suppress(StoreError):  # a read-only store may still have all cubins
        record = {
            "nvcc": facts.nvcc_version,
            "ptxas": facts.ptxas_version,
            "archs": list(facts.archs),
            "cuda_root": str(facts.cuda_root),
            "stamp": stamp_of(facts.cuda_root),
            "compiler_files": facts.compiler_digest,
        }
        store.put_record(TOOLS_STAGE, key, record)
    return replace(toolchain, known=facts)


def unasked_toolchain(toolchain: Toolchain, store: Store) -> Toolchain:
    """A toolchain with facts from the store or the tools' files; a tool runs only if it is a wrapper script."""
    return replace(toolchain, known=_recorded_facts(toolchain, store) or toolchain.facts_in_files())


def _recorded_facts(toolchain: Toolchain, store: Store) -> ToolFacts | None:
    record = store.get_record(TOOLS_STAGE, toolchain.fingerprint)
    try:
        if record is None or stamp_of(root := Path(str(record["cuda_root"]))) != record["stamp"]:
            return None
        archs = tuple(map(str, record["archs"]))
        return ToolFacts(str(record["nvcc"]), str(record["ptxas"]), archs, root, str(record["compiler_files"]))
    except (KeyError, TypeError, ValueError, OSError):
        return None  # unreadable: ask the tools


class RefusableStage:
    """A stage of the store whose records hold a cubin, or the reason why there can be none."""

    def __init__(
        self, name: str, store: Store, put_record: Callable[[str, str, Record], None], *, recache: bool
    ) -> None:
        self._name = name
        self._store = store
        self._put_record = put_record
        self._recache = recache

    def find(self, key: str) -> tuple[Record, bytes] | None:
        """Record and cubin; None on a miss, also if it is unreadable. Raises MachineCodeError if it is a refusal."""
        record = None if self._recache else self._store.get_record(self._name, key)
        if record is None:
            return None
        if "refused" in record:
            raise MachineCodeError(str(record["refused"]))
        with _UnreadableIsMiss():
            data = self._store.get(str(record["cubin"]))
            return None if data is None else (record, data)
        return None

    def keep(self, key: str, data: bytes, **facts: Any) -> None:
        """Store a cubin with facts about it."""
        self._put_record(self._name, key, {"cubin": self._store.put(data), **facts})

    def refuse(self, key: str, reason: str) -> None:
        """Store the reason why there can be no cubin."""
        self._put_record(self._name, key, {"refused": reason})

    @contextmanager
    def refusing(self, key: str, without: str) -> Iterator[None]:
        """Stores why there can be no cubin if the block's tool or code generation refuses it for good.

        Raises MachineCodeError with that reason; one of a tool begins with `without`, such as "no skeleton".
        """
        try:
            yield
        except (MachineCodeError, ToolError) as error:
            if type(error) not in (MachineCodeError, ToolError):
                raise  # timeout, out of memory or a crash: may succeed next time
            reason = str(error) if isinstance(error, MachineCodeError) else f"{without}: {error}"
            self.refuse(key, reason)
            raise MachineCodeError(reason) from error
