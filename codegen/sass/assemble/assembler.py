"""Template, skeleton and weights -> cubin, without ptxas, in time linear in the non-zeros."""

from __future__ import annotations

import time
from dataclasses import dataclass

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
from codegen.sass.assemble.link import Frame, GroupValues, splice
from codegen.sass.assemble.weight_code import streams
from codegen.sass.cubin import CubinFile
from codegen.sass.qualification import unsupported_reason
from codegen.sass.skeleton.marker_ptx import APART, DEMANDS, LAST_DEMAND, Marked
from codegen.sass.skeleton.reader import Skeleton
from codegen.sass.verify.hazards import prove
from codegen.toolchain.ptxas import Cubin, assemble
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain, ToolLimits

SPILL_BYTES = 64
"""Most that a skeleton may move to local memory and back, for each chunk: addresses beside hundreds of products."""
RUNNING_SPILL_BYTES = 12
"""The same of one whose streams run on from chunk to chunk, which is worth a little: more, and another is better."""


def make_skeleton(
    template: Template,
    arch: str,
    toolchain: Toolchain,
    options: tuple[str, ...] = ("-O3",),
    limits: ToolLimits = DEFAULT_LIMITS,
) -> Cubin:
    """The cubin of a template without its multiply-adds: ptxas, once per template and architecture.

    Raises MachineCodeError if the assembler can do nothing with it, with the reason, and what `assemble` raises.
    """
    if reason := unsupported_reason(template.spec, template.tiling, arch):
        raise MachineCodeError(reason)
    running: list[Cubin] = []
    others: list[Cubin] = []
    refusal = MachineCodeError("its skeleton needs too much local memory")
    tried: set[str] = set()
    for demand in (*DEMANDS, LAST_DEMAND, *APART):
        if (running and not demand.runs_on) or (others and demand in (LAST_DEMAND, APART[0])):
            break
        try:
            marked = Marked.of(template, demand)
        except MachineCodeError:
            if demand.apart:
                break
            raise
        if marked.ptx in tried:
            continue
        tried.add(marked.ptx)
        cubin = assemble(marked.ptx.encode("ascii"), arch, toolchain, options, limits)
        try:
            skeleton = Skeleton.read(cubin.data, marked)
            Frame.of(skeleton)
        except MachineCodeError as error:
            refusal = error
            continue
        if not cubin.spill_bytes:
            return cubin
        if skeleton.runs_on and cubin.spill_bytes <= RUNNING_SPILL_BYTES * marked.chunks:
            running.append(cubin)
        elif (skeleton.turn_spill_bytes if demand.apart else cubin.spill_bytes) <= SPILL_BYTES * marked.chunks:
            others.append(cubin)
    if not running and not others:
        raise refusal
    return min(running or others, key=lambda cubin: cubin.spill_bytes)


@dataclass(frozen=True, eq=False)
class DirectAssembler:
    """Makes the cubins of one template for one architecture."""

    template: Template
    arch: str
    marked: Marked
    frame: Frame

    @staticmethod
    def of(template: Template, skeleton: bytes, arch: str) -> DirectAssembler:
        """Raises MachineCodeError if this is not the skeleton of the template."""
        marked = Marked.of(template)
        return DirectAssembler(template, arch, marked, Frame.of(Skeleton.read(skeleton, marked)))

    def assemble(self, weights: Weights, part: Part) -> Cubin:
        """The cubin of a part's K groups, proved. Raises MachineCodeError for what cannot be made, with the reason."""
        began = time.perf_counter()
        layer, marked = tiled(self.template.spec, self.template.tiling), self.marked
        skeleton = self.frame.skeleton
        every, chosen = values(layer, weights), slice(part.first, part.end)
        kernels = every.weights[chosen]
        biases = every.biases[chosen]
        patterns = bits(layer.spec, kernels)
        nonzero = (kernels != 0) & (patterns != 0)
        never = np.zeros((*nonzero.shape[:2], len(marked.sums.registers)), dtype=np.bool_)
        added = added_up_after(layer, nonzero) if marked.sums.wide else never
        bounds, leaf = every.bounds[chosen], self.frame.leaf
        made = streams(marked, skeleton, patterns, nonzero, added, bounds, leaf.between, leaf.finish, leaf.scoreboards)
        alone = layer.tiling.cluster == 1  # what other blocks have added up, ptxas cannot know
        if marked.sums.packed and alone and _has_constants(layer.spec, made.untouched, every.exists[chosen]):
            raise MachineCodeError(
                "an activation of an output channel without weights, which ptxas rounds otherwise than a GPU does"
            )
        # To add -0.0 changes nothing, not even the sign of a zero: what ptxas is given has no addition there.
        kept = np.where(biases == 0, np.float32(-0.0), biases).astype(np.float32).view(np.uint32)
        data = splice(self.frame, part.first, made, GroupValues(kept, every.exists[chosen]))
        prove(CubinFile.read(data))
        return Cubin(data, self.arch, skeleton.registers, skeleton.spill_bytes, time.perf_counter() - began)


def _has_constants(spec: LayerSpec, untouched: NDArray[np.bool_], exists: NDArray[np.bool_]) -> bool:
    """Whether a sum without a product [groups, sums], of those that exist [groups, sums of a row], goes through what
    ptxas then computes itself, not as MUFU does.
    """
    groups, in_row = exists.shape
    absent = untouched.reshape(groups, -1, in_row) & exists[:, np.newaxis]
    return may_have_constants(spec) and bool(absent.any())
