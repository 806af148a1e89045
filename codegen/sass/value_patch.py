"""The value patch: one cubin for a mask, and that of any checkpoint of this mask by overwriting its immediates.

A mould is what ptxas makes of weights that are not zero where the mask is not, each with a value of its own: a tag.
Where a tag stands in the code, the weight belongs. ptxas's code depends on which weights there are, not on their
values, so that a filled mould is byte for byte what ptxas makes of the weights. Two exceptions are refused: float16's
1.0, and sums that begin with the same product, which ptxas computes once.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import LayerSpec, is_bounded
from codegen.ir.tiling import Part
from codegen.kernels import tiled
from codegen.kernels.placeholders import FIRST_BIAS, FIRST_WEIGHT, MOST_PLACEHOLDERS
from codegen.kernels.weight_stream import bits, slots, values
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.encoding import IMMEDIATE, OPCODE
from codegen.sass.isa.opcodes import FADD_IMMEDIATE, FFMA_IMMEDIATE, HFMA2_IMMEDIATE, HFMA2_MMA_IMMEDIATE
from codegen.toolchain.ptxas import Cubin, assemble
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain, ToolLimits

_HALF_ONE: Final = 0x3C003C00
"""1.0 twice: ptxas multiplies by it with another instruction."""
_LARGEST_HALF: Final = 0x7BFF
_MULTIPLY_ADDS: Final = (FFMA_IMMEDIATE, HFMA2_IMMEDIATE, HFMA2_MMA_IMMEDIATE)

Patterns = NDArray[np.uint32]
"""Immediates as they stand in the code."""


@dataclass(frozen=True, eq=False)
class Mould:
    """A cubin with tags in the place of a part's weights."""

    cubin: Cubin
    mask: str
    """Digest of which weights and biases of the layer are not zero."""


def mask_digest(spec: LayerSpec, weights: Weights) -> str:
    """What a mould is for: which weights and biases leave an instruction."""
    there = [_is_there(spec, weights), weights.bias != 0]
    return hashlib.sha256(b"".join(np.packbits(each).tobytes() for each in there)).hexdigest()


def make_mould(
    template: Template,
    weights: Weights,
    part: Part,
    arch: str,
    toolchain: Toolchain,
    options: tuple[str, ...] = ("-O3",),
    limits: ToolLimits = DEFAULT_LIMITS,
) -> Mould:
    """The mould of these weights' mask, by ptxas. Raises MachineCodeError where there is none, else what it raises."""
    if template.tiling.form == "full":
        raise MachineCodeError("a template of the full form has placeholders of its own")
    if is_bounded(template.spec):
        raise MachineCodeError("the bounds of its inputs are values in the code too")
    tagged = _tagged(template.spec, weights)
    made = assemble(rewrite(template, tagged, part).ptx, arch, toolchain, options, limits)
    mould = Mould(made, mask_digest(template.spec, weights))
    _filled(mould, template, tagged, tagged, part)  # every tag is where it should be
    return mould


def fill(mould: Mould, template: Template, weights: Weights, part: Part) -> Cubin:
    """The cubin of weights with the mould's mask, in milliseconds.

    Raises MachineCodeError for another mask, for values whose code is another, and if a tag is not found as often as
    its weight stands in the PTX.
    """
    began = time.perf_counter()
    if mask_digest(template.spec, weights) != mould.mask:
        raise MachineCodeError("the weights have another mask than the mould")
    check_values(template, weights, part)
    data = _filled(mould, template, _tagged(template.spec, weights), weights, part)
    return replace(mould.cubin, data=data, seconds=time.perf_counter() - began)


def check_values(template: Template, weights: Weights, part: Part) -> None:
    """Raises MachineCodeError for values of which ptxas makes other code than of other values."""
    if template.spec.data_type == "float16" and (bits(template.spec, weights.kernel) == _HALF_ONE).any():
        raise MachineCodeError("a float16 weight of 1.0, for which ptxas has another instruction")
    if _begin_alike(template, weights, part):
        raise MachineCodeError("two sums begin with the same product, which ptxas computes once")


