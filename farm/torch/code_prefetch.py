"""Prefetch of later layers' code into the L2 cache, while earlier layers run.

Between two runs of a layer, the other layers of its network move more data than the L2 cache holds. Its code then comes
from DRAM, and each multiprocessor waits for it piece by piece. A small kernel on a side stream fetches all of it at
once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from farm.bundle.row_groups import group_for
from farm.cuda.module import LoadedPart
from farm.cuda.prefetch import GpuLimits, Prefetches, estimate_layer, plan_prefetches, prefetcher_for

OF_ITS_OWN = -1
"""Priority of the side stream, so that PyTorch does not return a stream of the pool that layers use."""


class _Side(threading.local):
    """State of a thread that captures a network."""

    is_capturing: bool = False
    stream: torch.cuda.Stream | None = None
    """The side stream of the capture, once it has prefetched code."""


_side = _Side()


@contextmanager
def prefetch_during_capture() -> Iterator[None]:
    """Within the block, networks launched by this thread also prefetch code; at its end the current stream joins.

    Meant for the capture of a CUDA graph: outside of one, the launches of prefetches would cost the CPU as much as
    those of layers.
    """
    _side.is_capturing = True
    try:
        yield
        if _side.stream is not None:
            torch.cuda.current_stream().wait_event(_side.stream.record_event())
    finally:
        _side.is_capturing, _side.stream = False, None


class NetworkPrefetch:
    """Prefetches of one network on one GPU. Thread-safe."""

    def __init__(
        self, layers: Sequence[Sequence[Sequence[LoadedPart]]], image_bytes: Sequence[int], device: torch.device
    ) -> None:
        """`layers` has each layer's groups of kernels, in order of execution; `image_bytes` its input and output."""
        self._layers = layers
        self._image_bytes = image_bytes
        self._device = device
        found = torch.cuda.get_device_properties(device)
        self._gpu = GpuLimits(found.multi_processor_count, found.L2_cache_size)
        self._fetcher = prefetcher_for(part for groups in layers for parts in groups for part in parts)
        self._plans: dict[int, tuple[Prefetches, ...]] = {}

    def before(self, number: int, images: int) -> None:
        """Enqueue the prefetches that start with a layer, which is launched next on the current stream."""
        if self._fetcher is None or not _side.is_capturing:
            return
        fetches = self._plan(images)[number]
        codes = [part.code for other in fetches.layers for part in group_for(self._layers[other], images) if part.code]
        if not codes:
            return
        if _side.stream is None:
            _side.stream = torch.cuda.Stream(self._device, priority=OF_ITS_OWN)
        _side.stream.wait_event(torch.cuda.current_stream().record_event())
        self._fetcher.fetch_all(codes, _side.stream.cuda_stream, fetches.wait_nanoseconds)

    def _plan(self, images: int) -> tuple[Prefetches, ...]:
        if images not in self._plans:
            runs = [
                estimate_layer(
                    [(part.launch, part.image_bytes) for part in group_for(groups, images)],
                    image_bytes,
                    images,
                    self._gpu,
                )
                for groups, image_bytes in zip(self._layers, self._image_bytes, strict=True)
            ]
            self._plans[images] = plan_prefetches(runs, self._gpu.l2_bytes)
        return self._plans[images]
