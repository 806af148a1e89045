"""Cubins by direct assembly: instructions assembled into the skeleton of a template, which the store keeps."""

from __future__ import annotations

import time
from collections.abc import Callable

from codegen.ir.checkpoint import Weights
from codegen.ir.tiling import Part
from codegen.keys import skeleton_key
from codegen.ptx.template import Template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.assemble.group_body import GroupBody
from codegen.sass.assemble.link import LinkedCode
from codegen.toolchain.ptxas import Cubin, skeleton_options
from codegen.toolchain.tools import Toolchain, ToolLimits
from farm.store.contract import Record, Store
from farm.worker.cache_lookup import RefusableStage
from farm.worker.lru import DISTINCT_SHAPES, LruCache
from farm.worker.messages import CubinRequest

SKELETON_STAGE = "skeleton"


class DirectBuilds:
    """The assemblers of a worker, one per template and architecture, in an LRU cache.

    Architectures that write code alike share it: the last two are kept.
    """

    def __init__(
        self, store: Store, toolchain: Toolchain, put_record: Callable[[str, str, Record], None], *, recache: bool
    ) -> None:
        self._toolchain = toolchain
        self._stage = RefusableStage(SKELETON_STAGE, store, put_record, recache=recache)
        self._assemblers: LruCache[str, DirectAssembler] = LruCache(DISTINCT_SHAPES)
        self._codes: LruCache[tuple[GroupBody, str, Part], LinkedCode] = LruCache(2)
        self._made_seconds = 0.0

    def assemble(self, request: CubinRequest, template: Template, weights: Weights, limits: ToolLimits) -> Cubin:
        """Assemble a cubin. Raises MachineCodeError, with the reason, if ptxas must do it, and ToolError."""
        key = skeleton_key_of(request, self._toolchain)
        assembler = self._assemblers.get(key, lambda: self._assembler(key, request, template, limits))
        began, body = time.perf_counter(), assembler.frame.body
        code = self._codes.get((body, request.weights, request.part), lambda: assembler.code(weights, request.part))
        return assembler.cubin(code, began)

    def take_made_seconds(self) -> float:
        """Time of ptxas for the skeletons made since the last call."""
        seconds, self._made_seconds = self._made_seconds, 0.0
        return seconds

    def _assembler(self, key: str, request: CubinRequest, template: Template, limits: ToolLimits) -> DirectAssembler:
        found = self._stage.find(key)
        data = self._make(key, request, template, limits) if found is None else found[1]
        return DirectAssembler.of(template, data, request.arch, self._assemblers.values())

    def _make(self, key: str, request: CubinRequest, template: Template, limits: ToolLimits) -> bytes:
        with self._stage.refusing(key, "no skeleton"):
            made = make_skeleton(template, request.arch, self._toolchain, _options(request), limits)
        self._stage.keep(key, made.data, seconds=made.seconds)
        self._made_seconds += made.seconds
        return made.data


def skeleton_key_of(request: CubinRequest, toolchain: Toolchain) -> str:
    """Digest of the key of the skeleton that a request needs."""
    return skeleton_key(request.template.key, request.arch, _options(request), toolchain.ptxas_version).digest


def _options(request: CubinRequest) -> tuple[str, ...]:
    """Options of ptxas for the skeleton."""
    return skeleton_options(request.options, clusters=request.template.tiling.cluster > 1)
