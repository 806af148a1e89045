"""Where kernels are tried: a GPU with one layer's data at a time. Tests play another one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

from numpy.typing import NDArray

from codegen.data_types import numpy_dtype
from codegen.errors import DeviceError
from codegen.launch import Launch
from farm.gpu.cold import cold_microseconds
from farm.gpu.device import Device, LoadedLayer
from farm.gpu.stage import Shape, Stage
from farm.gpu.workload import Case

Kernels = Sequence[tuple[bytes, Launch]]
"""All parts of a layer: cubin and launch of each."""


class Bench(Protocol):
    """One layer's data on a GPU. Its methods raise DeviceError."""

    x: NDArray[Any]
    residual: NDArray[Any] | None

    def output(self, kernels: Kernels) -> NDArray[Any]:
        """What the kernels write, NaN where they write nothing; the array is used again by the next call."""

    def microseconds(self, kernels: Kernels) -> float:
        """Median time of one launch of the layer."""


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

    def bench(self, case: Case, seed: int) -> GpuBench:
        """See Rig."""
        stage = Stage(self._device, Shape(case.spec, case.images, seed), self._l2_bytes)
        try:
            return GpuBench(self._device, self._stream, stage)
        except DeviceError:
            stage.close()
            raise


class GpuBench:
    """See Bench: inputs and outputs in turn, so that the L2 cache is cold, and launches replayed as a CUDA graph."""

    def __init__(self, device: Device, stream: Any, stage: Stage) -> None:
        self._device = device
        self._stream = stream
        self._stage = stage
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

    def microseconds(self, kernels: Kernels) -> float:
        """See Bench."""
        layer = self._device.load_layer(kernels, self._stream)
        return self._device.microseconds(lambda i: self._launch(layer, i), self._stage.sets, self._stream)

    def both_microseconds(self, kernels: Kernels, repeats: int) -> tuple[float, float]:
        """Median times of one launch: code in the caches and data not, neither in a cache. Raises DeviceError."""
        layer = self._device.load_layer(kernels, self._stream)
        warm = self._device.microseconds(
            lambda i: self._launch(layer, i), self._stage.sets, self._stream, repeats=repeats
        )
        return warm, cold_microseconds(self._device, lambda: self._launch(layer, 0), self._stream, repeats)

    def _launch(self, layer: LoadedLayer, number: int) -> None:
        stage = self._stage
        layer(stage.inputs[number], stage.outputs[number], stage.shape.images, stage.residual_address)
