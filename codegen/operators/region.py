"""Which part of an output something covers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Region:
    """A box of the output [N, K, H', W'] within one image."""

    image: int
    kernels: slice
    rows: slice
    columns: slice

    @property
    def index(self) -> tuple[int, slice, slice, slice]:
        """Selects the box from the output."""
        return self.image, self.kernels, self.rows, self.columns
