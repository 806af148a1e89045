"""Template + weights -> kernel: real weights in, instructions of zero weights out, in time linear in the weights.

Rolled form: the loop is unrolled once per chunk of channels and K group, each copy with its own weights. The lines that
each copy keeps and the digits it gets are computed for all copies at once. Full form: full_form.py. With a table the
weights become the table's numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import AddResidual, Gelu, LayerSpec, Mish, Sigmoid, Swish, Tanh, is_bounded
from codegen.ir.tiling import Part
from codegen.kernels import TABLE_KERNELS, AnyTiled, tiled
from codegen.kernels.weight_stream import PRODUCTS_TOGETHER, bits, copies, full_values, slots, values
from codegen.ptx.data_table import declared
from codegen.ptx.full_form import FullForm, substitute
from codegen.ptx.template import Lines, RolledForm, TableForm, Template

_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), dtype=np.uint16)
"""Each byte as two digits."""
_DIGITS = np.dtype("V8")
"""Eight digits, moved at once."""


@dataclass(frozen=True, eq=False)
class KernelFacts:
    """Launch of a kernel for one set of weights, with its numbers of multiply-adds."""

    launch: Launch
    fmas_kept: int
    """Multiply-adds of all K groups together; a thread runs those of one."""
    fmas_deleted: int
    """Multiply-adds of the dense layer that were deleted."""


@dataclass(frozen=True, eq=False)
class Kernel(KernelFacts):
    """PTX for one set of weights, with the facts about it."""

    ptx: bytes


def rewrite(template: Template, weights: Weights, part: Part | None = None) -> Kernel:
    """Puts the weights into the template; -0.0 is zero. The kernel has the K groups of the part, or all of them.

    Raises ValueError if the shapes differ, or a part is asked for of a template that becomes one kernel.
    """
    layer = tiled(template.spec, template.tiling)
    spec = layer.spec
    if is_bounded(spec) != (weights.bounds is not None):
        raise ValueError(f"weights {'with' if weights.bounds is not None else 'without'} bounds for {spec}")
    if weights.kernel.shape not in (template.spec.weights_shape, spec.weights_shape):
        raise ValueError(f"weights {weights.kernel.shape} for a template of {template.spec.weights_shape}")
    whole = Part(0, layer.streams.count)
    part = part or whole
    match template.form:
        case RolledForm() as form:
            if layer.tiling.order == "place" and part != whole:
                raise ValueError("a template whose K groups begin side by side is one kernel: leave out the part")
            text = _rolled_text(form, layer, weights, part)
        case _ if part != whole:
            raise ValueError("a full template, and one of weights in a table, is one kernel: leave out the part")
        case FullForm() as form:
            ptx, kept, deleted = substitute(form.ptx, full_values(spec, weights), layer.tiling.rows)
            return Kernel(layer.launch, kept, deleted, ptx.encode("ascii"))
        case TableForm() as form:
            text = _table_text(form, layer, weights)
    return Kernel(**vars(kernel_facts(layer, weights, part)), ptx=text)


def kernel_facts(layer: AnyTiled, weights: Weights, part: Part) -> KernelFacts:
    """Facts about the kernel of a part, of any form but the full one; they take a fraction of the time of its text."""
    chosen, streams = slice(part.first, part.end), layer.streams
    if layer.tiling.reads_table:
        rows, kept = 1, weights.nonzeros
    else:  # each weight has one product for each row of a thread
        rows = layer.tiling.rows
        multiplied = copies(layer, weights)[chosen]
        kept = rows * int(np.count_nonzero(_have_products(multiplied, bits(layer.spec, multiplied))))
    exists = streams.stored(np.ones(layer.geometry.output_channels, dtype=np.bool_))[chosen]
    channels = int(np.count_nonzero(exists[streams.adds_bias[chosen]]))
    return KernelFacts(layer.launch_of(part), kept, channels * rows * weights.kernel[0].size - kept)


def _have_products(weights: NDArray[np.float32], immediates: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """True for each weight that is multiplied: neither it nor its immediate in the layer's type is zero."""
    multiplied: NDArray[np.bool_] = (weights != 0) & (immediates != 0)
    return multiplied


def _table_text(form: TableForm, layer: AnyTiled, weights: Weights) -> bytes:
    table = declared(TABLE_KERNELS[layer.tiling.kernel].table(layer, weights))
    return b"".join([form.before.encode("ascii"), table, form.after.encode("ascii")])


def _rolled_text(form: RolledForm, layer: AnyTiled, weights: Weights, part: Part) -> bytes:
    """The PTX of a part's K groups."""
    spec = layer.spec
    every = values(layer, weights)
    chosen = slice(part.first, part.end)
    turns = _turns(form, layer, every.weights[chosen], every.bounds[chosen])
    tails = _tails(form, every.biases[chosen], every.exists[chosen])
    if may_have_constants(spec) and spec.data_type != "float16" and layer.tiling.cluster == 1:
        zeros = _unknown_zeros(layer, form, every.weights[chosen])
        tails = [before + tail for before, tail in zip(zeros, tails, strict=True)]
    head, tails = form.closed(tails)
    parts: list[bytes | memoryview] = [form.head_from(part.first, head).encode("ascii")]
    _dispatch(
        parts,
        form.group_register,
        part.first,
        part.end,
        lambda group: (turns[group - part.first], tails[group - part.first]),
    )
    parts.append(b"}\n")
    return b"".join(parts)