def _begin_alike(template: Template, weights: Weights, part: Part) -> bool:
    """Whether two sums of a K group start from zero with one input and equal weights."""
    layer, form = tiled(template.spec, template.tiling), template.rolled
    order = np.argsort(form.weight_line, kind="stable")  # as the PTX has the products of a copy
    chosen = values(layer, weights).weights[part.first : part.end]
    patterns = bits(layer.spec, chosen)[:, :, order]
    there = (chosen[:, :, order] != 0) & (patterns != 0)
    sums, loads = slots(layer).sums[order], form.load_of_slot[order]
    begins = []
    for number in np.unique(sums):
        places = np.flatnonzero(sums == number)
        of_sum = there[:, :, places]
        begin = of_sum.any(axis=2)
        if not len(form.accumulate_lines):  # else a sum may start from zero after any copy
            begin &= np.cumsum(begin, axis=1) == 1
        groups, copies = np.nonzero(begin)
        first = places[of_sum.argmax(axis=2)[groups, copies]]
        begins.append(np.stack([groups, copies, loads[first], patterns[groups, copies, first]], axis=1))
    every = np.concatenate(begins)
    return len(np.unique(every, axis=0)) < len(every)


def _filled(mould: Mould, template: Template, tagged: Weights, weights: Weights, part: Part) -> bytes:
    layer = tiled(template.spec, template.tiling)
    tags, new = values(layer, tagged), values(layer, weights)
    chosen = slice(part.first, part.end)
    of_weights = [bits(layer.spec, each.weights[chosen]).ravel() for each in (tags, new)]
    of_biases = [each.biases[chosen].view(np.uint32).ravel() for each in (tags, new)]
    cubin = CubinFile.read(mould.cubin.data)
    words = cubin.words
    opcodes, immediates = OPCODE.get(words), IMMEDIATE.get(words).astype(np.uint32)
    outputs = layer.tiling.rows * (2 if layer.spec.data_type == "float16" else 1)
    for known, (old, patterns), times in ((_MULTIPLY_ADDS, of_weights, 1), ((FADD_IMMEDIATE,), of_biases, outputs)):
        there = old != 0
        places = np.flatnonzero(np.isin(opcodes, known))
        at, found = _replaced(immediates[places], old[there], patterns[there], times)
        chosen_words = words[places[at]]
        IMMEDIATE.put(chosen_words, found)
        words[places[at]] = chosen_words
    return cubin.with_words(words)


def _replaced(
    immediates: Patterns, tags: Patterns, patterns: Patterns, times: int
) -> tuple[NDArray[np.int64], Patterns]:
    """Which immediates are tags, and what comes in their place; `patterns` [tags] has what each tag stands for.

    Each stands in the code so many `times`.
    """
    distinct, first, inverse, wanted = np.unique(tags, return_index=True, return_inverse=True, return_counts=True)
    stands_for = patterns[first]
    if (stands_for[inverse] != patterns).any():
        raise MachineCodeError("more weights in one kernel than there are tags: ptxas has to assemble it")
    nearest = np.searchsorted(distinct, immediates)
    is_tag = nearest < len(distinct)
    is_tag[is_tag] = distinct[nearest[is_tag]] == immediates[is_tag]
    at = np.flatnonzero(is_tag)
    if not np.array_equal(np.bincount(nearest[at], minlength=len(distinct)), wanted * times):
        raise MachineCodeError("the mould does not have every weight as often as its PTX")
    return at, stands_for[nearest[at]]


def _tagged(spec: LayerSpec, weights: Weights) -> Weights:
    """Weights with the same mask and a tag each; of more than there are tags, those far apart share one."""
    there = _is_there(spec, weights)
    count = np.count_nonzero(there)
    if spec.data_type == "float16":
        halves = np.arange(1, _LARGEST_HALF + 1, dtype=np.uint16)
        halves = halves[halves != np.uint16(_HALF_ONE & 0xFFFF)]
        every = np.concatenate([halves, halves | np.uint16(0x8000)]).view(np.float16).astype(np.float32)
        tags = every[np.arange(count) % len(every)]
    else:
        tags = (np.arange(count, dtype=np.uint32) % MOST_PLACEHOLDERS + np.uint32(FIRST_WEIGHT)).view(np.float32)
    kernel, bias = np.zeros_like(weights.kernel), np.zeros_like(weights.bias)
    kernel[there] = tags
    added = weights.bias != 0
    bias[added] = (np.arange(np.count_nonzero(added), dtype=np.uint32) + np.uint32(FIRST_BIAS)).view(np.float32)
    return Weights(kernel, bias)


def _is_there(spec: LayerSpec, weights: Weights) -> NDArray[np.bool_]:
    """Which weights leave an instruction: those that are not zero, also in the type that they are multiplied in."""
    there: NDArray[np.bool_] = (weights.kernel != 0) & (bits(spec, weights.kernel) != 0)
    return there
