"""Max pools that halve a map: the windows that networks have, for which glue.cu has a kernel of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OUTPUTS_OF_THREAD = 4
"""Of one row."""
PACK_BYTES = 16
"""What a thread loads at once: rows and images begin at multiples of it."""


@dataclass(frozen=True)
class Halving:
    """Windows of 2x2, or of 3x3 with a column of padding, two apart; the output's rows are half as long."""

    window: int
    height: int
    out_height: int
    out_width: int
    top: int
    """Rows of padding above."""

    @property
    def kernel(self) -> str:
        """Its name in glue.cu, without the type."""
        return f"halve_{self.window}"

    def threads(self, channels: int) -> int:
        """Of an image."""
        return channels * self.out_height * self.fours

    @property
    def fours(self) -> int:
        """Threads of a row."""
        return self.out_width // OUTPUTS_OF_THREAD

    @staticmethod
    def of(
        size: Sequence[int],
        outputs: Sequence[int],
        extent: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        begins: Sequence[int],
    ) -> Halving | None:
        """Of a max pool, each of whose sizes is for height and width; None where it is no such one."""
        if len(size) != 2 or list(strides) != [2, 2] or list(dilations) != [1, 1] or extent[0] != extent[1]:
            return None
        window, (top, left) = extent[0], begins
        fits = window in (2, 3) and left == window - 2 and 2 * outputs[1] == size[1]
        if not fits or outputs[1] % OUTPUTS_OF_THREAD:
            return None
        return Halving(window, size[0], outputs[0], outputs[1], top)
