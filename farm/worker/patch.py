"""Cubins by way of their mask: its mould from the store, or made by ptxas, filled with a checkpoint's values."""

from __future__ import annotations

from collections.abc import Callable

from codegen.errors import MachineCodeError
from codegen.ir.checkpoint import Weights
from codegen.keys import mould_key
from codegen.ptx.template import Template
from codegen.sass.value_patch import Mould, check_values, fill, make_mould, mask_digest
from codegen.toolchain.ptxas import Cubin
from codegen.toolchain.tools import Toolchain, ToolLimits
from farm.store.contract import Record, Store
from farm.worker.messages import CubinRequest
from farm.worker.refusable import RefusableStage

MOULD_STAGE = "mould"


class MouldBuilds:
    """A worker's moulds, kept in the store."""

    def __init__(
        self, store: Store, toolchain: Toolchain, put_record: Callable[[str, str, Record], None], *, recache: bool
    ) -> None:
        self._toolchain = toolchain
        self._stage = RefusableStage(MOULD_STAGE, store, put_record, recache=recache)

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
        found = self._stage.found(key)
        if found is None:
            return None
        record, data = found
        return Cubin(data, arch, int(record["registers"]), int(record["spill_bytes"]), float(record["seconds"]))

    def _made(self, key: str, request: CubinRequest, template: Template, weights: Weights, limits: ToolLimits) -> Cubin:
        try:
            mould = make_mould(template, weights, request.part, request.arch, self._toolchain, request.options, limits)
        except MachineCodeError as error:
            self._stage.refuse(key, str(error))
            raise
        cubin = mould.cubin
        self._stage.keep(
            key, cubin.data, registers=cubin.registers, spill_bytes=cubin.spill_bytes, seconds=cubin.seconds
        )
        return cubin
