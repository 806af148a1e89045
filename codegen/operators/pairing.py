"""Pairing: which two outputs a lane of a float16 convolution computes at once, in the halves of its registers."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.spec import DataType
from codegen.tiling import Tiling


@dataclass(frozen=True)
class Pairing:
    """How many columns and how many images a word has; at most one of them is 2."""

    columns: int
    images: int

    @property
    def halves(self) -> int:
        """Outputs in a register."""
        return self.columns * self.images


_SINGLE, _IMAGES, _COLUMNS = Pairing(1, 1), Pairing(1, 2), Pairing(2, 1)


def pairing(data_type: DataType, tiling: Tiling) -> Pairing:
    """Two images where a block has an even number of them: then words lie as those of float32 do. Else two columns."""
    if data_type != "float16":
        return _SINGLE
    return _IMAGES if tiling.images % 2 == 0 else _COLUMNS
