"""The fused multiply-add in float32 with one rounding, from float64 arithmetic."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.alu.arithmetic import Lanes

_TIES = np.int64(0x0FFFFFFF)
"""The lower 28 bits of a float64: zero in every value halfway between two float32, also subnormal ones."""


class FusedMultiplyAdd:
    """Computes a * b + c for all lanes, in buffers that are reused.

    The product of two float32 is exact in float64. Its sum with a third is rounded to 53 bits, and again to 24 when
    it is assigned. That is wrong only if the first rounding ends on a tie of the second; such sums are rounded to odd
    instead (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Trans. Computers 57(4), 2008).
    """

    def __init__(self, lanes: int) -> None:
        self._product = np.empty(lanes, dtype=np.float64)
        self._sum = np.empty(lanes, dtype=np.float64)
        self._low = np.empty(lanes, dtype=np.int64)

    def window(self, lanes: int) -> FusedMultiplyAdd:
        """A FusedMultiplyAdd for fewer lanes that shares these buffers."""
        part = copy(self)
        part._product, part._sum, part._low = self._product[:lanes], self._sum[:lanes], self._low[:lanes]
        return part

    def __call__(self, a: Lanes, b: Lanes, c: Lanes) -> NDArray[np.float64]:
        """A float64 that rounds to the float32 result; valid until the next call."""
        product, total = self._product, self._sum
        product[...] = a
        np.multiply(product, b, out=product)
        total[...] = c
        np.add(product, total, out=total)
        np.bitwise_and(total.view(np.int64), _TIES, out=self._low)
        if not self._low.all():
            self._round_ties(c)
        return total

    def _round_ties(self, c: Lanes) -> None:
        # Sums that are exact in float32 are common (zeros) and right; NaN and infinity compare false.
        suspects = np.flatnonzero(self._low == 0)
        sums = self._sum[suspects]
        suspects = suspects[np.abs(sums - sums.astype(np.float32)) > 0]
        if suspects.size:
            addend = np.broadcast_to(c, self._sum.shape)[suspects].astype(np.float64)
            self._sum[suspects] = _rounded_to_odd(self._product[suspects], addend, self._sum[suspects])


def _rounded_to_odd(x: NDArray[Any], y: NDArray[Any], total: NDArray[np.float64]) -> NDArray[np.float64]:
    """x + y = `total` + an error; moves an inexact even `total` one step towards the exact sum."""
    back = total - x
    error = (x - (total - back)) + (y - back)
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where((error != 0) & (bits & 1 == 0), bits + step, bits).view(np.float64)
