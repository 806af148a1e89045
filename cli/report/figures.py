"""Figures of a report: large numbers, strips of layers, pictures of a layer's zeros."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import ConvTranspose2d, LayerSpec, Linear

if TYPE_CHECKING:
    from farm.reports.zero_map import ZeroMap

KINDS = {
    "convolution": "Convolution",
    "pointwise": "1x1 convolution",
    "grouped": "Grouped convolution",
    "transposed": "Transposed convolution",
    "linear": "Fully connected",
}
"""Kinds of layers, each with a colour of its own: name of the CSS class, and words for the key."""

LEVELS = 8
"""Shades of a cell that has non-zeros."""
INK = (59, 130, 246)
"""A blue that is visible on white and on black."""
FAINTEST = 0.25
"""Opacity of the lightest shade."""
PICTURE_WIDTH, LEAST_HEIGHT, MOST_HEIGHT = 192, 24, 192
"""In CSS pixels."""


def kind_of(spec: LayerSpec) -> str:
    """The key of KINDS that describes a layer."""
    if isinstance(spec, Linear):
        return "linear"
    if isinstance(spec, ConvTranspose2d):
        return "transposed"
    if spec.groups > 1:
        return "grouped"
    return "pointwise" if (spec.kernel_height, spec.kernel_width) == (1, 1) else "convolution"


@dataclass(frozen=True)
class Figure:
    """A large number with a label and a line of detail."""

    value: str
    label: str
    detail: str


@dataclass(frozen=True)
class Segment:
    """A layer in a strip."""

    name: str
    kind: str
    """A key of KINDS."""
    target: str
    """Id of the layer's card on the page."""
    amount: float
    """Time or bytes, which the width is proportional to; not negative."""
    words: str
    """The amount, as in 12.3 us, 39%."""


@dataclass(frozen=True)
class Strip:
    """All layers of a job for some architectures, side by side."""

    title: str
    amount: str
    """The sum over the layers, in words."""
    segments: tuple[Segment, ...]
    share: float
    """Width of the strip, as a share of the longest one's."""
    source: str = ""
    """Origin of the amounts, in words."""
    slowest: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Picture:
    """An image of a layer's weights."""

    source: str
    """The PNG as a data URL."""
    width: int
    height: int
    words: str
    caption: str


def zeros_picture(zeros: ZeroMap, *, words: str, caption: str = "") -> Picture:
    """The layer's weights, non-zeros dark; a cell that stands for several weights is darker the more are non-zero."""
    rows, columns = zeros.densities.shape
    height = min(MOST_HEIGHT, max(LEAST_HEIGHT, round(PICTURE_WIDTH * rows / columns)))
    data = base64.b64encode(_png(_shades(zeros.densities))).decode()
    return Picture(f"data:image/png;base64,{data}", PICTURE_WIDTH, height, words, caption)


def _shades(densities: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Shade 0 for cells without a non-zero, LEVELS for the densest cells."""
    densest = float(densities.max(initial=0.0)) or 1.0
    return np.ceil(densities / densest * LEVELS).astype(np.uint8)


def _png(shades: NDArray[np.uint8]) -> bytes:
    """A PNG with a palette, whose shade 0 is transparent."""
    rows, columns = shades.shape
    opacities = [0, *(round(255 * (FAINTEST + (1 - FAINTEST) * i / LEVELS)) for i in range(1, LEVELS + 1))]
    lines = b"".join(b"\0" + row.tobytes() for row in shades)  # the zero byte: no filter in this line
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(INK) * len(opacities)),
        (b"tRNS", bytes(opacities)),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    written = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)
