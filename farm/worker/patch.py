"""Cubins by value patch: the patch template of a mask, from the store or by ptxas, with the weights written in.

A sample of layers is assembled by ptxas too and compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from codegen.ir.checkpoint import Weights
from codegen.keys import patch_template_key
from codegen.ptx.template import Template
from codegen.sass.cubin import CubinFile
from codegen.sass.qualification import Assembler
from codegen.sass.value_patch import PatchTemplate, apply, check_values, make_patch_template, mask_digest
from codegen.toolchain.ptxas import Cubin
from codegen.toolchain.tools import Toolchain, ToolLimits
from farm.store.contract import Record, Store
from farm.worker.cache_lookup import PATCH_STAGE, RefusableStage
from farm.worker.messages import CubinRequest

SAMPLED_ONE_IN = 32
"""One of this many layers is compared with ptxas's."""


class PatchBuilds:
    """A worker's patch templates, kept in the store."""

    def __init__(
        self, store: Store, toolchain: Toolchain, put_record: Callable[[str, str, Record], None], *, recache: bool
    ) -> None:
        self._toolchain = toolchain
        self._stage = RefusableStage(PATCH_STAGE, store, put_record, recache=recache)

    def assemble(
        self, request: CubinRequest, template: Template, weights: Weights, limits: ToolLimits
    ) -> tuple[Cubin, Assembler]:
        """A patched cubin; the assembler is ptxas where that had to make the patch template first.

        Raises MachineCodeError, with the reason, if ptxas must make the cubin itself, and ToolError.
        """
        check_values(template, weights, request.part)
        mask = mask_digest(template.spec, weights)
        key = self._key(request, mask)
        if (found := self._found(key, request.arch)) is not None:
            return apply(PatchTemplate(found, mask), template, weights, request.part), "patch"
        made = self._made(key, request, template, weights, limits)
        cubin = apply(PatchTemplate(made, mask), template, weights, request.part)
        return replace(cubin, seconds=made.seconds + cubin.seconds), "ptxas"

    def refuse(self, request: CubinRequest, template: Template, weights: Weights, reason: str) -> None:
        """Leave all cubins of the weights' mask to ptxas from now on."""
        self._stage.refuse(self._key(request, mask_digest(template.spec, weights)), reason)

    def _key(self, request: CubinRequest, mask: str) -> str:
        return patch_template_key(
            request.template.key, mask, request.part, request.arch, request.options, self._toolchain.ptxas_version
        ).digest

    def _found(self, key: str, arch: str) -> Cubin | None:
        found = self._stage.find(key)
        if found is None:
            return None
        record, data = found
        try:
            return Cubin(data, arch, int(record["registers"]), int(record["spill_bytes"]), float(record["seconds"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None  # unreadable: make it again

    def _made(self, key: str, request: CubinRequest, template: Template, weights: Weights, limits: ToolLimits) -> Cubin:
        with self._stage.refusing(key, "no patch template"):
            patch = make_patch_template(
                template, weights, request.part, request.arch, self._toolchain, request.options, limits
            )
        cubin = patch.cubin
        self._stage.keep(
            key, cubin.data, registers=cubin.registers, spill_bytes=cubin.spill_bytes, seconds=cubin.seconds
        )
        return cubin


def is_sampled(weights: str) -> bool:
    """Whether the layer with this digest of weights is compared with ptxas's: the same layers on every machine."""
    return int(weights, 16) % SAMPLED_ONE_IN == 0


def difference(patched: Cubin, made: Cubin) -> str:
    """Difference of a patched cubin from ptxas's, in words; empty if they are equal."""
    if patched.data == made.data:
        return ""
    ours, theirs = (CubinFile.read(each.data).words for each in (patched, made))
    if len(ours) != len(theirs):
        where = f"{len(ours)} words instead of {len(theirs)}"
    elif (wrong := np.flatnonzero((ours != theirs).any(axis=1))).size:
        where = f"{len(wrong)} of {len(ours)} words, from word {wrong[0]} on"
    else:
        where = "outside the code"
    return f"the value patch differs from ptxas ({where}): ptxas's cubin is used, now and for this mask"
