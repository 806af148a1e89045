"""Where kernels are tried: a GPU with one layer's data at a time. Tests play another one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import NDArray

from codegen.errors import DeviceError
from codegen.ir.dtypes import numpy_dtype
from codegen.ir.launch import Launch
from farm.cuda.device import Device, LoadedLayer
from farm.cuda.measure.cold import cold_microseconds
from farm.cuda.measure.layer_data import ALIGNMENT_BYTES, Shape, Stage
from farm.cuda.measure.other_layers import Others
from farm.cuda.measure.workload import Case
from farm.cuda.module import CodeRange
from farm.cuda.prefetch import MIN_CODE_BYTES, CodePrefetcher, open_prefetcher

Kernels = Sequence[tuple[bytes, Launch]]
"""All parts of a layer: cubin and launch of each."""
REPEATS = 5
"""Replays of each graph: their median is taken, and the fastest kernels are measured again."""


@dataclass(frozen=True)
class Times:
    """Median times of one launch of a layer, all parts together."""

    cold_microseconds: float
    """As in its network, where other layers run between two runs of it: what a tiling is chosen by."""
    warm_microseconds: float
    """The same layer over and over: its code in the caches, its data not."""


class Bench(Protocol):
    """One layer's data on a GPU. Its methods raise DeviceError."""

    x: NDArray[Any]
    residual: NDArray[Any] | None

    def output(self, kernels: Kernels) -> NDArray[Any]:
        """What the kernels write, NaN where they write nothing; the array is used again by the next call."""

    def cold_microseconds(self, kernels: Kernels) -> float:
        """What one launch of the layer takes as in its network."""

    def warm_microseconds(self, kernels: Kernels) -> float:
        """The same over and over, which takes several times as long to find out."""


class Rig(Protocol):
    """A GPU."""

    gpu: str
    arch: str

    def bench(self, case: Case, seed: int) -> AbstractContextManager[Bench]:
        """Brings a layer's data there, for as long as the `with` block lasts."""


class GpuRig:
    """The GPU of this machine."""

    def __init__(self, device: Device) -> None:
        facts = device.facts
        self.gpu = facts.name
        self.arch = facts.arch
        self._device = device
        self._l2_bytes = facts.l2_bytes
        self._stream = device.new_stream()
        self._others = Others(device)
        self._fetcher = open_prefetcher()

    def bench(self, case: Case, seed: int) -> GpuBench:
        """See Rig."""
        stage = Stage(self._device, Shape(case.spec, case.images, seed), self._l2_bytes)
        try:
            return GpuBench(self._device, self._stream, stage, self._others, self._fetcher, case.others_bytes)
        except DeviceError:
            stage.close()
            raise


class GpuBench:
    """See Bench. Launches are replayed as a CUDA graph; warm, inputs and outputs are used in turn."""

    def __init__(
        self,
        device: Device,
        stream: Any,
        stage: Stage,
        others: Others,
        fetcher: CodePrefetcher | None,
        others_bytes: int | None,
    ) -> None:
        """`others_bytes` is what the others move between two runs; None: more than the L2 cache holds.

        With a fetcher a layer's code is in that cache when its turn comes, as graphs of networks see to.
        """
        self._device = device
        self._stream = stream
        self._stage = stage
        self._others = others
        self._fetcher = fetcher
        self._others_bytes = others_bytes
        # Every candidate's whole output comes here: that would take most of the time otherwise.
        self._output = device.host_array(stage.output_shape, numpy_dtype(stage.shape.spec.data_type))
        self.x = stage.x
        self.residual = stage.residual

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        # Meanwhile code of other layers runs, which leave the L2 cache as it is.
        self._others.enqueue(0, source, target, ALIGNMENT_BYTES, stream)

    def _launch(self, layer: LoadedLayer, number: int) -> None:
        stage = self._stage
        layer(stage.inputs[number], stage.outputs[number], stage.shape.images, stage.residual_address)
