"""Value patch: the cubin of one mask, and that of any checkpoint with this mask by overwriting its immediates.

A patch template is what ptxas makes of weights that are non-zero where the mask is, each with a value of its own: a
tag. A weight is written where its tag stands in the code. ptxas's code depends on which weights are zero, not on their
values, so a patched cubin is byte for byte what ptxas makes of the weights. Two exceptions are refused: float16's
1.0, and accumulators that begin with the same product, which ptxas computes once.
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
from codegen.ir.layer_spec import AddResidual, LayerSpec, is_bounded
from codegen.ir.tiling import Part
from codegen.kernels import tiled
from codegen.kernels.placeholders import FIRST_BIAS, FIRST_WEIGHT, MOST_PLACEHOLDERS
from codegen.kernels.weight_stream import bits, slots, values
from codegen.ptx.rewrite import may_have_constants, rewrite
from codegen.ptx.template import RolledForm, Template
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.encoding import IMMEDIATE, OPCODE
from codegen.sass.isa.opcodes import FADD_IMMEDIATE, FFMA_IMMEDIATE, HFMA2_IMMEDIATE, HFMA2_MMA_IMMEDIATE
from codegen.toolchain.ptxas import Cubin, assemble
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain, ToolLimits

_HALF_ONE: Final = 0x3C003C00
"""float16 1.0 in both halves: ptxas multiplies by it with another instruction."""
_LARGEST_HALF: Final = 0x7BFF
_MULTIPLY_ADDS: Final = (FFMA_IMMEDIATE, HFMA2_IMMEDIATE, HFMA2_MMA_IMMEDIATE)

Patterns = NDArray[np.uint32]
"""Immediates, as bits."""


@dataclass(frozen=True, eq=False)
class PatchTemplate:
    """A cubin with tags in the place of a part's weights and biases."""

    cubin: Cubin
    mask: str
    """Digest of the mask, see `mask_digest`."""


def mask_digest(spec: LayerSpec, weights: Weights) -> str:
    """Digest of which weights and biases are non-zero: those leave an instruction."""
    nonzero = [_nonzero(spec, weights), weights.bias != 0]
    return hashlib.sha256(b"".join(np.packbits(each).tobytes() for each in nonzero)).hexdigest()


def make_patch_template(
    template: Template,
    weights: Weights,
    part: Part,
    arch: str,
    toolchain: Toolchain,
    options: tuple[str, ...] = ("-O3",),
    limits: ToolLimits = DEFAULT_LIMITS,
) -> PatchTemplate:
    """Assembles the patch template of these weights' mask with ptxas.

    Raises MachineCodeError where the values cannot be patched, and what `assemble` raises.
    """
    if not isinstance(template.form, RolledForm):
        raise MachineCodeError("only rolled templates can be patched")
    if is_bounded(template.spec):
        raise MachineCodeError("input bounds cannot be patched: they are immediates too")
    tagged = _tagged(template.spec, weights)
    made = assemble(rewrite(template, tagged, part).ptx, arch, toolchain, options, limits)
    patch = PatchTemplate(made, mask_digest(template.spec, weights))
    _patched(patch, template, tagged, tagged, part)  # checks that every tag is found
    return patch


def apply(patch: PatchTemplate, template: Template, weights: Weights, part: Part) -> Cubin:
    """Writes weights with the patch template's mask into its cubin, in milliseconds.

    Raises MachineCodeError for another mask, for values that change the code (`check_values`), and if the number of
    tags found differs from the number of weights in the PTX.
    """
    began = time.perf_counter()
    if mask_digest(template.spec, weights) != patch.mask:
        raise MachineCodeError("the weights have another mask than the patch template")
    check_values(template, weights, part)
    data = _patched(patch, template, _tagged(template.spec, weights), weights, part)
    return replace(patch.cubin, data=data, seconds=time.perf_counter() - began)


def check_values(template: Template, weights: Weights, part: Part) -> None:
    """Raises MachineCodeError for values and masks of which ptxas makes other code than a patch; runs no tool."""
    layer, chosen = tiled(template.spec, template.tiling), slice(part.first, part.end)
    if template.spec.data_type == "float16":
        if (bits(template.spec, weights.kernel) == _HALF_ONE).any():
            raise MachineCodeError("float16 weight of 1.0: ptxas chooses another instruction for it")
        tagged = _tagged(template.spec, weights)
        tags, new = (bits(layer.spec, values(layer, each).weights[chosen]).ravel() for each in (tagged, weights))
        _meanings(tags[tags != 0], new[tags != 0])
    constant = (weights.nonzeros_per_output == 0) & (weights.bias != 0)
    if _folds_constants(template.spec) and layer.streams.stored(constant.astype(np.float32))[chosen].any():
        raise MachineCodeError("an output channel has a bias but no weight: ptxas computes its output itself")
    if _begin_alike(template, weights, part):
        raise MachineCodeError("two accumulators begin with the same product, which ptxas computes once")


def _folds_constants(spec: LayerSpec) -> bool:
    """Whether ptxas computes the output of a channel without weights, whose bias then stands nowhere in the code."""
    if may_have_constants(spec) and spec.data_type != "float16":
        return False  # the rewriter hides the zero from ptxas
    return not spec.epilogue or not isinstance(spec.epilogue[0], AddResidual)


