"""Template, skeleton and weights -> cubin, without ptxas, in time linear in the non-zeros."""

from __future__ import annotations

import time

import numpy as np

from codegen.assemble import Cubin, assemble
from codegen.errors import MachineCodeError
from codegen.layers import Weights
from codegen.machine.marked import Marked
from codegen.machine.skeleton import Skeleton
from codegen.machine.splice import GroupValues, splice
from codegen.machine.stream import streams
from codegen.operators import tiled
from codegen.operators.stream import bits, values
from codegen.template import Template
from codegen.tiling import Part
from codegen.toolchain import DEFAULT_LIMITS, Toolchain, ToolLimits

ARCHITECTURES = ("sm_90",)
"""What the rules of this assembler have been checked against."""


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
    if arch not in ARCHITECTURES:
        raise MachineCodeError(f"the assembler knows {', '.join(ARCHITECTURES)}, not {arch}")
    marked = Marked.of(template)
    cubin = assemble(marked.ptx.encode("ascii"), arch, toolchain, options, limits)
    Skeleton.read(cubin.data, marked)
    return cubin


def assemble_directly(template: Template, skeleton: bytes, weights: Weights, part: Part, arch: str) -> Cubin:
    """The cubin of a part's K groups. Raises MachineCodeError for what the assembler does not do, with the reason."""
    began = time.perf_counter()
    layer, marked = tiled(template.spec, template.tiling), Marked.of(template)
    form = Skeleton.read(skeleton, marked)
    every, chosen = values(layer, weights), slice(part.first, part.end)
    kernels = every.weights[chosen]
    numbers = np.array(marked.sums) % marked.sums_per_row
    biases, exists = every.biases[chosen][:, numbers], every.exists[chosen][:, numbers]
    patterns = bits(layer.spec, kernels)
    made = streams(marked, form, patterns, (kernels != 0) & (patterns != 0))
    # To add -0.0 changes nothing, not even the sign of a zero: what ptxas is given has no addition there.
    added = np.where(biases == 0, np.float32(-0.0), biases).astype(np.float32).view(np.uint32)
    data = splice(form, part.first, made, GroupValues(added, exists))
    return Cubin(data, arch, form.file.registers, 0, time.perf_counter() - began)
