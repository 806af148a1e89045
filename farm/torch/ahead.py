"""Code of layers to come, brought into the L2 cache while others before them run.

Between two runs of a layer the others of its network move more than that cache holds, so its code comes from DRAM, and
a stream of it arrives at half the speed. A launch of one warp for each K group, without images, runs through that code
on the side: it begins a layer early, keeps ahead of the layer's own blocks, and what it computes is of no use.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from farm.gpu.loaded import WARP, Part

AHEAD = 1
"""How many layers before its own turn a layer's code is fetched."""
STREAMS = 2
"""Layers whose code is fetched at a time: more take too much from those that run."""
LEAST_BYTES = 300_000
"""Of a cubin: less code comes soon enough by itself."""
LEAST_BLOCKS = 8
"""That follow the stream of a K group, for one that runs ahead of them to be worth its while."""
KERNEL = "conv2d"
"""Whose blocks do without most of their warps: nothing waits for those, and no cluster has to be whole."""


class _Sides(threading.local):
    """Of a thread that captures a network."""

    streams: list[torch.cuda.Stream] | None = None
    """Of the capture under way, where it has left code to be fetched; None while nothing is to be."""


_sides = _Sides()


@contextmanager
def code_fetched_ahead() -> Iterator[None]:
    """What this thread's networks launch within it also fetches their code; at its end the current stream waits for it.

    For a network that a CUDA graph is captured of: launches on the side would cost the CPU as much as those of layers.
    """
    _sides.streams = []
    try:
        yield
        for side in _sides.streams:
            torch.cuda.current_stream().wait_event(side.record_event())
    finally:
        _sides.streams = None


class CodeAhead:
    """That of one network on one GPU. Safe to use from several threads."""

    def __init__(self, layers: Sequence[Sequence[Part]], scratch_bytes: int, device: torch.device) -> None:
        """The parts of each layer, in the order in which they run; room for one image of any input or output."""
        self._layers = [[part for part in parts if _is_large(part)] for parts in layers]
        self._scratch = torch.empty(scratch_bytes, dtype=torch.uint8, device=device)

    def before(self, number: int, images: int) -> None:
        """A layer is about to be launched on the current stream, for so many images."""
        streams = _sides.streams
        if streams is None or number + AHEAD >= len(self._layers):
            return
        parts = [part for part in self._layers[number + AHEAD] if _blocks_of_a_stream(part, images) >= LEAST_BLOCKS]
        if not parts:
            return
        if len(streams) < STREAMS:
            streams.append(torch.cuda.Stream(self._scratch.device))
        side = streams[number % len(streams)]
        side.wait_event(torch.cuda.current_stream().record_event())
        for part in parts:
            part.run_through(self._scratch.data_ptr(), side.cuda_stream)


def is_run_through(name: str, grid: Sequence[int], block: Sequence[int]) -> bool:
    """Whether a kernel in a trace was launched to fetch its code."""
    return name == KERNEL and list(grid[:2]) == [1, 1] and math.prod(block) <= WARP


def _is_large(part: Part) -> bool:
    return part.launch.kernel == KERNEL and part.code_bytes >= LEAST_BYTES


def _blocks_of_a_stream(part: Part, images: int) -> int:
    x, y, _ = part.launch.grid_at(min(images, part.launch.images_limit))
    return x * y
