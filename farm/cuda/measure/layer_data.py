"""A layer's data on the GPU: several sets of input and output, used in turn so that none stays in the L2 cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from codegen.ir.dtypes import numpy_dtype
from codegen.ir.layer_spec import LayerSpec
from codegen.verification.compare import random_input, random_residual
from farm.cuda.device import Device

ALIGNMENT_BYTES = 256
COLD_FACTOR = 4
"""Total size of the sets in sizes of the L2 cache."""
MOST_SETS = 4096
LEAST_SETS = 2


def set_count(set_bytes: int, l2_bytes: int) -> int:
    """Number of sets of a size after which the first has left the cache."""
    return max(LEAST_SETS, min(MOST_SETS, math.ceil(COLD_FACTOR * l2_bytes / set_bytes)))


def rounded_up(size_bytes: int) -> int:
    """A size rounded up to ALIGNMENT_BYTES."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True)
class Shape:
    """The layer and batch that data is made for."""

    spec: LayerSpec
    images: int
    """Number of images, or of rows of a Linear."""
    seed: int
    sets: int | None = None
    """Number of sets; None: as many as `set_count` says."""


class LayerData:
    """Data of one layer at one batch, used in a `with` block. Raises DeviceError without enough memory."""

    def __init__(self, device: Device, shape: Shape, l2_bytes: int) -> None:
        spec, images = shape.spec, shape.images
        item = numpy_dtype(spec.data_type).itemsize
        self._device = device
        self.shape = shape
        self.x: NDArray[Any] = random_input(spec, images, shape.seed)
        self.residual = random_residual(spec, images, shape.seed)
        self._output_bytes = images * math.prod(spec.output_shape) * item
        input_step, output_step = rounded_up(self.x.nbytes), rounded_up(self._output_bytes)
        self.sets = shape.sets or set_count(input_step + output_step, l2_bytes)
        added = 0 if self.residual is None else rounded_up(self.residual.nbytes)
        self._memory = device.allocate(self.sets * (input_step + output_step) + added)
        start = int(self._memory)
        self.inputs = tuple(start + i * input_step for i in range(self.sets))
        start += self.sets * input_step
        self.outputs = tuple(start + i * output_step for i in range(self.sets))
        self.residual_address = start + self.sets * output_step if self.residual is not None else None
        device.upload(self.inputs[0], self.x)
        for address in self.inputs[1:]:
            device.copy(self.inputs[0], address, self.x.nbytes)
        if self.residual is not None and self.residual_address is not None:
            device.upload(self.residual_address, self.residual)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory."""
        self._memory.free()

    def poison(self) -> None:
        """Fill the first output with NaN, to recognise elements that a kernel does not write."""
        self._device.poison(self.outputs[0], self._output_bytes)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output of all images."""
        return (self.shape.images, *self.shape.spec.output_shape)

    def output(self, into: NDArray[Any] | None = None) -> NDArray[Any]:
        """Wait for all launches and copy the first output, into an array if one is given. Raises DeviceError."""
        output = np.empty(self.output_shape, numpy_dtype(self.shape.spec.data_type)) if into is None else into
        self._device.download(self.outputs[0], output)
        return output
