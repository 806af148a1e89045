"""Shapes of a model's inputs: checks of `--input-shape`, and the options that would make a missing size known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.dimensions import Inputs, Shape, Size, in_words, is_known
from codegen.frontend.onnx.graph.graph import Graph


def shapes_with(inputs: Inputs, given: Mapping[str, Size]) -> dict[str, Shape]:
    """The given shapes, with the file's open dimension where one gives None.

    Raises CheckpointError, listing the model's inputs, if a given shape names no input or does not fit it.
    """
    shapes: dict[str, Shape] = {}
    known = "the model's inputs are " + ", ".join(f"{name} {in_words(shape)}" for name, shape in inputs.items())
    for name, shape in given.items():
        fact = f"the shape {in_words(shape)} cannot be set for input '{name}'"
        if name not in inputs:
            raise CheckpointError(f"{fact}: there is no such input; {known}")
        if not shape or min((each for each in shape if each is not None), default=1) < 1:
            raise CheckpointError(f"{fact}: every dimension is 1 or more; {known}")
        size = inputs[name]
        if size is not None and len(size) != len(shape):
            raise CheckpointError(f"{fact}: it has {len(size)} dimensions, not {len(shape)}; {known}")
        file = size or [f"{name}[{axis}]" for axis in range(len(shape))]
        if any(each is None and isinstance(own, int) for own, each in zip(file, shape, strict=True)):
            raise CheckpointError(f"{fact}: an open size is one that the file leaves open; {known}")
        shapes[name] = tuple(own if each is None else each for own, each in zip(file, shape, strict=True))
    return shapes


class MissingShapes:
    """Diagnosis of unknown shapes: the reason, and the --input-shape options that would help."""

    def __init__(
        self, inputs: Inputs, graph: Graph, given_shapes: Callable[[], Iterator[Mapping[str, Shape | None]]]
    ) -> None:
        """`given_shapes` yields the shapes of all tensors if every input's shape were given, for a few sizes."""
        self._inputs = inputs
        self._graph = graph
        self._given_shapes = cache(lambda: list(given_shapes()))

    def options(self, tensor: str, axes: slice) -> str:
        """The command-line options that would make a tensor's dimensions along these axes known; "" if none would."""
        open_inputs = [name for name in self._graph.inputs_of(tensor) if name in self._inputs]
        open_inputs = [name for name in open_inputs if not is_known(self._inputs[name])]
        if not all(self._inputs[name] is None or self._would_help(tensor, axes) for name in open_inputs):
            return ""
        images = self._graph.images.name
        return " ".join(f"--input-shape {_option(name, self._inputs[name], images)}" for name in open_inputs)

    def _would_help(self, tensor: str, axes: slice) -> bool:
        shapes = (shapes.get(tensor) for shapes in self._given_shapes())
        return any(shape is not None and is_known(shape[axes]) for shape in shapes)

    def reason(self, tensor: str) -> str:
        """Why height and width of a convolution's input are unknown, with the options that would help."""
        if options := self.options(tensor, slice(2, None)):
            return f"height and width of its input are not known; give them with {options}"
        return "height and width of its input do not follow from the model's inputs; only fixed sizes are compiled"


def _option(name: str, shape: Shape | None, images: str) -> str:
    if shape is None:
        return f"{name}:N,CHANNELS,HEIGHT,WIDTH"
    batch = "1" if all(isinstance(each, int) or each == images for each in shape) else "N"  # 1: nothing else is open
    sizes = (str(each) if isinstance(each, int) else batch if each == images else "SIZE" for each in shape)
    return f"{name}:{','.join(sizes)}"
