"""Packing of float16: which two outputs a lane computes at once, in the halves of its registers."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.ir.layer_spec import DataType
from codegen.ir.tiling import Tiling


@dataclass(frozen=True)
class Pairing:
    """Columns, images and neighbours in a word; at most one of them is 2."""

    columns: int
    """Columns in a word, as far apart as a tile is wide."""
    images: int
    neighbours: int = 1
    """Adjacent columns in a word, as they lie in memory: the geometry counts them as one."""

    @property
    def halves(self) -> int:
        """Outputs in a register."""
        return self.columns * self.images * self.neighbours

    @property
    def whole_words(self) -> bool:
        """Whether the halves of a word are stored as one."""
        return self.neighbours > 1


_SINGLE, _IMAGES, _COLUMNS = Pairing(1, 1), Pairing(1, 2), Pairing(2, 1)


def pairing(data_type: DataType, tiling: Tiling, neighbours: int = 1) -> Pairing:
    """The packing of a layer: neighbours if the geometry has such words; else two images if a block has an even number
    of them, whose words lie as those of float32 do; else two columns. A table is multiplied in float32.
    """
    if neighbours > 1:
        return Pairing(1, 1, neighbours)
    if data_type != "float16" or tiling.reads_table:
        return _SINGLE
    return _IMAGES if tiling.images % 2 == 0 else _COLUMNS
