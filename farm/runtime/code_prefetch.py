"""Prefetches the code of later layers into the L2 cache while earlier ones run, in networks recorded as CUDA graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod

from farm.bundle.reader import BundledLayer
from farm.bundle.row_groups import group_for
from farm.cuda.driver import call, new_event, new_stream
from farm.cuda.module import LoadedPart
from farm.cuda.prefetch import GpuLimits, Prefetches, estimate_layer, plan_prefetches, prefetcher_for
from farm.runtime.plan import ELEMENT_BYTES, LayerStep


class CodePrefetch:
    """The prefetches of one network's code, in the current context. Not for concurrent calls."""

    def __init__(
        self,
        steps: Sequence[LayerStep],
        layers: Mapping[str, BundledLayer],
        groups: Mapping[str, Sequence[Sequence[LoadedPart]]],
        gpu: GpuLimits,
    ) -> None:
        """`steps` are the layers in the order in which they run, `groups` their kernels. Raises DeviceError."""
        self._steps = steps
        self._groups = [groups[step.layer] for step in steps]
        self._row_bytes = [_row_bytes(layers[step.layer]) for step in steps]
        self._gpu = gpu
        self._fetcher = prefetcher_for(part for each in self._groups for parts in each for part in parts)
        self._side = new_stream()
        self._begin, self._end = new_event(), new_event()
        self._is_fetching = False
        """Whether a prefetch was enqueued since the last `end`."""
        self._plans: dict[int, tuple[Prefetches, ...]] = {}

    def before(self, number: int, images: int, stream: int) -> None:
        """Enqueues the prefetches that run beside a layer; call it before the layer's launch. Raises DeviceError."""
        if self._fetcher is None or not _is_recorded(stream):
            return
        fetches = self._plan(images)[number]
        codes = [part.code for other in fetches.layers for part in self._parts(other, images) if part.code]
        if not codes:
            return
        call("cuEventRecord", self._begin, stream)
        call("cuStreamWaitEvent", self._side, self._begin, 0)
        self._fetcher.fetch_all(codes, self._side.value or 0, fetches.wait_nanoseconds)
        self._is_fetching = True

    def end(self, stream: int) -> None:
        """Makes the stream wait for all prefetches. Raises DeviceError."""
        if self._is_fetching:
            call("cuEventRecord", self._end, self._side)
            call("cuStreamWaitEvent", stream, self._end, 0)
            self._is_fetching = False

    def close(self) -> None:
        """Frees all resources on the GPU. No prefetch may be running."""
        if self._fetcher is not None:
            self._fetcher.unload()
        call("cuStreamDestroy_v2", self._side)
        for event in (self._begin, self._end):
            call("cuEventDestroy_v2", event)

    def _parts(self, number: int, images: int) -> Sequence[LoadedPart]:
        """The kernels of a layer that run a number of images of the network."""
        return group_for(self._groups[number], self._steps[number].rows * images)

    def _plan(self, images: int) -> tuple[Prefetches, ...]:
        if images not in self._plans:
            runs = [
                estimate_layer(
                    [(part.launch, part.image_bytes) for part in self._parts(number, images)],
                    row_bytes,
                    step.rows * images,
                    self._gpu,
                )
                for number, (step, row_bytes) in enumerate(zip(self._steps, self._row_bytes, strict=True))
            ]
            self._plans[images] = plan_prefetches(runs, self._gpu.l2_bytes)
        return self._plans[images]


def _is_recorded(stream: int) -> bool:
    """Whether the stream is being recorded. Otherwise a prefetch would cost as much CPU time as a layer's launch."""
    status = ctypes.c_int()
    call("cuStreamIsCapturing", stream, ctypes.byref(status))
    return bool(status.value)


def _row_bytes(layer: BundledLayer) -> int:
    """Bytes of input and output for one image or row."""
    return (prod(layer.spec.input_shape) + prod(layer.spec.output_shape)) * ELEMENT_BYTES[layer.spec.data_type]
