"""Registers: what a thread of a convolution holds, and how many the compiler is told that it may take."""

from __future__ import annotations

from codegen.ir.layer_spec import AddResidual
from codegen.kernels.lowering import TiledConvolution

REGISTERS = 65536
"""Registers of a multiprocessor."""
BLOCKS = 32
"""Of a multiprocessor, at most."""
SIXTEEN_WARPS, TWENTY_SIX_WARPS = 128, 72
"""Registers of a thread with which so many warps run."""
PACKED_GROUP = 32
"""Sums of a thread from which on few registers are worth it: with fewer it takes so few by itself."""
MOST_SPILLED = 40
"""How many more a thread may want that is held to so many."""
FEW_SPILLED = 8
"""The same of one that is held to fewer, or whose channels are split over a cluster."""
SPARE = 4
"""Registers that the compiler can do without of those that a thread is said to want."""
LEAST_TOLD, MOST_TOLD_SUMS = 104, 96
"""Registers that a thread wants, and of them sums, from and up to which it helps to tell the compiler anything."""


def registers_wanted(sums: int, pointers: int, held: int) -> int:
    """About how many registers a thread takes if it is not told to do with fewer."""
    return sums + 30 + 4 * pointers + held


def resident_blocks(layer: TiledConvolution) -> int:
    """Blocks of a multiprocessor that the compiler must leave registers for; 0 where it is told nothing.

    A group of 32 kernels has 96 sums in float16: a few registers less and sixteen warps fit instead of twelve or eight.
    With 64 packed sums it is told how many fit anyway: left to itself it takes fewer, and its loads wait longer.
    With 32 and few other registers it would take more than it needs, and half as many blocks would fit.
    With a residual it loads many of those before the last multiply-adds, into registers that other blocks had.
    """
    sums, pointers = sum_registers(layer), layer.input_tile.pointers
    if layer.spec.data_type == "float32" and AddResidual() in layer.spec.epilogue:
        blocks = REGISTERS // (allocated(registers_wanted(sums, pointers, 0) - SPARE) * _lanes(layer))
        return min(blocks, BLOCKS) if blocks > 1 else 0
    if layer.spec.data_type != "float16":
        return 0
    wanted = registers_wanted(sums, pointers, carried(layer))
    if sums >= PACKED_GROUP and wanted <= TWENTY_SIX_WARPS + FEW_SPILLED:
        blocks = REGISTERS // (TWENTY_SIX_WARPS * _lanes(layer))
        return blocks if blocks > 1 else 0
    if sums > MOST_TOLD_SUMS or not LEAST_TOLD <= wanted <= SIXTEEN_WARPS + MOST_SPILLED:
        return 0
    return REGISTERS // (allocated(min(wanted, SIXTEEN_WARPS)) * _lanes(layer))


def most_registers(layer: TiledConvolution) -> int:
    """Registers per thread that the compiler is told to make do with."""
    if blocks := resident_blocks(layer):
        return min(255, REGISTERS // (blocks * _lanes(layer)))
    # Sums of float32 that packed ones are added to hold nothing until then.
    sums = sum_registers(layer)
    unused = sums // 3 if sums > layer.tiling.rows * layer.sums else 0
    room = REGISTERS // _lanes(layer)
    if layer.tiling.cluster > 1:
        wanted = registers_wanted(sums, layer.input_tile.pointers_held, carried(layer))
        return room if wanted - FEW_SPILLED <= room < wanted else 255
    wanted = registers_wanted(sums, layer.input_tile.pointers, carried(layer))
    return room if wanted - unused <= room < wanted else 255


def allocated(registers: int) -> int:
    """What a thread is given that takes so many: they come by eights."""
    return -(-registers // 8) * 8


def _lanes(layer: TiledConvolution) -> int:
    """Lanes in the warps of a block."""
    return -(-layer.threads // 32) * 32


def sum_registers(layer: TiledConvolution) -> int:
    """Registers of a thread that hold sums: in float16 packed ones only if all is added up in them, else both."""
    per_sum = 3 if layer.adds_up_in_float32 else 1
    return layer.tiling.rows * layer.sums * per_sum


def held(layer: TiledConvolution) -> int:
    """Registers of a thread for what it copies of a chunk, where that passes registers."""
    tile = layer.input_tile
    per_copy = {"float32": tile.unit, "float16": 2 * -(-tile.unit // 2), "bfloat16": -(-tile.unit // 2)}
    return tile.copies * (tile.unit if layer.pairing.whole_words else per_copy[layer.spec.data_type])


def carried(layer: TiledConvolution) -> int:
    """The same through a chunk's multiply-adds: none where copies are asynchronous."""
    return 0 if layer.spec.data_type == "float32" or layer.pairing.whole_words else held(layer)
