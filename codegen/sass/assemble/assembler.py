"""Direct assembler: template, skeleton and weights -> cubin without ptxas, in time linear in the non-zeros."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Part
from codegen.kernels import tiled
from codegen.kernels.weight_stream import bits, values
from codegen.ptx.rewrite import added_up_after, may_have_constants
from codegen.ptx.template import Template
from codegen.sass.assemble.link import Frame, GroupValues, LinkedCode, link
from codegen.sass.assemble.weight_code import ChunkWeights, WeightCode
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.architectures import architecture_named
from codegen.sass.qualification import unsupported_reason
from codegen.sass.skeleton.marker_ptx import DEMANDS, LAST_DEMAND, PAIRED_DEMAND, RESERVED_DEMANDS, MarkerPtx
from codegen.sass.skeleton.reader import Skeleton
from codegen.sass.verify.hazards import check_cubin
from codegen.toolchain.ptxas import Cubin, assemble
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain, ToolLimits

SPILL_BYTES = 64
"""Spill limit of a skeleton, per chunk: hundreds of products outweigh a few spilled addresses."""
OVERLAPPED_SPILL_BYTES = 12
"""Spill limit per chunk with overlapped chunks: above it a skeleton without overlap is faster."""


def make_skeleton(
    template: Template,
    arch: str,
    toolchain: Toolchain,
    options: tuple[str, ...] = ("-O3",),
    limits: ToolLimits = DEFAULT_LIMITS,
) -> Cubin:
    """Makes the skeleton of a template, its cubin without multiply-adds: ptxas, once per template and architecture.

    Raises MachineCodeError with the reason if the assembler cannot use it, and what `assemble` raises.
    """
    if reason := unsupported_reason(template.spec, template.tiling, arch):
        raise MachineCodeError(reason)
    architecture = architecture_named(arch)
    overlapped: list[Cubin] = []
    others: list[Cubin] = []
    refusal = MachineCodeError("the skeleton spills too many registers to local memory")
    tried: set[str] = set()
    for demand in (*DEMANDS, LAST_DEMAND, *RESERVED_DEMANDS, PAIRED_DEMAND):
        in_need = demand in (LAST_DEMAND, RESERVED_DEMANDS[0], PAIRED_DEMAND)
        if (overlapped and not demand.overlaps) or (others and in_need):
            break
        try:
            marker_ptx = MarkerPtx.of(template, architecture, demand)
        except MachineCodeError:
            if demand.reserved:
                continue
            raise
        if marker_ptx.ptx in tried:
            continue
        tried.add(marker_ptx.ptx)
        cubin = assemble(marker_ptx.ptx.encode("ascii"), arch, toolchain, options, limits)
        try:
            skeleton = Skeleton.read(cubin.data, marker_ptx)
            Frame.of(skeleton)
        except MachineCodeError as error:
            refusal = error
            continue
        if not cubin.spill_bytes:
            return cubin
        if skeleton.overlaps and cubin.spill_bytes <= OVERLAPPED_SPILL_BYTES * marker_ptx.chunks:
            overlapped.append(cubin)
        elif (skeleton.loop_spill_bytes if demand.reserved else cubin.spill_bytes) <= SPILL_BYTES * marker_ptx.chunks:
            others.append(cubin)
    if not overlapped and not others:
        raise refusal
    return min(overlapped or others, key=lambda cubin: cubin.spill_bytes)


@dataclass(frozen=True, eq=False)
class DirectAssembler:
    """Assembles the cubins of one template for one architecture."""

    template: Template
    arch: str
    marker_ptx: MarkerPtx
    frame: Frame

    @staticmethod
    def of(template: Template, skeleton: bytes, arch: str, known: Iterable[DirectAssembler] = ()) -> DirectAssembler:
        """Reads a skeleton. Raises MachineCodeError if it is not that of the template.

        Shares the frame of a `known` assembler that writes the same code for another architecture.
        """
        architecture, file = architecture_named(arch), CubinFile.read(skeleton)
        for each in known:
            if each.template is template and each._has_code_of(file, architecture):
                return replace(each, arch=arch, frame=each.frame.of_file(file))
        marker_ptx = MarkerPtx.of(template, architecture)
        return DirectAssembler(template, arch, marker_ptx, Frame.of(Skeleton.read(skeleton, marker_ptx)))

    def _has_code_of(self, file: CubinFile, architecture: Architecture) -> bool:
        own = self.frame.skeleton.file
        return (
            self.frame.skeleton.architecture.writes_like(architecture)
            and own.registers == file.registers
            and np.array_equal(own.words, file.words)
            and np.array_equal(own.jump_tables, file.jump_tables)
        )

    def assemble(self, weights: Weights, part: Part) -> Cubin:
        """Assembles a part's K groups and checks the cubin for hazards.

        Raises MachineCodeError with the reason where that is impossible.
        """
        began = time.perf_counter()
        return self.cubin(self.code(weights, part), began)

    def cubin(self, code: LinkedCode, began: float) -> Cubin:
        """Cubin of linked code; `began` is the start of its assembly by the performance counter."""
        skeleton = self.frame.skeleton
        data = skeleton.file.with_code(code.words, code.moved, skeleton.registers)
        return Cubin(data, self.arch, skeleton.registers, skeleton.spill_bytes, time.perf_counter() - began)

    def code(self, weights: Weights, part: Part) -> LinkedCode:
        """The code of a part's K groups, checked for hazards. Raises MachineCodeError like `assemble`."""
        layer, marker_ptx = tiled(self.template.spec, self.template.tiling), self.marker_ptx
        skeleton = self.frame.skeleton
        every, chosen = values(layer, weights), slice(part.first, part.end)
        channels = every.weights[chosen]
        biases = every.biases[chosen]
        patterns = bits(layer.spec, channels)
        nonzero = (channels != 0) & (patterns != 0)
        never = np.zeros((*nonzero.shape[:2], len(marker_ptx.accumulators.registers)), dtype=np.bool_)
        added = added_up_after(layer, nonzero) if marker_ptx.accumulators.wide else never
        code = WeightCode.of(skeleton, self.frame.body, ChunkWeights(patterns, nonzero, added, every.bounds[chosen]))
        alone = layer.tiling.cluster == 1  # ptxas cannot know the sums of other blocks
        if (
            marker_ptx.accumulators.packed
            and alone
            and _has_constants(layer.spec, code.untouched, every.exists[chosen])
        ):
            raise MachineCodeError("output channel without weights: ptxas rounds its activation differently than a GPU")
        # Adding -0.0 changes nothing, not even the sign of a zero: the rewritten PTX has no addition there.
        kept = np.where(biases == 0, np.float32(-0.0), biases).astype(np.float32).view(np.uint32)
        linked = link(self.frame, part.first, code, GroupValues(kept, every.exists[chosen]))
        check_cubin(CubinFile.read(skeleton.file.with_code(linked.words, linked.moved, skeleton.registers)))
        return linked


def _has_constants(spec: LayerSpec, untouched: NDArray[np.bool_], exists: NDArray[np.bool_]) -> bool:
    """Whether ptxas computes an activation itself: that of an accumulator without a product.

    `untouched` is [groups, accumulators], `exists` [groups, accumulators of a row].
    """
    groups, in_row = exists.shape
    absent = untouched.reshape(groups, -1, in_row) & exists[:, np.newaxis]
    return may_have_constants(spec) and bool(absent.any())
