"""Cubins without ptxas: a template's skeleton from the store, or made, and what is assembled into it."""

from __future__ import annotations

from collections.abc import Callable

from codegen.errors import MachineCodeError, ToolError
from codegen.ir.checkpoint import Weights
from codegen.keys import skeleton_key
from codegen.ptx.template import Template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.toolchain.ptxas import Cubin, skeleton_options
from codegen.toolchain.tools import Toolchain, ToolLimits
from farm.store.contract import Record, Store
from farm.worker.lru import SHAPES, Recent
from farm.worker.messages import CubinRequest
from farm.worker.refusable import RefusableStage

SKELETON_STAGE = "skeleton"


class DirectBuilds:
    """A worker's assemblers, one for each template and architecture; it keeps the last few."""

    def __init__(
        self, store: Store, toolchain: Toolchain, put_record: Callable[[str, str, Record], None], *, recache: bool
    ) -> None:
        self._toolchain = toolchain
        self._stage = RefusableStage(SKELETON_STAGE, store, put_record, recache=recache)
        self._assemblers: Recent[str, DirectAssembler] = Recent(SHAPES)
        self._made_seconds = 0.0

    def assemble(self, request: CubinRequest, template: Template, weights: Weights, limits: ToolLimits) -> Cubin:
        """Raises MachineCodeError for what has to be left to ptxas, with the reason, and ToolError."""
        key = skeleton_key_of(request, self._toolchain)
        assembler = self._assemblers.get(key, lambda: self._assembler(key, request, template, limits))
        return assembler.assemble(weights, request.part)

    def take_made_seconds(self) -> float:
        """What ptxas took for the skeletons that were made since this was last asked."""
        seconds, self._made_seconds = self._made_seconds, 0.0
        return seconds

    def _assembler(self, key: str, request: CubinRequest, template: Template, limits: ToolLimits) -> DirectAssembler:
        found = self._stage.found(key)
        data = self._make(key, request, template, limits) if found is None else found[1]
        return DirectAssembler.of(template, data, request.arch)

    def _make(self, key: str, request: CubinRequest, template: Template, limits: ToolLimits) -> bytes:
        try:
            made = make_skeleton(template, request.arch, self._toolchain, _options(request), limits)
        except (MachineCodeError, ToolError) as error:
            if type(error) not in (MachineCodeError, ToolError):
                raise  # out of time or memory, or crashed: may go well the next time
            reason = str(error) if isinstance(error, MachineCodeError) else f"no skeleton: {error}"
            self._stage.refuse(key, reason)
            raise MachineCodeError(reason) from error
        self._stage.keep(key, made.data, seconds=made.seconds)
        self._made_seconds += made.seconds
        return made.data


def skeleton_key_of(request: CubinRequest, toolchain: Toolchain) -> str:
    """The digest of its skeleton's key."""
    return skeleton_key(request.template.key, request.arch, _options(request), toolchain.ptxas_version).digest


def _options(request: CubinRequest) -> tuple[str, ...]:
    """Of its skeleton."""
    return skeleton_options(request.options, clusters=request.template.tiling.cluster > 1)