def _turns(
    form: RolledForm, layer: AnyTiled, weights: NDArray[np.float32], bounds: NDArray[np.float32]
) -> Sequence[bytes | memoryview]:
    """[groups]: the copies of the loop."""
    groups, copies, count = weights.shape
    values = bits(layer.spec, weights)
    nonzero = _have_products(weights, values)
    keep = np.ones((groups, copies, len(form.turn)), dtype=np.bool_)
    keep[:, :, form.weight_line] = nonzero
    keep[:, :, form.load_lines] = _by_owner(np.logical_or, nonzero, form.load_of_slot, len(form.load_lines))
    if len(form.accumulate_lines):
        row, number = form.accumulate_numbers.T
        keep[:, :, form.accumulate_lines] = added_up_after(layer, nonzero)[:, :, row * layer.sums + number]
    of_line = bounds[:, :, form.bound_inputs, form.bound_sides]
    if len(form.input_lines):
        read = _by_owner(np.logical_or, nonzero, form.input_of_slot, len(form.input_lines))
        keep[:, :, form.input_lines] = read
        keep[:, :, form.bound_lines] = read[:, :, form.bound_inputs] & np.isfinite(of_line)
        if len(form.gate_lines):
            keep[:, :, form.gate_lines] = _by_owner(np.logical_or, read, form.gate_of_input, len(form.gate_lines))
    text, starts, kept_lines = _pick(form.turn, keep.reshape(-1, len(form.turn)))
    if len(form.bound_lines):
        _put_bounds(form, text, starts, kept_lines, keep, of_line)
    slot_of_line = np.full(len(form.turn), -1)
    slot_of_line[form.weight_line] = np.arange(count)
    slot = slot_of_line[kept_lines]
    weighted = slot >= 0
    # `nonzero` in line order is the order of the kept lines.
    in_line_order = np.argsort(form.weight_line, kind="stable")
    digits = values[:, :, in_line_order][nonzero[:, :, in_line_order]]
    _patch(text, starts[weighted] + form.immediate_column[slot[weighted]], digits)
    ends = np.append(starts, len(text))[np.cumsum(keep.reshape(groups, -1).sum(axis=1))]
    data, edges = text.data, [0, *ends.tolist()]
    return [data[a:b] for a, b in pairwise(edges)]


def added_up_after(layer: AnyTiled, nonzero: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[groups, chunks, accumulators]: whether a packed accumulator is added to its float32 ones after a chunk.

    `nonzero` [groups, chunks, slots] are the products that exist.
    """
    sums = slots(layer).sums
    return _full(_by_owner(np.add, nonzero.astype(np.int32), sums, int(sums.max()) + 1), PRODUCTS_TOGETHER)


def may_have_constants(spec: LayerSpec) -> bool:
    """Whether ptxas would compute the activation of an output channel without weights itself.

    Its last bit would differ: a GPU approximates exponential and reciprocal.
    """
    before = takewhile(lambda step: not isinstance(step, AddResidual), spec.epilogue)
    return any(isinstance(step, Sigmoid | Swish | Gelu | Tanh | Mish) for step in before)


def _unknown_zeros(layer: AnyTiled, form: RolledForm, weights: NDArray[np.float32]) -> list[bytes]:
    """[groups]: lines that set accumulators without a product to a zero that ptxas does not know as a constant.

    The zero is the sign of the number of images. `weights` are [groups, copies, slots].
    """
    numbers = slots(layer).sums
    registers = dict(zip(numbers.tolist(), form.accumulator_of_slot, strict=True))
    touched = np.logical_or.reduce(_by_owner(np.logical_or, weights != 0, numbers, len(registers)), axis=1)
    launch = layer.launch
    images = f"{launch.kernel}_param_{launch.arguments.index('images')}"
    lines = []
    for of_group in touched:
        zeros = " ".join(f"mov.b32 {registers[number]},zero;" for number in np.flatnonzero(~of_group).tolist())
        line = f"{{ .reg .b32 zero; ld.param.u32 zero,[{images}]; shr.s32 zero,zero,31; {zeros} }}\n"
        lines.append(line.encode("ascii") if zeros else b"")
    return lines


def _put_bounds(
    form: RolledForm,
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    kept_lines: NDArray[np.int64],
    keep: NDArray[np.bool_],
    bounds: NDArray[np.float32],
) -> None:
    """Writes the bounds [groups, copies, bound lines] into the lines that are kept."""
    bound_of_line = np.full(len(form.turn), -1)
    bound_of_line[form.bound_lines] = np.arange(len(form.bound_lines))
    bound = bound_of_line[kept_lines]
    here = bound >= 0
    copy = np.repeat(np.arange(bounds.shape[0] * bounds.shape[1]), keep.sum(axis=2).ravel())
    _patch(
        text,
        starts[here] + form.bound_columns[bound[here]],
        bounds.reshape(-1, bounds.shape[2])[copy[here], bound[here]].view(np.uint32),
    )


def _by_owner(combine: np.ufunc, values: NDArray[Any], owner: NDArray[np.int64], owners: int) -> NDArray[Any]:
    """Combines the values [..., slots] of each owner's slots: [..., owners]. Every owner has at least one slot."""
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], np.arange(owners))
    result: NDArray[Any] = combine.reduceat(values[:, :, order], first, axis=2)
    return result


