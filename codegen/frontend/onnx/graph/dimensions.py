"""Dimensions of tensors as known before the model runs, and the dimension that counts the images of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard


@dataclass(frozen=True)
class PerImage:
    """A dimension of factor * images + offset."""

    factor: int
    offset: int = 0


Dimension: TypeAlias = int | PerImage | str | None
"""A number, a multiple of the number of images, a symbol (equal symbols are equal numbers), or None if unknown."""
Shape: TypeAlias = tuple[Dimension, ...]
Size: TypeAlias = tuple[int | None, ...]
"""A shape whose dimensions are numbers or unknown."""
Inputs: TypeAlias = Mapping[str, Shape | None]
"""Shapes of a model's inputs by name."""


@dataclass(frozen=True)
class Images:
    """The dimension of a model that counts the images of a batch: a symbol, or a fixed number."""

    name: str = ""
    """Symbol of the dimensions that are the number of images; empty where the file fixes the number."""
    fixed: int | None = None
    """The number that the file fixes."""

    def rows(self, dimensions: Iterable[Dimension]) -> int | None:
        """Product of the dimensions per image: rows per image of a tensor. None if unknown or not a whole number."""
        rows, multiples = 1, 0
        for dimension in dimensions:
            if isinstance(dimension, int):
                rows *= dimension
            elif isinstance(dimension, PerImage) and not dimension.offset and not multiples:
                rows, multiples = rows * dimension.factor, 1
            else:
                return None
        if multiples or (rows == 1 and self.fixed):
            return rows
        return rows // self.fixed if self.fixed and rows % self.fixed == 0 else None


def images_of(inputs: Inputs, given: Inputs) -> Images:
    """The dimension of the file's inputs that counts the images; `given` shapes then override its number.

    An open dimension whose name contains "batch" comes first; else the first dimension. Exception: a file that fixes
    the first dimension at more than 1 and leaves only the second one open has sequences first and images second.
    """
    rank = min(2, max((len(shape or ()) for shape in inputs.values()), default=0))
    places = [
        (dimension, name, axis)
        for name, shape in inputs.items()
        if len(shape or ()) >= rank
        for axis, dimension in enumerate(shape or ())
    ]
    open_ones = [place for place in places if isinstance(place[0], str)]
    first = [place for place in places if place[2] == 0]
    chosen = [place for place in open_ones if "batch" in str(place[0]).lower()]
    if not chosen and len(open_ones) == 1 and open_ones[0][2] == 1 and first[0][0] != 1:
        chosen = open_ones
    for _, name, axis in [*chosen, *(place for place in first if place in open_ones), *first][:1]:
        count = (given.get(name) or inputs[name] or ())[axis]
        if isinstance(count, str):
            return Images(name=count)
        return Images(fixed=count if rank > 1 and isinstance(count, int) else 1)
    return Images()


def is_known(shape: Shape | None) -> TypeGuard[tuple[int, ...]]:
    """Whether all dimensions are numbers."""
    return shape is not None and all(isinstance(dimension, int) for dimension in shape)


def in_words(shape: Shape | None) -> str:
    """A shape for messages, as in [?, 3, ?, ?]; "of unknown shape" if not even its rank is known."""
    if shape is None:
        return "of unknown shape"
    return "[" + ", ".join(str(each) if isinstance(each, int) else "?" for each in shape) + "]"
