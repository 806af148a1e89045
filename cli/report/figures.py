"""The pictures of a report: bars, strips of layers, and a layer's zeros; of HTML alone, each with its words."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cli.report.html import Markup, element
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
"""Of layers, each with a colour of its own: by class name of the style sheet, in the order of the key."""

LEVELS = 8
"""Shades of a cell that has non-zeros."""
INK = (59, 130, 246)
"""A blue that is seen on white and on black."""
FAINTEST = 0.25
"""How much of it the lightest shade has."""
PICTURE_WIDTH, LEAST_HEIGHT, MOST_HEIGHT = 192, 24, 192
"""In CSS pixels."""


def kind_of(spec: LayerSpec) -> str:
    """Which of KINDS a layer is."""
    if isinstance(spec, Linear):
        return "linear"
    if isinstance(spec, ConvTranspose2d):
        return "transposed"
    if spec.groups > 1:
        return "grouped"
    return "pointwise" if (spec.kernel_height, spec.kernel_width) == (1, 1) else "convolution"


@dataclass(frozen=True)
class Segment:
    """A layer in a strip."""

    name: str
    kind: str
    target: str
    """Id of the element that tells more."""
    amount: float
    """What its width stands for; not negative."""
    words: str
    """The amount, as in 12.3 us, 39%."""


def strip(title: str, segments: Sequence[Segment], share: float = 1.0) -> Markup:
    """Layers from left to right, as wide as their amounts; all together have this share of the page's width."""
    items = [
        element(
            "li",
            element(
                "a",
                element("span", segment.name, aria_hidden="true"),
                href=f"#{segment.target}",
                title=f"{segment.name}: {segment.words}",
                aria_label=f"{segment.name}: {segment.words}",
            ),
            class_=segment.kind,
            style=f"flex-grow:{segment.amount:.6g}",
        )
        for segment in segments
        if segment.amount > 0
    ]
    return element("ol", *items, class_="strip", aria_label=title, style=f"width:{max(share, 0.01):.2%}")


def strip_key(kinds: Sequence[str]) -> Markup:
    """What the colours of strips mean, of those that occur."""
    items = (element("li", element("i", class_=kind), KINDS[kind]) for kind in KINDS if kind in kinds)
    return element("ul", *items, class_="key", aria_label="Colours")


def bar(words: str, *shares: tuple[str, float]) -> Markup:
    """A bar of parts (class, share of the bar's width), which add up to at most 1; `words` say the same."""
    parts = (element("i", class_=name, style=f"width:{share:.2%}") for name, share in shares if share > 0)
    return element("div", *parts, class_="bar", role="img", aria_label=words)


def zeros_picture(layer: str, zeros: ZeroMap, *, words: str) -> Markup:
    """The layer's weights, non-zeros dark; where a cell stands for several weights, the more of them the darker."""
    rows, columns = zeros.densities.shape
    height = min(MOST_HEIGHT, max(LEAST_HEIGHT, round(PICTURE_WIDTH * rows / columns)))
    data = base64.b64encode(_png(_shades(zeros.densities))).decode()
    return element(
        "img",
        class_="zeros",
        src=f"data:image/png;base64,{data}",
        alt=f"Non-zero weights of {layer}: {words}",
        width=str(PICTURE_WIDTH),
        height=str(height),
    )


def _shades(densities: NDArray[np.float64]) -> NDArray[np.uint8]:
    """0 where all is zero, LEVELS in the densest cells."""
    densest = float(densities.max(initial=0.0)) or 1.0
    return np.ceil(densities / densest * LEVELS).astype(np.uint8)


def _png(shades: NDArray[np.uint8]) -> bytes:
    """An image of a palette: shade 0 is transparent."""
    rows, columns = shades.shape
    opacities = [0, *(round(255 * (FAINTEST + (1 - FAINTEST) * i / LEVELS)) for i in range(1, LEVELS + 1))]
    lines = b"".join(b"\0" + row.tobytes() for row in shades)  # each line says that it is not filtered
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
