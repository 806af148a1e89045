"""A GPU that measures kernels, with one layer's data at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

from numpy.typing import NDArray

from codegen.errors import DeviceError
from codegen.ir.dtypes import numpy_dtype
from codegen.ir.launch import Launch
from farm.cuda.device import Device, LoadedLayer
from farm.cuda.measure.cold import cold_microseconds
from farm.cuda.measure.layer_data import ALIGNMENT_BYTES, LayerData, Shape
from farm.cuda.measure.other_layers import OtherLayers
from farm.cuda.measure.workload import Case
from farm.cuda.module import CodeRange
from farm.cuda.prefetch import MIN_CODE_BYTES, CodePrefetcher, open_prefetcher

Kernels = Sequence[tuple[bytes, Launch]]
"""Cubin and launch of each part of a layer."""
REPEATS = 5
"""Replays per graph, of which the median counts; the fastest kernels are measured again."""


@dataclass(frozen=True)
class Times:
    """Median times of one launch of a layer, all parts together."""

    cold_microseconds: float
    """Time as in its network, where other layers run in between; tilings are chosen by it."""
    warm_microseconds: float
    """Time of repeated launches: code in the caches, data not."""


class Bench(Protocol):
    """One layer's data on a GPU. Its methods raise DeviceError."""

    x: NDArray[Any]
    residual: NDArray[Any] | None

    def output(self, kernels: Kernels) -> NDArray[Any]:
        """Output of the kernels, NaN where nothing was written; the array is reused by the next call."""

    def cold_microseconds(self, kernels: Kernels) -> float:
        """Cold time of one launch."""

    def warm_microseconds(self, kernels: Kernels) -> float:
        """Warm time of one launch; measuring it takes several times as long."""


class Rig(Protocol):
    """A GPU that measures kernels; tests substitute another."""

    gpu: str
    arch: str

    def bench(self, case: Case, seed: int) -> AbstractContextManager[Bench]:
        """Uploads a layer's data for the duration of a `with` block."""


class GpuRig:
    """The GPU of this machine."""

    def __init__(self, device: Device) -> None:
        facts = device.facts
        self.gpu = facts.name
        self.arch = facts.arch
        self._device = device
        self._l2_bytes = facts.l2_bytes
        self._stream = device.new_stream()
        self._others = OtherLayers(device)
        self._fetcher = open_prefetcher()

    def bench(self, case: Case, seed: int) -> GpuBench:
        """See Rig."""
        stage = LayerData(self._device, Shape(case.spec, case.images, seed), self._l2_bytes)
        try:
            return GpuBench(self._device, self._stream, stage, self._others, self._fetcher, case.others_bytes)
        except DeviceError:
            stage.close()
            raise


class GpuBench:
    """Bench on the GPU: launches are replayed as a CUDA graph; warm ones rotate inputs and outputs."""

    def __init__(
        self,
        device: Device,
        stream: Any,
        stage: LayerData,
        others: OtherLayers,
        fetcher: CodePrefetcher | None,
        others_bytes: int | None,
    ) -> None:
        """`others_bytes` is the traffic of other layers between two runs; None: more than the L2 cache holds.

        With a fetcher the layer's code is prefetched into L2, as in graphs of networks.
        """
        self._device = device
        self._stream = stream
        self._stage = stage
        self._others = others
        self._fetcher = fetcher
        self._others_bytes = others_bytes
        # Pinned memory: downloading every candidate's output would otherwise take most of the time.
        self._output = device.host_array(stage.output_shape, numpy_dtype(stage.shape.spec.data_type))
        self.x = stage.x
        self.residual = stage.residual

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stage.close()

    def output(self, kernels: Kernels) -> NDArray[Any]:
        """See Bench."""
        layer = self._device.load_layer(kernels, self._stream)
        self._stage.poison()
        self._launch(layer, 0)
        return self._stage.output(self._output)

    def cold_microseconds(self, kernels: Kernels) -> float:
        """See Bench."""
        layer = self._device.load_layer(kernels, self._stream, addressed=self._fetcher is not None)
        others = partial(self._run_others, layer.codes)
        return cold_microseconds(self._device, lambda: self._launch(layer, 0), others, self._stream, REPEATS)

    def warm_microseconds(self, kernels: Kernels) -> float:
        """See Bench."""
        layer, sets = self._device.load_layer(kernels, self._stream), self._stage.sets
        return self._device.microseconds(lambda i: self._launch(layer, i), sets, self._stream, repeats=REPEATS)

    def _run_others(self, codes: Sequence[CodeRange]) -> None:
        stage, stream = self._stage, self._stream
        source, target = stage.inputs[-1], stage.inputs[0]
        self._others.enqueue(self._others_bytes, source, target, stage.x.nbytes, stream)
        if self._fetcher is None or sum(code.bytes for code in codes) < MIN_CODE_BYTES:
            return
        for code in codes:
            self._fetcher.fetch(code, stream.handle)
        # Other layers' code runs meanwhile and leaves the L2 cache unchanged.
        self._others.enqueue(0, source, target, ALIGNMENT_BYTES, stream)

    def _launch(self, layer: LoadedLayer, number: int) -> None:
        stage = self._stage
        layer(stage.inputs[number], stage.outputs[number], stage.shape.images, stage.residual_address)
