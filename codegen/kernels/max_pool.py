"""A max pool that a convolution's kernel computes before it stores: the full map is never written.

The first four positions of a window belong to four threads. They leave the sums of some output channels in shared
memory, and each of the four takes the windows of every fourth channel. The other steps of the epilogue come behind the
pool, once for each window: they are monotonic, so that the largest value stays the largest.

Windows of 2x2 share no positions. Those of 3x3 do: so do the tiles, by a row and a column, whose sums both compute.
Positions begin with those of the first window, which may lie beside the map: there a position within is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from codegen.ir.epilogue import POOL_STRIDE
from codegen.ir.layer_spec import Clip, Conv2d, LeakyRelu, Quantize, Scale, Step, is_pooled
from codegen.kernels.epilogue_ptx import added_instructions
from codegen.kernels.lowering import AnyTiled
from codegen.kernels.placeholders import FIRST_BIAS, immediate
from codegen.kernels.weight_stream import Store
from codegen.kernels.workload import bank_conflicts

SLOTS = POOL_STRIDE * POOL_STRIDE
"""Sums of a thread that lie in shared memory together: with one row of four output channels, which the threads of a
window share among them, with two of two."""
_BANKS, _SKEW = 32, 14
"""With the skew behind every two slots, the next two are half the banks on."""


def is_monotonic(step: Step) -> bool:
    """Whether a step never falls: the larger of two values is no smaller after it, and only NaN becomes NaN."""
    match step:
        case LeakyRelu(factor) | Scale(factor):
            return factor > 0
    return isinstance(step, Clip | Quantize)


def has_whole_windows(layer: AnyTiled) -> bool:
    """Whether a block has whole windows in the layout of max_pool.cuh; always without a pool."""
    spec, tiling = layer.spec, layer.tiling
    if not (isinstance(spec, Conv2d) and spec.pool):
        return True
    rows = tiling.rows * tiling.tile_height
    if layer.geometry.overlap:
        # Windows between the two columns of a thread lie apart. Of two rows of a thread the last is of no window.
        sizes = tiling.tile_width, rows - (tiling.rows - 1)
        whole = all(size >= spec.pool.window and size % 2 for size in sizes)
        whole &= layer.pairing.columns == 1 and tiling.rows <= 2
    else:
        whole = tiling.tile_width % POOL_STRIDE == rows % POOL_STRIDE == 0 and tiling.rows == 1
    computes = tiling.kernel == "conv2d" and tiling.cluster == 1
    return whole and computes and layer.geometry.positions_height > 1


def with_windows(layer: AnyTiled, words: int) -> int:
    """Words of shared memory of a block whose input takes `words`; its sums take the input's place."""
    return max(words, _left_words(layer)) if is_pooled(layer.spec) else words


def pool_parameters(layer: AnyTiled) -> dict[str, int | str]:
    """The macros of max_pool.cuh."""
    spec = layer.spec
    if not (isinstance(spec, Conv2d) and spec.pool):
        return {"POOLED": 0}
    common: dict[str, int | str] = {"POOLED": 1, "CHANNEL_SUMS": _step(layer), "OVERLAP": layer.geometry.overlap}
    if not layer.geometry.overlap:
        return {**common, "SUMS_SKEW": 0}
    top, left = spec.pool.padding[:2]
    return {
        **common,
        "SUMS_SKEW": _SKEW,
        "MAP_HEIGHT": spec.map_height,
        "MAP_WIDTH": spec.map_width,
        "POOL_TOP": top,
        "POOL_LEFT": left,
        "BELOW": int(layer.geometry.positions_height - top > spec.map_height),
        "BEYOND": int(layer.geometry.positions_width - left > spec.map_width),
    }


def _step(layer: AnyTiled) -> int:
    """Words from the sums of an output channel to those of the next.

    Of windows of 2x2 half the banks on, where the next window reads. Of others, which are read word by word, one bank
    on: windows beside each other leave every second one free.
    """
    return layer.threads + ((1 if layer.geometry.overlap else _BANKS // 2) - layer.threads) % _BANKS


def _left_words(layer: AnyTiled) -> int:
    """Words of the sums of some output channels that the threads of a window share among them."""
    return SLOTS * _step(layer) + (SLOTS // 2 * _SKEW if layer.geometry.overlap else 0)


def stores_of(layer: AnyTiled, results: int) -> int:
    """Instructions of a thread to store `results` outputs, with the activations before them."""
    added = added_instructions(layer.spec.epilogue)
    if not (isinstance(layer.spec, Conv2d) and layer.spec.pool):
        return results * (1 + added)
    # Of four results each is left and stored if it is this thread's; together they are loaded, by twos where windows do
    # not overlap, and compared. Of two rows the larger are left, and half as many stored.
    taken = {1: 17, 2: 12}[layer.tiling.rows] if layer.geometry.overlap else 5
    return 2 * results + results // SLOTS * (taken + added)


def exchanged_by(layer: AnyTiled, results: int) -> float:
    """Accesses of a warp to shared memory to exchange `results` sums of each thread for overlapping windows."""
    if not layer.geometry.overlap:
        return 0.0
    tiling = layer.tiling
    conflicts = _conflicts(tiling.tile_width, tiling.tile_height, tiling.rows, _step(layer))
    return results * (1 + {1: 9, 2: 6}[tiling.rows] / SLOTS * conflicts)


@lru_cache(maxsize=1024)
def _conflicts(width: int, height: int, rows: int, step: int) -> float:
    """Bank conflicts of the loads of windows, on average of a block's warps; as max_pool.cuh has their places."""
    words = []
    for thread in range(width * height):
        row, column = thread // width * rows, thread % width
        slot = row % 2 * 2 + column % 2
        window_row = row // 2 * 2 - (2 if row >= (rows * height - 1) // 2 * 2 else 0)
        window_column = column // 2 * 2 - (2 if column >= width - 1 else 0)
        words.append(window_row // rows * width + window_column + slot * step + slot // 2 * _SKEW)
    warps = [words[first : first + _BANKS] for first in range(0, len(words), _BANKS)]
    return sum(map(bank_conflicts, warps)) / len(warps)


def pooled_epilogue(layer: AnyTiled, stores: Sequence[Store], words: int) -> str:
    """The text of epilogue.h for a block with `words` of shared memory; `stores` are those of whole windows."""
    share = SLOTS // layer.tiling.rows
    rows = [[store for store in stores if store.row == row] for row in range((1 + stores[-1].row) // layer.tiling.rows)]
    shared = [row[first : first + share] for row in rows for first in range(0, len(row), share)]
    most = words // _left_words(layer)
    each = -(-len(shared) // -(-len(shared) // most))
    return "".join(_turn(shared[first : first + each]) for first in range(0, len(shared), each))


def _turn(shared: Sequence[Sequence[Store]]) -> str:
    """The lines that leave the sums of some output channels in shared memory and take their windows out of it."""
    lines = ["MEET;"]
    for number, stores in enumerate(shared):
        for i, store in enumerate(stores):
            bias = immediate(FIRST_BIAS + store.sum)
            lines.append(f'LEAVE({store.row}, {store.sum}, "{bias}", {number * SLOTS + i});')
    lines.append("MEET;")
    for number, stores in enumerate(shared):
        lines.append(f"{{ TAKE({number * SLOTS}, {len(stores)});")
        for i, store in enumerate(stores):
            lines.append(f"KEEP({store.sum}, {i}, {store.in_range}, {store.image}, {store.offset});")
        lines.append("}")
    return "\n".join(lines) + "\n"
