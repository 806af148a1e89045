"""Cubins by way of their mask: its mould from the store, or made by ptxas, filled with a checkpoint's values."""

from __future__ import annotations

from collections.abc import Callable

from codegen.assemble import Cubin
from codegen.errors import MachineCodeError
from codegen.keys import mould_key
from codegen.layers import Weights
from codegen.machine.mould import Mould, check_values, fill, make_mould, mask_digest
from codegen.template import Template
from codegen.toolchain import Toolchain, ToolLimits
from farm.store.contract import Record, Store
from farm.worker.requests import CubinRequest

MOULD_STAGE = "mould"


class MouldBuilds:
    """A worker's moulds, kept in the store."""

    def __init__(
        self, store: Store, toolchain: Toolchain, put_record: Callable[[str, str, Record], None], *, recache: bool
    ) -> None:
        self._store = store
        self._toolchain = toolchain
        self._put_record = put_record
        self._recache = recache

    def assemble(self, request: CubinRequest, template: Template, weights: Weights, limits: ToolLimits) -> Cubin:
        """Raises MachineCodeError for what has to be left to ptxas, with the reason, and ToolError."""
        check_values(template, weights, request.part)
        mask = mask_digest(template.spec, weights)
        key = mould_key(
            request.template.key, mask, request.part, request.arch, request.options, self._toolchain.ptxas_version
        ).digest
        cubin = self._found(key, request.arch) or self._made(key, request, template, weights, limits)
        return fill(Mould(cubin, mask), template, weights, request.part)

    def _found(self, key: str, arch: str) -> Cubin | None:
        record = None if self._recache else self._store.get_record(MOULD_STAGE, key)
        if record is None:
            return None
        if "refused" in record:
            raise MachineCodeError(str(record["refused"]))
        data = self._store.get(str(record["cubin"]))
        if data is None:
            return None
        return Cubin(data, arch, int(record["registers"]), int(record["spill_bytes"]), float(record["seconds"]))

    def _made(self, key: str, request: CubinRequest, template: Template, weights: Weights, limits: ToolLimits) -> Cubin:
        try:
            mould = make_mould(template, weights, request.part, request.arch, self._toolchain, request.options, limits)
        except MachineCodeError as error:
            self._put_record(MOULD_STAGE, key, {"refused": str(error)})
            raise
        cubin = mould.cubin
        facts = {"registers": cubin.registers, "spill_bytes": cubin.spill_bytes, "seconds": cubin.seconds}
        self._put_record(MOULD_STAGE, key, {"cubin": self._store.put(cubin.data), **facts})
        return cubin
