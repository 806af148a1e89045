"""Register budgets: registers of a convolution's thread, and the limit that the compiler is given."""

from __future__ import annotations

from codegen.ir.layer_spec import AddResidual
from codegen.kernels.lowering import TiledConvolution

REGISTERS = 65536
"""Registers of a multiprocessor."""
BLOCKS = 32
"""Most resident blocks of a multiprocessor."""
SIXTEEN_WARPS, TWENTY_SIX_WARPS = 128, 72
"""Registers of a thread with which 16 and 26 warps run on a multiprocessor."""
PACKED_GROUP = 32
"""Least packed sums of a thread for the limit of 26 warps: with fewer, the compiler stays below it by itself."""
MOST_SPILLED = 40
"""Most registers that a thread may want beyond the limit of 16 warps."""
FEW_SPILLED = 8
"""Most registers that it may want beyond the limit of 26 warps, or with channels split over a cluster."""
SPARE = 4
"""Registers that the compiler can save of those that a thread is estimated to want."""
LEAST_TOLD, MOST_TOLD_SUMS = 104, 96
"""Least registers that a thread wants and most sums among them with which a limit helps."""


def registers_wanted(sums: int, pointers: int, held: int) -> int:
    """Estimated registers of a thread without a limit."""
    return sums + 30 + 4 * pointers + held


def resident_blocks(layer: TiledConvolution) -> int:
    """Resident blocks of a multiprocessor that the compiler must leave registers for; 0 without a limit.

    A group of 32 output channels has 96 sums in float16: with a few registers less, sixteen warps fit instead of twelve
    or eight. With 64 packed sums the limit is what fits anyway: without it the compiler takes fewer, and loads wait
    longer. With 32 and few other registers it would take more than it needs, and half as many blocks would fit.
    With a residual it loads many of its elements before the last multiply-adds, into registers of other blocks.
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
    """Limit of registers per thread that the compiler is given."""
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
    """Registers allocated to a thread that takes `registers`: multiples of eight."""
    return -(-registers // 8) * 8


def _lanes(layer: TiledConvolution) -> int:
    """Lanes in the warps of a block."""
    return -(-layer.threads // 32) * 32


def sum_registers(layer: TiledConvolution) -> int:
    """Registers of a thread that hold sums; float16 has packed sums alone, or packed and float32 ones."""
    per_sum = 3 if layer.adds_up_in_float32 else 1
    return layer.tiling.rows * layer.sums * per_sum


def held(layer: TiledConvolution) -> int:
    """Registers of a thread for its copies of a chunk, if they pass registers."""
    tile = layer.input_tile
    loaded = tile.unit if tile.spread else -(-tile.unit // 2)
    per_copy = {"float32": tile.unit, "float16": 2 * loaded, "bfloat16": loaded}
    return tile.copies * (tile.unit if layer.pairing.whole_words else per_copy[layer.spec.data_type])


def carried(layer: TiledConvolution) -> int:
    """Registers of these copies during a chunk's multiply-adds: none if copies are asynchronous."""
    return 0 if layer.spec.data_type == "float32" or layer.pairing.whole_words else held(layer)
