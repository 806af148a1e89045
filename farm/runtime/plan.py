"""The plan of a network: launches in order on buffers, in plain numbers for each image, so that C can read it.

The text has one fact a line: numbers and names separated by spaces. A name that may have spaces comes last.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from codegen.ir.launch import MOST_BLOCKS, MOST_IMAGES, GridSize
from farm.bundle.reader import PLAN_FORMAT
from farm.errors import UsageError

Grid = tuple[GridSize, GridSize, GridSize]
Kind = Literal["input", "output", "buffer", "constant"]
_LETTERS: dict[str, Kind] = {"i": "input", "o": "output", "b": "buffer", "c": "constant"}


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
        rows = min(MOST_IMAGES, *(most // size.fixed * size.images for size, most in sizes if size.images))
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

    def lines(self, layers: Sequence[str]) -> list[str]:
        """The lines of the plan's text. Layers are numbered by their positions in `layers`."""
        positions = {name: i for i, name in enumerate(layers)}
        lines = [f"images {self.images or 0}", f"constants {self.constants_bytes}"]
        for word, ports in (("input", self.inputs), ("output", self.outputs)):
            for port in ports:
                sizes = " ".join(map(str, (port.rows, len(port.shape), *port.shape)))
                lines.append(f"{word} {port.image_bytes} {port.dtype} {sizes} {port.name}")
        lines += [f"buffer {count}" for count in self.buffers]
        for step in self.steps:
            if isinstance(step, LayerStep):
                head = f"run {positions[step.layer]} {step.rows} {len(step.places)}"
                lines.append(f"{head} {' '.join(map(str, step.places))} {step.tensor}")
            else:
                arguments = " ".join(map(_written, step.arguments))
                head = f"launch {step.kernel} {step.rows} {grid_text(step.grid)} {step.threads} {step.output}"
                lines.append(f"{head} {len(step.arguments)} {arguments} {step.tensor}")
        return lines


def grid_text(grid: Grid) -> str:
    """A grid as six numbers: `fixed` and `images` (0 for none) of x, y and z."""
    return " ".join(f"{size.fixed} {size.images or 0}" for size in grid)


def read_plan(text: str) -> Plan:
    """Reads a plan's text. Raises UsageError for a network that was refused, ValueError for anything but a plan."""
    lines = text.splitlines()
    if not lines or lines[0] != PLAN_FORMAT:
        raise ValueError(f"a plan begins with {PLAN_FORMAT}")
    layers: list[str] = []
    ports: dict[str, list[Port]] = {"input": [], "output": []}
    buffers: list[int] = []
    steps: list[Step] = []
    images = constants = 0
    for line in lines[1:]:
        word, _, values = line.partition(" ")
        fields = values.split()
        match word:
            case "layer":
                layers.append(values.split(" ", 4)[4])
            case "refused":
                raise UsageError(values)
            case "images":
                images = int(values)
            case "constants":
                constants = int(values)
            case "input" | "output":
                end = 4 + int(fields[3])
                name = values.split(" ", end)[end]
                shape = tuple(map(int, fields[4:end]))
                ports[word].append(Port(name, fields[1], int(fields[2]), shape, int(fields[0])))
            case "buffer":
                buffers.append(int(values))
            case "run":
                end = 3 + int(fields[2])
                x, output, *others = map(_place, fields[3:end])
                layer, rows = layers[int(fields[0])], int(fields[1])
                name = values.split(" ", end)[end]
                steps.append(LayerStep(layer, rows, x, output, tuple(others), name))
            case "launch":
                rows, *grid, threads = map(int, fields[1:9])
                end = 11 + int(fields[10])
                arguments = tuple(map(_argument, fields[11:end]))
                name = values.split(" ", end)[end]
                steps.append(KernelStep(fields[0], rows, _grid(grid), threads, arguments, _place(fields[9]), name))
    given, made = tuple(ports["input"]), tuple(ports["output"])
    return Plan(images or None, given, made, constants, tuple(buffers), tuple(steps))


def _written(argument: Argument) -> str:
    """An argument's text; a float is written as its bits in hexadecimal."""
    match argument:
        case Place():
            return str(argument)
        case Rows():
            return "n"
        case int():
            return f"d{argument}"
        case float():
            return f"f{struct.pack('>f', argument).hex()}"


def _argument(text: str) -> Argument:
    match text[0]:
        case "n":
            return Rows()
        case "d":
            return int(text[1:])
        case "f":
            return float(struct.unpack(">f", bytes.fromhex(text[1:]))[0])
        case _:
            return _place(text)


def _place(text: str) -> Place:
    return Place(_LETTERS[text[0]], int(text[1:]))


def _grid(numbers: Sequence[int]) -> Grid:
    x, y, z = (GridSize(numbers[i], numbers[i + 1] or None) for i in (0, 2, 4))
    return x, y, z
