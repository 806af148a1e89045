"""Cubins by value patch: the patch template of a mask, from the store or by ptxas, with the weights written in."""

from __future__ import annotations

from collections.abc import Callable

from codegen.errors import MachineCodeError
from codegen.ir.checkpoint import Weights
from codegen.keys import patch_template_key
from codegen.ptx.template import Template
from codegen.sass.value_patch import PatchTemplate, apply, check_values, make_patch_template, mask_digest
from codegen.toolchain.ptxas import Cubin
from codegen.toolchain.tools import Toolchain, ToolLimits
from farm.store.contract import Record, Store
from farm.worker.cache_lookup import RefusableStage
from farm.worker.messages import CubinRequest

PATCH_STAGE = "patch"


class PatchBuilds:
    """A worker's patch templates, kept in the store."""

    def __init__(
        self, store: Store, toolchain: Toolchain, put_record: Callable[[str, str, Record], None], *, recache: bool
    ) -> None:
        self._toolchain = toolchain
        self._stage = RefusableStage(PATCH_STAGE, store, put_record, recache=recache)

    def assemble(self, request: CubinRequest, template: Template, weights: Weights, limits: ToolLimits) -> Cubin:
        """Patch a cubin. Raises MachineCodeError, with the reason, if ptxas must do it, and ToolError."""
        check_values(template, weights, request.part)
        mask = mask_digest(template.spec, weights)
        key = patch_template_key(
            request.template.key, mask, request.part, request.arch, request.options, self._toolchain.ptxas_version
        ).digest
        cubin = self._found(key, request.arch) or self._made(key, request, template, weights, limits)
        return apply(PatchTemplate(cubin, mask), template, weights, request.part)

    def _found(self, key: str, arch: str) -> Cubin | None:
        found = self._stage.find(key)
        if found is None:
            return None
        record, data = found
        return Cubin(data, arch, int(record["registers"]), int(record["spill_bytes"]), float(record["seconds"]))

    def _made(self, key: str, request: CubinRequest, template: Template, weights: Weights, limits: ToolLimits) -> Cubin:
        try:
            patch = make_patch_template(
                template, weights, request.part, request.arch, self._toolchain, request.options, limits
            )
        except MachineCodeError as error:
            self._stage.refuse(key, str(error))
            raise
        cubin = patch.cubin
        self._stage.keep(
            key, cubin.data, registers=cubin.registers, spill_bytes=cubin.spill_bytes, seconds=cubin.seconds
        )
        return cubin
