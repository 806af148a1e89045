"""The plan of a network: launches in order on buffers, in plain numbers for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.ir.launch import MOST_BLOCKS, MOST_IMAGES, GridSize
from codegen.ir.layer_spec import LayerSpec, Linear
from farm.errors import UsageError

Grid = tuple[GridSize, GridSize, GridSize]
Kind = Literal["input", "output", "buffer", "constant"]
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Place:
    """A tensor's memory: an input or output of the network, a buffer, or a constant at an offset in bytes."""

    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind[0]}{self.number}"


@dataclass(frozen=True)
class Rows:
    """The argument with the number of rows of a launch."""


Argument = Place | Rows | int | float


@dataclass(frozen=True)
class Port:
    """An input or output of the network."""

    name: str
    dtype: str
    """Data type, by NumPy's name."""
    rows: int
    """First size of the shape for each image; mostly 1."""
    shape: tuple[int, ...]
    """The other sizes."""
    image_bytes: int

    @property
    def held_in(self) -> np.dtype[Any]:
        """NumPy's type of the elements; bfloat16 is held as uint16."""
        return np.dtype({"bfloat16": "uint16"}.get(self.dtype, self.dtype))

    def shape_of(self, images: int) -> tuple[int, ...]:
        """The shape of an array with that many images."""
        return (images * self.rows, *self.shape)


@dataclass(frozen=True)
class LayerStep:
    """A compiled layer: all its kernels."""

    layer: str
    rows: int
    """Images or rows of the layer for each image of the network."""
    input: Place
    output: Place
    others: tuple[Place, ...]
    """Other inputs: residual and gate."""
    tensor: str
    """Name of the computed tensor in the network."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Places of the tensors, in the order of the launches' arguments."""
        return self.input, self.output, *self.others


@dataclass(frozen=True)
class KernelStep:
    """A launch of a glue kernel. The grid is for the rows of all images."""

    kernel: str
    rows: int
    grid: Grid
    threads: int
    arguments: tuple[Argument, ...]
    output: Place
    """The place among the arguments that it writes."""
    tensor: str

    @property
    def images_limit(self) -> int:
        """Largest number of images of the network for one launch."""
        sizes = zip(self.grid, MOST_BLOCKS, strict=True)
        rows = min([MOST_IMAGES, *(most // size.fixed * size.images for size, most in sizes if size.images)])
        return rows // self.rows


Step = LayerStep | KernelStep


@dataclass(frozen=True)
class Plan:
    """The plan of a whole network."""

    images: int | None
    """The only number of images that the network takes; None: any number."""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants_bytes: int
    buffers: tuple[int, ...]
    """Size of each buffer in bytes for each image."""
    steps: tuple[Step, ...]

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers in the plan, each once."""
        return tuple(dict.fromkeys(step.layer for step in self.steps if isinstance(step, LayerStep)))

    @property
    def uses_kernels(self) -> bool:
        """Whether the plan needs glue.ptx."""
        return any(isinstance(step, KernelStep) for step in self.steps)

    def images_of(self, arrays: Sequence[NDArray[Any]]) -> int:
        """Number of images in arrays for the inputs. Raises UsageError for arrays that the network does not take."""
        if len(arrays) != len(self.inputs):
            names = ", ".join(f"'{port.name}'" for port in self.inputs)
            raise UsageError(f"{len(arrays)} arrays for the network's inputs {names}: give an array for each")
        counts: list[int] = []
        for port, array in zip(self.inputs, arrays, strict=True):
            first = f"N x {port.rows}" if port.rows > 1 else "N"
            if array.dtype != port.held_in:
                raise UsageError(f"the input '{port.name}' has type {array.dtype}, expected {port.held_in}: convert it")
            if array.shape[1:] != port.shape or array.ndim == 0 or array.shape[0] % port.rows:
                wanted = ", ".join(map(str, (first, *port.shape)))
                raise UsageError(
                    f"the input '{port.name}' has shape {list(array.shape)}, expected [{wanted}]: reshape it"
                )
            counts.append(array.shape[0] // port.rows)
        if len(set(counts)) > 1:
            given = " and ".join(map(str, counts))
            raise UsageError(f"the network's inputs have {given} images: give the same number in each")
        if self.images not in (None, counts[0]):
            raise UsageError(
                f"{counts[0]} images, but the ONNX file fixes the batch size at {self.images}: give that many, "
                "or export the model with an open batch size (torch.onnx.export's dynamic_shapes)"
            )
        return counts[0]


Arrays = Sequence[NDArray[Any]] | Mapping[str, NDArray[Any]]
"""Inputs of a network, in its order or by name."""


def arrays_in_order(inputs: Sequence[Port | Tensor], given: Arrays) -> Sequence[NDArray[Any]]:
    """The arrays in the order of the inputs. Raises UsageError for other names than theirs."""
    if not isinstance(given, Mapping):
        return given
    names = [each.name for each in inputs]
    if {*names} != given.keys():
        raise UsageError(
            f"arrays named {', '.join(given)}: expected {', '.join(names)}. Name them so with numpy.savez."
        )
    return [given[name] for name in names]


def layer_shape(spec: LayerSpec, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of a compiled layer's output in the network, for that of its input; None if it does not take that."""
    taken = prod(spec.input_shape)
    if isinstance(spec, Linear):
        return None if prod(shape) % taken else (*shape[:-1], spec.outputs)
    if not shape or prod(shape) != taken * shape[0]:
        return None
    if len(shape) == 3:
        return (shape[0], spec.output_shape[0], spec.output_shape[2])
    if len(shape) == 5:
        return (shape[0], spec.output_shape[0], 1, *spec.output_shape[1:])
    return (shape[0], *spec.output_shape)
