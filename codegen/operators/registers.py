"""Registers: what a thread of a convolution holds, and whether the compiler is told to do with fewer."""

from __future__ import annotations

from codegen.operators import stream
from codegen.operators.geometry import geometry_of
from codegen.operators.input_tile import input_tile
from codegen.operators.pairing import pairing, threads
from codegen.spec import Conv2d, ConvTranspose2d
from codegen.tiling import Tiling

Spec = Conv2d | ConvTranspose2d

BOUNDED_REGISTERS, MOST_SPILLED, MOST_SPARE = 128, 40, 24
"""Registers of a thread that let sixteen warps run, and how many more or fewer a thread may want that is told so."""
MOST_BOUNDED_SUMS = 96
"""Registers of sums that leave enough of those for everything else."""


def registers_wanted(sums: int, pointers: int, held: int) -> int:
    """About how many registers a thread takes if it is not told to do with fewer."""
    return sums + 30 + 4 * pointers + held


def resident_blocks(spec: Spec, tiling: Tiling) -> int:
    """Blocks of a multiprocessor that the compiler must leave registers for; 0 where it may take what it likes.

    A group of 32 kernels has 96 sums in float16: a few registers less and sixteen warps fit instead of twelve or eight.
    With 64 sums a few more do no harm, and left to itself the compiler does not take them: its loads then wait longer.
    """
    sums = sum_registers(spec, tiling)
    wanted = registers_wanted(sums, input_tile(spec, tiling).pointers, held(spec, tiling))
    near = -MOST_SPARE <= wanted - BOUNDED_REGISTERS <= MOST_SPILLED
    if spec.data_type == "float16" and near and sums <= MOST_BOUNDED_SUMS:
        return 16 // -(-threads(spec, tiling) // 32)
    return 0


def sum_registers(spec: Spec, tiling: Tiling) -> int:
    """Registers of a thread that hold sums: in float16 packed ones only if all is added up in them, else both."""
    per_sum = 3 if pairing(spec, tiling).halves == 2 and tiling.accumulate == "float32" else 1
    return tiling.rows * stream.sums(geometry_of(spec), tiling) * per_sum


def held(spec: Spec, tiling: Tiling) -> int:
    """Registers of a thread for what it copies of a chunk, where that passes registers."""
    tile = input_tile(spec, tiling)
    per_copy = {"float32": tile.unit, "float16": 2 * -(-tile.unit // 2), "bfloat16": -(-tile.unit // 2)}
    return tile.copies * per_copy[spec.data_type]
