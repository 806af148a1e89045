"""A part of a layer's output."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Region:
    """A box of the output [N, K, H', W'], or of the output [rows, K] of a Linear, whose rows are `images` here."""

    images: slice
    outputs: slice
    """Output channels."""
    rows: slice = field(default_factory=lambda: slice(None))
    columns: slice = field(default_factory=lambda: slice(None))

    def index(self, ndim: int) -> tuple[slice, ...]:
        """The slices that select the box from an output of `ndim` dimensions, 2 or 4."""
        return (self.images, self.outputs, self.rows, self.columns)[:ndim]


EVERYTHING = Region(slice(None), slice(None))
"""The whole output."""
