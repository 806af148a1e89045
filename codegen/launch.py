"""How to launch a kernel: what the manifest tells a program, and what the emulator and the GPU run by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from codegen.spec import DataType


@dataclass(frozen=True)
class GridSize:
    """One dimension of the grid: `fixed` blocks, times one per `images` images of the batch where that is set."""

    fixed: int = 1
    images: int | None = None

    def at(self, batch: int) -> int:
        return self.fixed * (1 if self.images is None else -(-batch // self.images))


@dataclass(frozen=True)
class Launch:
    """One kernel launch; grid and block are x, y, z.

    The arguments, in order: `input`, `output` and, of layers that add one, `residual` are pointers to elements, at
    multiples of 16 bytes; `images` is the int32 number of images in the batch, or of rows of a Linear.
    """

    kernel: str
    grid: tuple[GridSize, GridSize, GridSize]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory."""
    arguments: tuple[str, ...] = ("input", "output", "images")
    data_type: DataType = "float32"
    """Of the elements."""

    def grid_at(self, batch: int) -> tuple[int, int, int]:
        x, y, z = (size.at(batch) for size in self.grid)
        return x, y, z

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "grid": [{"fixed": size.fixed, "images": size.images} for size in self.grid],
            "block": list(self.block),
            "shared_bytes": self.shared_bytes,
            "arguments": [
                {"name": name, "type": "int32" if name == "images" else f"{self.data_type}*"} for name in self.arguments
            ],
        }
