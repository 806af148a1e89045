"""Template + weights -> kernel: real weights in, instructions of zero weights out, in time linear in the weights.

Rolled form: the loop is unrolled once per chunk of channels and K group, each copy with its own weights; which lines
a copy keeps and which digits it gets are computed for all copies at once. Full form: codegen/substitute.py.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codegen.launch import Launch
from codegen.layers import Weights
from codegen.operators import operator_of
from codegen.substitute import substitute
from codegen.template import Lines, RolledForm, Template

_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_SHIFTS = np.arange(28, -4, -4, dtype=np.uint32)


@dataclass(frozen=True, eq=False)
class Kernel:
    """PTX for one set of weights, with what was kept and deleted."""

    ptx: bytes
    launch: Launch
    fmas_kept: int
    """In all streams together; a thread runs those of one K group."""
    fmas_deleted: int
    """Of those that the dense layer would have."""
    loads_deleted: int
    """Shared-memory loads all of whose weights are zero."""


def rewriter_digest() -> str:
    """Of the sources of the rewriter: part of every cubin's key."""
    texts = (files("codegen").joinpath(name).read_text() for name in ("rewrite.py", "substitute.py", "template.py"))
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def rewrite(template: Template, weights: Weights) -> Kernel:
    """Puts the weights into the template; -0.0 is zero. Raises ValueError if the shapes differ."""
    if weights.kernel.shape != template.spec.weights_shape:
        raise ValueError(f"weights {weights.kernel.shape} for a template of {template.spec.weights_shape}")
    operator = operator_of(template.spec)
    launch = operator.launch_of(template.spec, template.tiling)
    if template.tiling.form == "full":
        ptx, kept, deleted = substitute(template.ptx, operator.full_values(template.spec, weights))
        return Kernel(ptx.encode("ascii"), launch, kept, deleted, 0)
    form = template.rolled
    values, biases, exists = operator.rolled_values(template.spec, template.tiling, weights)
    turns, kept, loads = _turns(form, values)
    tails = _tails(form, biases, exists)
    parts = [form.head.encode("ascii")]
    _dispatch(parts, form.group_register, 0, len(turns), lambda group: turns[group] + tails[group])
    parts.append(b"}\n")
    return Kernel(
        ptx=b"".join(parts),
        launch=launch,
        fmas_kept=kept,
        fmas_deleted=template.tiling.rows * weights.kernel.size - kept,
        loads_deleted=loads,
    )


def _turns(form: RolledForm, values: NDArray[np.float32]) -> tuple[list[bytes], int, int]:
    """Every group's copies of the loop; and how many FMAs were kept and loads left out."""
    groups, copies, slots = values.shape
    nonzero = values != 0
    order = np.argsort(form.load_of_slot, kind="stable")
    first_use = np.searchsorted(form.load_of_slot[order], np.arange(len(form.load_lines)))
    used = np.logical_or.reduceat(nonzero[:, :, order], first_use, axis=2)
    keep = np.ones((groups, copies, len(form.turn)), dtype=np.bool_)
    keep[:, :, form.weight_line] = nonzero
    keep[:, :, form.load_lines] = used
    text, starts, kept_lines = _pick(form.turn, keep.reshape(-1, len(form.turn)))
    slot_of_line = np.full(len(form.turn), -1)
    slot_of_line[form.weight_line] = np.arange(slots)
    slot = slot_of_line[kept_lines]
    weighted = slot >= 0
    # `nonzero` in line order is the order of the kept lines.
    in_line_order = np.argsort(form.weight_line, kind="stable")
    digits = values[:, :, in_line_order][nonzero[:, :, in_line_order]]
    _patch(text, starts[weighted] + form.immediate_column[slot[weighted]], digits)
    ends = np.append(starts, len(text))[np.cumsum(keep.reshape(groups, -1).sum(axis=1))]
    data = text.tobytes()
    bounds = [0, *ends.tolist()]
    return [data[a:b] for a, b in pairwise(bounds)], int(nonzero.sum()), int((~used).sum())


def _tails(form: RolledForm, biases: NDArray[np.float32], exists: NDArray[np.bool_]) -> list[bytes]:
    """Every group's epilogue: stores of the kernels that exist, bias additions where the bias is not zero."""
    tails = []
    for bias, present in zip(biases, exists, strict=True):
        keep = np.ones((1, len(form.tail)), dtype=np.bool_)
        keep[0, form.store_lines] = present[form.store_kernels]
        added = bias[form.bias_kernels] != 0
        keep[0, form.bias_lines] = added
        text, starts, lines = _pick(form.tail, keep)
        _patch(text, starts[np.isin(lines, form.bias_lines)] + form.bias_columns[added], bias[form.bias_kernels][added])
        tails.append(text.tobytes())
    return tails


def _pick(lines: Lines, keep: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The kept lines of all copies [copies, lines] as text; where each starts in it, and which line it is."""
    picked = np.nonzero(keep)[1]
    lengths = lines.lengths[picked]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    total = int(ends[-1]) if len(ends) else 0
    source = np.arange(total) + np.repeat(lines.starts[picked] - starts, lengths)
    return lines.text[source], starts, picked


def _patch(text: NDArray[np.uint8], columns: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    """Writes each value's bits as eight hex digits at its column."""
    bits = values.astype(np.float32).view(np.uint32)
    text[columns[:, None] + np.arange(8)] = _HEX[(bits[:, None] >> _SHIFTS) & 15]


def _dispatch(parts: list[bytes], register: str, low: int, high: int, stream: Callable[[int], bytes]) -> None:
    """A binary tree of branches on the group, each group's stream at its leaf: log2(groups) branches to any."""
    if high - low == 1:
        parts.append(stream(low))
        return
    middle = (low + high) // 2
    test = f".reg .pred %from{middle};\nsetp.ge.u32 %from{middle},{register},{middle};\n"
    parts.append(f"{test}@%from{middle} bra $from{middle};\n".encode("ascii"))
    _dispatch(parts, register, low, middle, stream)
    parts.append(f"$from{middle}:\n".encode("ascii"))
    _dispatch(parts, register, middle, high, stream)


def main(arguments: list[str]) -> int:
    """`python -m codegen.rewrite TEMPLATE WEIGHTS.npy [BIAS.npy]`: the kernel's PTX on standard output."""
    if len(arguments) not in (2, 3):
        sys.stderr.write("usage: python -m codegen.rewrite TEMPLATE.ptx WEIGHTS.npy [BIAS.npy] > KERNEL.ptx\n")
        return 2
    template = Template.from_ptx(Path(arguments[0]).read_text())
    kernel = np.load(arguments[1], allow_pickle=False).astype(np.float32)
    bias = np.load(arguments[2], allow_pickle=False) if len(arguments) == 3 else np.zeros(len(kernel))
    made = rewrite(template, Weights(kernel, bias.astype(np.float32)))
    sys.stdout.buffer.write(made.ptx)
    sys.stderr.write(f"{made.fmas_kept} multiply-adds kept, {made.fmas_deleted} deleted\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