def _full(products: NDArray[np.int32], most: int) -> NDArray[np.bool_]:
    """[groups, copies, accumulators]: whether the next copy would give a non-empty one more than `most` products."""
    result = np.zeros(products.shape, dtype=np.bool_)
    held = np.zeros_like(products[:, 0])
    following = np.roll(products, -1, axis=1)
    following[:, -1] = most  # the last copy always ends an accumulator
    for copy in range(products.shape[1]):
        held += products[:, copy]
        result[:, copy] = (held > 0) & (held + following[:, copy] > most)
        held[result[:, copy]] = 0
    return result


def _tails(form: RolledForm, biases: NDArray[np.float32], exists: NDArray[np.bool_]) -> list[bytes]:
    """Every group's epilogue: stores of the output channels that exist, additions of the biases that are not zero."""
    tails = []
    for bias, present in zip(biases, exists, strict=True):
        keep = np.ones((1, len(form.tail)), dtype=np.bool_)
        keep[0, form.store_lines] = present[form.store_numbers]
        added = bias[form.bias_numbers] != 0
        keep[0, form.bias_lines] = added
        text, starts, lines = _pick(form.tail, keep)
        digits = bias[form.bias_numbers][added].view(np.uint32)
        _patch(text, starts[np.isin(lines, form.bias_lines)] + form.bias_columns[added], digits)
        tails.append(text.tobytes())
    return tails


def _pick(lines: Lines, keep: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The kept lines of all copies [copies, lines] as text; where each starts in it, and which line it is."""
    picked = np.nonzero(keep)[1]
    lengths = lines.lengths[picked]
    text = bytearray().join(lines.pieces[picked].tolist())
    return np.frombuffer(text, dtype=np.uint8), np.cumsum(lengths) - lengths, picked


def _patch(text: NDArray[np.uint8], columns: NDArray[np.int64], values: NDArray[np.uint32]) -> None:
    """Writes each value as eight hex digits at its column."""
    digits = _HEX[values.astype(">u4").view(np.uint8)].view(_DIGITS)
    from_each_byte = np.ndarray(max(0, len(text) - 7), _DIGITS, text, strides=(1,))
    from_each_byte[columns] = digits


def _dispatch(
    parts: list[bytes | memoryview],
    register: str,
    low: int,
    high: int,
    code: Callable[[int], Iterable[bytes | memoryview]],
) -> None:
    """A binary tree of branches on the K group's number, with each group's code at its leaf."""
    if high - low == 1:
        parts.extend(code(low))
        return
    middle = (low + high) // 2
    test = f".reg .pred %from{middle};\nsetp.ge.u32 %from{middle},{register},{middle};\n"
    parts.append(f"{test}@%from{middle} bra $from{middle};\n".encode("ascii"))
    _dispatch(parts, register, low, middle, code)
    parts.append(f"$from{middle}:\n".encode("ascii"))
    _dispatch(parts, register, middle, high, code)


def main(arguments: list[str]) -> int:
    """`python -m codegen.ptx.rewrite TEMPLATE WEIGHTS.npy [BIAS.npy [BOUNDS.npy]]` prints the kernel's PTX."""
    if len(arguments) not in (2, 3, 4):
        usage = "usage: python -m codegen.ptx.rewrite TEMPLATE.ptx WEIGHTS.npy [BIAS.npy [BOUNDS.npy]] > KERNEL.ptx"
        sys.stderr.write(f"{usage}\n")
        return 2
    template = Template.from_ptx(Path(arguments[0]).read_text())
    kernel = np.load(arguments[1], allow_pickle=False).astype(np.float32)
    bias = np.load(arguments[2], allow_pickle=False) if len(arguments) > 2 else np.zeros(len(kernel))
    bounds = np.load(arguments[3], allow_pickle=False).astype(np.float32) if len(arguments) > 3 else None
    made = rewrite(template, Weights(kernel, bias.astype(np.float32), bounds))
    sys.stdout.buffer.write(made.ptx)
    sys.stderr.write(f"{made.fmas_kept} multiply-adds kept, {made.fmas_deleted} deleted\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
