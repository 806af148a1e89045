"""The shapes of a model's inputs: what `--input-shape` may set, and which one is missing."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.errors import CheckpointError

Size = tuple[int | None, ...]
"""Dimensions of a tensor; None is a dimension that is not known before the model runs."""


def size_in_words(size: Size | None) -> str:
    """[?, 3, ?, ?], or that nothing is known."""
    return "of unknown shape" if size is None else "[" + ", ".join("?" if n is None else str(n) for n in size) + "]"


def check_input_shapes(inputs: Mapping[str, Size | None], given: Mapping[str, tuple[int, ...]]) -> None:
    """Raises CheckpointError, naming the model's inputs, if a given shape is for none of them or has another rank."""
    known = "the model's inputs are " + ", ".join(f"{name} {size_in_words(size)}" for name, size in inputs.items())
    for name, shape in given.items():
        fact = f"the shape {list(shape)} cannot be set for input '{name}'"
        if name not in inputs:
            raise CheckpointError(f"{fact}: there is no such input; {known}")
        if not shape or min(shape) < 1:
            raise CheckpointError(f"{fact}: every dimension is 1 or more; {known}")
        size = inputs[name]
        if size is not None and len(size) != len(shape):
            raise CheckpointError(f"{fact}: it has {len(size)} dimensions, not {len(shape)}; {known}")


def unknown_size_reason(inputs: Mapping[str, Size | None]) -> str:
    """Why a layer's height and width are not known: which --input-shape is missing, if that is what is missing."""
    options = []
    for name, size in inputs.items():
        if size is None:
            options.append(f"--input-shape {name}:1,CHANNELS,HEIGHT,WIDTH")
        elif None in size:
            numbers = [str(n or ("SIZE" if i else 1)) for i, n in enumerate(size)]
            options.append(f"--input-shape {name}:{','.join(numbers)}")
    if options:
        return f"height and width of its input are not known; give them with {' '.join(options)}"
    return "height and width of its input do not follow from the model's inputs; only fixed sizes are compiled"