def _begin_alike(template: Template, weights: Weights, part: Part) -> bool:
    """Whether two accumulators of a K group start from zero with the same input and equal weights."""
    layer, form = tiled(template.spec, template.tiling), template.rolled
    order = np.argsort(form.weight_line, kind="stable")  # the order of a copy's products in the PTX
    chosen = values(layer, weights).weights[part.first : part.end]
    patterns = bits(layer.spec, chosen)[:, :, order]
    nonzero = (chosen[:, :, order] != 0) & (patterns != 0)
    accumulators, loads = slots(layer).sums[order], form.load_of_slot[order]
    begins = []
    for number in np.unique(accumulators):
        places = np.flatnonzero(accumulators == number)
        own = nonzero[:, :, places]
        begin = own.any(axis=2)
        if not len(form.accumulate_lines):  # otherwise an accumulator may start from zero after any copy
            begin &= np.cumsum(begin, axis=1) == 1
        groups, copies = np.nonzero(begin)
        first = places[own.argmax(axis=2)[groups, copies]]
        begins.append(np.stack([groups, copies, loads[first], patterns[groups, copies, first]], axis=1))
    every = np.concatenate(begins)
    return len(np.unique(every, axis=0)) < len(every)


def _patched(patch: PatchTemplate, template: Template, tagged: Weights, weights: Weights, part: Part) -> bytes:
    """The cubin's bytes with every tag replaced by its weight."""
    layer = tiled(template.spec, template.tiling)
    tags, new = values(layer, tagged), values(layer, weights)
    chosen = slice(part.first, part.end)
    weight_bits = [bits(layer.spec, each.weights[chosen]).ravel() for each in (tags, new)]
    bias_bits = [each.biases[chosen].view(np.uint32).ravel() for each in (tags, new)]
    cubin = CubinFile.read(patch.cubin.data)
    words = cubin.words
    opcodes, immediates = OPCODE.get(words), IMMEDIATE.get(words).astype(np.uint32)
    outputs = layer.tiling.rows * (2 if layer.spec.data_type == "float16" else 1)
    for known, (old, patterns), times in ((_MULTIPLY_ADDS, weight_bits, 1), ((FADD_IMMEDIATE,), bias_bits, outputs)):
        tagged_here = old != 0
        places = np.flatnonzero(np.isin(opcodes, known))
        at, found = _replaced(immediates[places], old[tagged_here], patterns[tagged_here], times)
        chosen_words = words[places[at]]
        IMMEDIATE.put(chosen_words, found)
        words[places[at]] = chosen_words
    return cubin.with_words(words)


def _replaced(
    immediates: Patterns, tags: Patterns, patterns: Patterns, times: int
) -> tuple[NDArray[np.int64], Patterns]:
    """Indices of the immediates that are tags, and the patterns to write there.

    `patterns` [tags] are the values that the tags stand for; each tag must occur `times` times in the code. Raises
    MachineCodeError otherwise, and where two weights share a tag but not a value.
    """
    distinct, stands_for, wanted = _meanings(tags, patterns)
    nearest = np.searchsorted(distinct, immediates)
    is_tag = nearest < len(distinct)
    is_tag[is_tag] = distinct[nearest[is_tag]] == immediates[is_tag]
    at = np.flatnonzero(is_tag)
    if not np.array_equal(np.bincount(nearest[at], minlength=len(distinct)), wanted * times):
        raise MachineCodeError("the patch template does not have every weight as often as its PTX")
    return at, stands_for[nearest[at]]


def _meanings(tags: Patterns, patterns: Patterns) -> tuple[Patterns, Patterns, NDArray[np.int64]]:
    """The distinct tags, the pattern that each stands for, and how often each occurs in the PTX.

    Raises MachineCodeError where two weights share a tag but not a value.
    """
    distinct, first, inverse, wanted = np.unique(tags, return_index=True, return_inverse=True, return_counts=True)
    stands_for = patterns[first]
    if (stands_for[inverse] != patterns).any():
        raise MachineCodeError("one kernel has more weights than there are tags: ptxas has to assemble it")
    return distinct, stands_for, wanted


def _tagged(spec: LayerSpec, weights: Weights) -> Weights:
    """Weights with the same mask and one tag each; where tags run out, weights far apart share one."""
    nonzero = _nonzero(spec, weights)
    count = np.count_nonzero(nonzero)
    if spec.data_type == "float16":
        halves = np.arange(1, _LARGEST_HALF + 1, dtype=np.uint16)
        halves = halves[halves != np.uint16(_HALF_ONE & 0xFFFF)]
        every = np.concatenate([halves, halves | np.uint16(0x8000)]).view(np.float16).astype(np.float32)
        tags = every[np.arange(count) % len(every)]
    else:
        tags = (np.arange(count, dtype=np.uint32) % MOST_PLACEHOLDERS + np.uint32(FIRST_WEIGHT)).view(np.float32)
    kernel, bias = np.zeros_like(weights.kernel), np.zeros_like(weights.bias)
    kernel[nonzero] = tags
    added = weights.bias != 0
    bias[added] = (np.arange(np.count_nonzero(added), dtype=np.uint32) + np.uint32(FIRST_BIAS)).view(np.float32)
    return Weights(kernel, bias)


def _nonzero(spec: LayerSpec, weights: Weights) -> NDArray[np.bool_]:
    """The weights that leave an instruction: non-zero, also once rounded to the data type they are multiplied in."""
    nonzero: NDArray[np.bool_] = (weights.kernel != 0) & (bits(spec, weights.kernel) != 0)
    return nonzero
