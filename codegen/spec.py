"""Conv2d: the shape of a layer, which every stage and every process speaks of. Needs no NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Conv2d:
    """Everything a template of a 2-D convolution depends on, and nothing more (weights and batch are not in it)."""

    channels: int
    height: int
    width: int
    kernels: int
    kernel_height: int
    kernel_width: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right, in input elements."""

    @property
    def output_height(self) -> int:
        return (self.height + self.padding[0] + self.padding[2] - self.kernel_height) // self.stride[0] + 1

    @property
    def output_width(self) -> int:
        return (self.width + self.padding[1] + self.padding[3] - self.kernel_width) // self.stride[1] + 1

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """C, H, W of one image."""
        return self.channels, self.height, self.width

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """K, H', W' of one image."""
        return self.kernels, self.output_height, self.output_width

    @property
    def weights_shape(self) -> tuple[int, int, int, int]:
        """K, C, R, S."""
        return self.kernels, self.channels, self.kernel_height, self.kernel_width

    @property
    def weights_count(self) -> int:
        return self.kernels * self.channels * self.kernel_height * self.kernel_width

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values; `spec_from_json` is its inverse."""
        return {
            "operator": "conv2d",
            "channels": self.channels,
            "height": self.height,
            "width": self.width,
            "kernels": self.kernels,
            "kernel_height": self.kernel_height,
            "kernel_width": self.kernel_width,
            "stride": list(self.stride),
            "padding": list(self.padding),
        }

    def __str__(self) -> str:
        c, h, w = self.input_shape
        return f"{c}x{h}x{w} -> {self.kernels}, {self.kernel_height}x{self.kernel_width}"


LayerSpec = Conv2d
"""The union of the operators' specs; a second operator joins it here."""


def spec_from_json(value: dict[str, Any]) -> LayerSpec:
    """Reads what `to_json` wrote. Raises KeyError or ValueError on anything else."""
    fields = dict(value)
    if (operator := fields.pop("operator")) != "conv2d":
        raise ValueError(f"unknown operator {operator!r}")
    sy, sx = fields.pop("stride")
    top, left, bottom, right = fields.pop("padding")
    return Conv2d(**fields, stride=(sy, sx), padding=(top, left, bottom, right))


@dataclass(frozen=True)
class SkippedLayer:
    """A node that is not compiled, and why, in words."""

    name: str
    operator: str
    reason: str
