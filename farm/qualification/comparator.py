"""Comparators: run both builds of a layer on a GPU and compare the outputs bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codegen.ir.dtypes import numpy_dtype
from codegen.verification.compare import is_written, random_gate, random_residual
from farm.cuda.device import Device
from farm.qualification.build import Kernels, LayerPair
from farm.qualification.corpus import Shape


@dataclass(frozen=True)
class Comparison:
    """Outputs of both builds of a layer, compared."""

    outputs: int
    differing: int
    """Outputs whose bits differ, or that neither build wrote."""


class Comparator(Protocol):
    """A GPU that runs both builds of a layer; tests substitute the emulator."""

    name: str
    arch: str
    driver: str
    """Newest CUDA version that the driver supports."""

    def compare(self, shape: Shape, layers: Sequence[LayerPair]) -> Iterator[Comparison]:
        """Runs both builds of each layer on the same input. Raises DeviceError if a kernel fails to run."""


class GpuComparator:
    """Comparator on a GPU of this machine."""

    def __init__(self, device: Device) -> None:
        facts = device.facts
        self.name, self.arch, self.driver = facts.name, facts.arch, facts.driver
        self._device = device

    def compare(self, shape: Shape, layers: Sequence[LayerPair]) -> Iterator[Comparison]:
        """See Comparator."""
        spec, device = shape.spec, self._device
        x, residual = shape.input(), random_residual(spec, shape.batch, shape.number)
        gate = random_gate(spec, shape.batch, shape.number)
        outputs = np.empty((2, shape.batch, *spec.output_shape), numpy_dtype(spec.data_type))
        with ExitStack() as stack:

            def memory(size_bytes: int) -> int:
                taken = device.allocate(max(16, size_bytes))
                stack.callback(taken.free)
                return int(taken)

            source, target = memory(x.nbytes), memory(outputs[0].nbytes)
            added = memory(outputs[0].nbytes) if residual is not None else None
            factors = memory(gate.nbytes) if gate is not None else None
            device.upload(source, x)
            if residual is not None and added is not None:
                device.upload(added, residual)
            if gate is not None and factors is not None:
                device.upload(factors, gate)
            for layer in layers:
                for output, kernels in zip(outputs, (layer.ptxas, layer.direct), strict=True):
                    device.poison(target, output.nbytes)
                    self._launch(kernels, source, target, shape.batch, added, factors)
                    device.download(target, output)
                yield Comparison(outputs[0].size, count_differing(outputs[0], outputs[1]))

    def _launch(
        self, kernels: Kernels, source: int, target: int, batch: int, added: int | None, factors: int | None
    ) -> None:
        for cubin, launch in kernels:
            self._device.load(cubin, launch)(source, target, batch, residual=added, gate=factors)


def count_differing(first: NDArray[Any], second: NDArray[Any]) -> int:
    """Number of elements whose bits differ, or that still hold the poison value."""
    bits = np.dtype(f"u{first.dtype.itemsize}")
    same = (first.view(bits) == second.view(bits)) & is_written(first)
    return int(same.size - np.count_nonzero(same))
