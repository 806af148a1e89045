"""Channel gates, which inputs are multiplied by: in shared memory, behind a block's input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codegen.ir.layer_spec import is_gated
from codegen.kernels.lowering import AnyTiled
from codegen.kernels.streams import QUAD


def image_words(layer: AnyTiled) -> int:
    """Words from the gates of an image, or of two that share words, to the next: whole quads, of an odd number.

    So warps with several images read those of each from other banks.
    """
    return _rounded(layer.streams.channels) | QUAD


def with_gates(layer: AnyTiled, words: int) -> int:
    """Words of shared memory of a block whose input takes `words`."""
    return _rounded(words) + layer.word_images * image_words(layer) if is_gated(layer.spec) else words


def gate_parameters(layer: AnyTiled, words: int) -> dict[str, int | str]:
    """The macros of channel_gates.cuh, for a block whose input takes `words` of shared memory."""
    if not is_gated(layer.spec):
        return {"GATED": 0}
    channels = layer.streams.channels
    return {
        "GATED": 1,
        "GATES": _rounded(words),
        "GATE_STEP": image_words(layer),
        "GATE_CHANNELS": channels,
        "GATE_WORDS": _rounded(channels),
        "GATE_IMAGES": layer.word_images,
        "GATES_ALIGNED": int(channels % QUAD == layer.geometry.channels % QUAD == 0),
    }


def _rounded(words: int) -> int:
    """Words rounded up to whole quads."""
    return -(-words // QUAD) * QUAD


def gate_loads(layer: AnyTiled) -> int:
    """Loads of gates by a thread if no weight is zero."""
    if not is_gated(layer.spec):
        return 0
    return layer.tiling.rows * layer.streams.chunks * sum(1 for _ in quads(layer, range(layer.tiling.chunk_channels)))


def quads(layer: AnyTiled, channels: Sequence[int]) -> Iterator[range]:
    """Neighbouring channels of a chunk, in runs of 4, 2 or 1 whose gates come by one load."""
    first, end = channels[0], channels[-1] + 1
    step = layer.tiling.chunk_channels if layer.streams.chunks > 1 else QUAD  # where chunks begin
    while first < end:
        count = next(n for n in (4, 2, 1) if n <= end - first and first % n == step % n == 0)
        yield range(first, first + count)
        first += count
