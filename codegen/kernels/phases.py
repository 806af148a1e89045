"""The phases of a transposed convolution: outputs of one position, each with a part of the kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phases:
    """One dimension of a transposed convolution as one of stride 1.

    Output o gets input i through tap r where o + padding = stride * i + dilation * r: all outputs with the same
    (o + padding) // stride are one position, (o + padding) % stride is the phase.
    """

    extent: int
    """Taps of a phase, at most."""
    padding: int
    """Padding before the input; negative if the first position needs no earlier input than a later one."""
    positions: int
    crop: int

    @staticmethod
    def of(stride: int, dilation: int, taps: int, padding: int, outputs: int) -> Phases:
        extent = (taps - 1) * dilation // stride + 1
        first, last = padding // stride, (outputs - 1 + padding) // stride
        return Phases(extent, extent - 1 - first, last - first + 1, padding % stride)
