"""A max pool of 2x2 that a convolution's kernel computes before it stores: the full map is never written.

The four positions of a window belong to four threads. They leave the sums of some output channels in shared memory,
and each of the four takes the windows of every fourth channel. The other steps of the epilogue come behind the pool,
once for each window: they never fall, so that the largest value stays the largest.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen.operators.lowered import AnyTiled
from codegen.operators.placeholders import FIRST_BIAS, immediate
from codegen.operators.steps import added_instructions
from codegen.operators.stream import Store
from codegen.spec import Clip, LeakyRelu, Step, is_pooled

WINDOW = 2
THREADS = WINDOW * WINDOW
"""Of a window, and output channels that they share among them."""
_BANKS = 32


def rises(step: Step) -> bool:
    """Whether of two values the larger one is no smaller after the step, NaN stays NaN, and none becomes one."""
    return isinstance(step, Clip) or (isinstance(step, LeakyRelu) and step.slope > 0)


def has_whole_windows(layer: AnyTiled) -> bool:
    """Whether a block has the four positions of its windows in four threads; of layers without a pool always."""
    tiling = layer.tiling
    return not is_pooled(layer.spec) or (
        tiling.rows == tiling.cluster == 1
        and tiling.tile_width % WINDOW == tiling.tile_height % WINDOW == 0
        and tiling.stages > 0
        and layer.geometry.positions_height > 1
    )


def with_windows(layer: AnyTiled, words: int) -> int:
    """Words of shared memory of a block that has so many for its input, which the sums take the place of."""
    return max(words, THREADS * _step(layer)) if is_pooled(layer.spec) else words


def pool_parameters(layer: AnyTiled) -> dict[str, int | str]:
    """What conv2d.cu and pooling.cuh need."""
    return {"POOLED": 1, "CHANNEL_SUMS": _step(layer)} if is_pooled(layer.spec) else {"POOLED": 0}


def _step(layer: AnyTiled) -> int:
    """Words from the sums of an output channel to those of the next: half the banks on, where the next window reads."""
    return layer.threads + (_BANKS // 2 - layer.threads) % _BANKS


def stores_of(layer: AnyTiled, results: int) -> int:
    """Instructions of a thread that store so many results, with those of activations before them."""
    added = added_instructions(layer.spec.epilogue)
    # Of four results each is left and stored if it is this thread's; together they are loaded twice and compared.
    return 2 * results + results // THREADS * (5 + added) if is_pooled(layer.spec) else results * (1 + added)


def pooled_epilogue(layer: AnyTiled, stores: Sequence[Store], words: int) -> str:
    """The text of epilogue.h, of a block with so many words of shared memory; `stores` are those of whole windows."""
    rows = [[store for store in stores if store.row == row] for row in range(1 + stores[-1].row)]
    shared = [row[first : first + THREADS] for row in rows for first in range(0, len(row), THREADS)]
    most = words // (THREADS * _step(layer))
    each = -(-len(shared) // -(-len(shared) // most))
    return "".join(_turn(shared[first : first + each]) for first in range(0, len(shared), each))


def _turn(shared: Sequence[Sequence[Store]]) -> str:
    """The sums of some output channels into shared memory, and their windows out of it."""
    lines = ["MEET;"]
    for number, stores in enumerate(shared):
        for i, store in enumerate(stores):
            bias = immediate(FIRST_BIAS + store.sum)
            lines.append(f'LEAVE({store.row}, {store.sum}, "{bias}", {number * THREADS + i});')
    lines.append("MEET;")
    for number, stores in enumerate(shared):
        lines.append(f"{{ TAKE({number * THREADS}, {len(stores)});")
        for i, store in enumerate(stores):
            lines.append(f"KEEP({store.sum}, {i}, {store.in_range}, {store.image}, {store.offset});")
        lines.append("}")
    return "\n".join(lines) + "\n"
