"""Max pools with stride two, for whose usual windows glue.cu has kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OUTPUTS_OF_THREAD = 4
"""Outputs that a thread computes, all of one row."""
PACK_BYTES = 16
"""Bytes that a thread loads at once. Rows and images must begin at multiples of it."""


@dataclass(frozen=True)
class FastMaxPool:
    """A max pool with windows of 2x2, or of 3x3 with a column of padding, and stride two.

    The output's rows are half as long as the input's.
    """

    window: int
    height: int
    out_height: int
    out_width: int
    top: int
    """Rows of padding above the map."""

    @property
    def kernel(self) -> str:
        """The kernel's name in glue.cu, without the data type."""
        return f"max_pool_{self.window}x{self.window}"

    def threads(self, channels: int) -> int:
        """Threads for one image."""
        return channels * self.out_height * self.fours

    @property
    def fours(self) -> int:
        """Threads for one row of the output: groups of four outputs."""
        return self.out_width // OUTPUTS_OF_THREAD

    @staticmethod
    def of(
        size: Sequence[int],
        outputs: Sequence[int],
        extent: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        begins: Sequence[int],
    ) -> FastMaxPool | None:
        """The fast kernel for a max pool, or None if there is none. Each argument is for height and width."""
        if len(size) != 2 or list(strides) != [2, 2] or list(dilations) != [1, 1] or extent[0] != extent[1]:
            return None
        window, (top, left) = extent[0], begins
        fits = window in (2, 3) and left == window - 2 and 2 * outputs[1] == size[1]
        if not fits or outputs[1] % OUTPUTS_OF_THREAD:
            return None
        return FastMaxPool(window, size[0], outputs[0], outputs[1], top)
