"""The streams of kernels without stages: the loads of a K group's inputs in bursts, each before its multiply-adds.

Beside multiply-adds ptxas puts a load as late as it may, to do with few registers: four are on their way at a time, and
a warp waits for global memory eight times in 32 inputs. No load passes a fence, so that behind it there is none left.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from codegen.errors import TemplateError
from codegen.operators import AnyTiled
from codegen.operators.unstaged import burst_inputs
from codegen.template import Lines, RolledForm

FENCE = "fence.acq_rel.cta;"
_LOAD = re.compile(r"ld\.global\.nc\.f32\s+%f\d+,\s*\[(%rd\d+)(?:\+(\d+))?\];")
_MULTIPLY_ADD = re.compile(r"fma\.rn\.f32 (%f\d+),%f\d+,0f[0-9A-F]{8},\1;")
_ADVANCE = re.compile(r"add\.s64\s+(%rd\d+), \1, (\d+);")
_COUNTED = re.compile(r"//.*|add\.s32\s+(%r\d+), \1, 1;|setp\.\w+\.s32\s+%p\d+, %r\d+, %r\d+;")
"""What else a turn of the loop has, and nothing after it needs."""


def declaration(layer: AnyTiled) -> bytes:
    """Of the registers that the streams load inputs into."""
    return f".reg .f32 %in<{burst_inputs(layer.tiling)}>;\n".encode("ascii")


def streams(
    form: RolledForm, layer: AnyTiled, patterns: NDArray[np.uint32], nonzero: NDArray[np.bool_]
) -> tuple[list[bytes], int]:
    """The text of each K group, and how many inputs all load together.

    `patterns` [groups, copies, slots] are the weights' bits, and `nonzero` says which of them there are. Raises
    TemplateError for a loop that has something else in it.
    """
    pointer, offsets, step, sums = _read(form)
    order = np.argsort(form.weight_line, kind="stable")
    most = burst_inputs(layer.tiling)
    made, loads = [], 0
    for bits, there in zip(patterns[:, :, order], nonzero[:, :, order], strict=True):
        copies, places = np.nonzero(there)
        slots = order[places]
        inputs, of_slot = np.unique(copies * len(offsets) + form.load_of_slot[slots], return_inverse=True)
        loads += len(inputs)
        addresses = (inputs // len(offsets) * step + offsets[inputs % len(offsets)]).tolist()
        bursts = -(-len(inputs) // most)
        size = -(-len(inputs) // max(1, bursts))
        # The products of a sum stay in their order: it is that of the inputs.
        by_input = np.argsort(of_slot, kind="stable")
        numbers = of_slot[by_input]
        products = [
            f"fma.rn.f32 {sums[slot]},%in{number},0f{value:08X},{sums[slot]};"
            for slot, number, value in zip(
                slots[by_input].tolist(), (numbers % max(1, size)).tolist(), bits[there][by_input].tolist(), strict=True
            )
        ]
        ends = np.searchsorted(numbers, np.arange(bursts + 1) * size).tolist()
        text = []
        for burst, (begin, end) in enumerate(pairwise(ends)):
            here = addresses[burst * size : (burst + 1) * size]
            text += [f"ld.global.nc.f32 %in{i},[{pointer}+{address}];" for i, address in enumerate(here)]
            text += [FENCE, *products[begin:end]]
        made.append("".join(f"{line}\n" for line in text).encode("ascii"))
    return made, loads


def _read(form: RolledForm) -> tuple[str, NDArray[np.int64], int, list[str]]:
    """The pointer of the loads, the bytes from it to each, how far a turn moves it, and the sum of each slot."""
    turn = _texts(form.turn)
    loads = [_LOAD.fullmatch(turn[line]) for line in form.load_lines.tolist()]
    products = [_MULTIPLY_ADD.fullmatch(turn[line]) for line in form.weight_line.tolist()]
    taken = {*form.load_lines.tolist(), *form.weight_line.tolist()}
    rest = [line for i, line in enumerate(turn) if i not in taken and not _COUNTED.fullmatch(line)]
    steps = [match for line in rest if (match := _ADVANCE.fullmatch(line))]
    pointers = {match[1] for match in (*loads, *steps) if match}
    if None in loads or None in products or len(pointers) != 1 or len(rest) != len(steps) or len(steps) > 1:
        raise TemplateError(
            "a loop without stages has something else in it than loads by one pointer and multiply-adds"
        )
    offsets = np.array([int(match[2] or 0) for match in loads if match], dtype=np.int64)
    step = int(steps[0][2]) if steps else 0
    return pointers.pop(), offsets, step, [match[1] for match in products if match]


def _texts(lines: Lines) -> list[str]:
    return [piece.decode("ascii").rstrip("\n") for piece in lines.pieces.tolist()]
