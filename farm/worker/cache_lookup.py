"""What the store has from before: templates, cubins, and what the tools said of themselves."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from codegen.toolchain.tools import Toolchain, ToolFacts
from farm.errors import StoreError
from farm.store.contract import Store
from farm.worker.messages import CubinFacts, CubinResult, Failure, Fault

TEMPLATE_STAGE = "template"
CUBIN_STAGE = "cubin"
TOOLS_STAGE = "tools"


def find_template(store: Store, key: str) -> str | None:
    """The PTX of a template made before. A record whose blob is gone counts as none."""
    record = store.get_record(TEMPLATE_STAGE, key)
    try:
        ptx = None if record is None else store.get(str(record["ptx"]))
        return None if ptx is None else ptx.decode()
    except (KeyError, ValueError):
        return None  # written by something else: made again


def find_cubin(store: Store, key: str, *, whole: bool = False) -> CubinResult | None:
    """A cubin made before, or ptxas' refusal of it; of a `whole` layer also that it has to be cut into parts.

    A record whose blob is gone counts as none.
    """
    record = store.get_record(CUBIN_STAGE, key)
    if record is None:
        return None
    try:
        if whole and "in_parts" in record:
            return CubinResult(key, Failure(Fault.PARTS, str(record["in_parts"])), hit=True)
        if "error" in record:
            failure = Failure(Fault.INPUT, str(record["error"]), str(record["command"]), str(record["stderr"]))
            return CubinResult(key, failure, hit=True)
        facts = CubinFacts.from_json(record)
        return None if store.get(facts.cubin) is None else CubinResult(key, facts, hit=True)
    except (KeyError, TypeError, ValueError):
        return None  # written by something else: made again


def known_toolchain(toolchain: Toolchain, store: Store) -> Toolchain:
    """The toolchain with what its tools said of themselves when the store last saw these very files."""
    if (known := _recorded_facts(toolchain, store)) is not None:
        return replace(toolchain, known=known)
    key, facts = toolchain.fingerprint, toolchain.facts
    with suppress(StoreError):  # a store that cannot be written may still have all cubins
        store.put_record(
            TOOLS_STAGE, key, {"nvcc": facts.nvcc_version, "ptxas": facts.ptxas_version, "archs": list(facts.archs)}
        )
    return replace(toolchain, known=facts)


def unasked_toolchain(toolchain: Toolchain, store: Store) -> Toolchain:
    """The same without starting a tool, as far as that is possible: wrappers of tools have to be asked."""
    return replace(toolchain, known=_recorded_facts(toolchain, store) or toolchain.facts_in_files())


def _recorded_facts(toolchain: Toolchain, store: Store) -> ToolFacts | None:
    record = store.get_record(TOOLS_STAGE, toolchain.fingerprint)
    try:
        if record is not None:
            return ToolFacts(str(record["nvcc"]), str(record["ptxas"]), tuple(map(str, record["archs"])))
    except (KeyError, TypeError):
        pass  # written by something else: asked again
    return None
