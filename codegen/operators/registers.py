"""Registers: what a thread of a convolution holds, and whether the compiler is told to do with fewer."""

from __future__ import annotations

from codegen.operators import stream
from codegen.operators.geometry import geometry_of
from codegen.operators.input_tile import input_tile
from codegen.operators.pairing import pairing, threads
from codegen.spec import Conv2d, ConvTranspose2d
from codegen.tiling import Tiling

Spec = Conv2d | ConvTranspose2d

BOUNDED_REGISTERS, MOST_SPILLED = 128, 40
"""Registers of a thread that let sixteen warps run, and how many more a thread may want that is held to them."""


def registers_wanted(sums: int, pointers: int, held: int) -> int:
    """About how many registers a thread takes if it is not told to do with fewer."""
    return sums + 30 + 4 * pointers + held


def resident_blocks(spec: Spec, tiling: Tiling) -> int:
    """Blocks of a multiprocessor that the compiler must leave registers for; 0 where it may take what it likes.

    A group of 32 kernels has 96 sums in float16: a few registers less and sixteen warps fit instead of twelve or eight.
    """
    wanted = registers_wanted(sum_registers(spec, tiling), input_tile(spec, tiling).pointers, held(spec, tiling))
    if spec.data_type == "float16" and BOUNDED_REGISTERS < wanted <= BOUNDED_REGISTERS + MOST_SPILLED:
        return 16 // -(-threads(spec, tiling) // 32)
    return 0


def sum_registers(spec: Spec, tiling: Tiling) -> int:
    """Registers of a thread that hold sums: in float16 packed ones too, unless all is added up in them."""
    halves = pairing(spec, tiling).halves
    per_sum = 3 if halves == 2 and tiling.accumulate == "float32" else halves
    return tiling.rows * stream.sums(geometry_of(spec), tiling) * per_sum


def held(spec: Spec, tiling: Tiling) -> int:
    """Registers of a thread for what it copies of a chunk, where that passes registers."""
    tile = input_tile(spec, tiling)
    per_copy = {"float32": tile.unit, "float16": 2 * -(-tile.unit // 2), "bfloat16": -(-tile.unit // 2)}
    return tile.copies * per_copy[spec.data_type]
