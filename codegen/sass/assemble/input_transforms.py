"""Input transforms: words that change inputs in the operand ring before their products, by bounds or gates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa import encoding
from codegen.sass.isa.opcodes import FMNMX_IMMEDIATE, FMUL
from codegen.sass.skeleton.inputs import Bounds

BOUND_CYCLES = 5
"""From a bound to the first product of its input."""
_BOUND_SPACING = 2
"""ptxas never leaves less between two words of this unit."""
_GATE_CYCLES = 4
"""From a multiplication by a gate to the first product of its input."""
_REGISTER_BITS = 8
_NOT_BELOW_OR_ABOVE = np.array([0x07820000, 0x03820000], dtype=np.int64)
"""Upper half of FMNMX for the maximum and the minimum; NaN is propagated."""
_MULTIPLY = FMUL | encoding.ALWAYS << 12
_MULTIPLY_UNSCALED = 1 << 86 - 64
"""Upper half of FMUL: other values of this field double or halve the product."""


@dataclass(frozen=True, eq=False)
class InputTransform:
    """Words [words] that change inputs, in order. Operations are these words and the multiply-adds together."""

    before: NDArray[np.int64]
    """The multiply-add that each comes before."""
    register: NDArray[np.int64]
    """Register of the input; the result replaces it."""
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    """The halves of the word, without scheduling bits."""
    cycles: int = 0
    """Cycles until a multiply-add may read the result."""
    apart: int = 1
    """Cycles between two neighbouring words."""

    @staticmethod
    def none() -> InputTransform:
        """No words: inputs are multiplied as they are loaded."""
        nothing = np.zeros(0, dtype=np.int64)
        return InputTransform(nothing, nothing, nothing, nothing)

    @staticmethod
    def by_gates(before: NDArray[np.int64], register: NDArray[np.int64], gate: NDArray[np.int64]) -> InputTransform:
        """Products of the inputs in `register` and the gates in `gate`, before the multiply-adds `before`."""
        low = _MULTIPLY | register << 16 | register << 24 | gate << 32
        return InputTransform(before, register, low, np.full(len(low), _MULTIPLY_UNSCALED), _GATE_CYCLES)

    @staticmethod
    def by_bounds(
        bounds: Bounds,
        limits: NDArray[np.float32],
        slot: NDArray[np.int64],
        segment: NDArray[np.int64],
        register: NDArray[np.int64],
        run: NDArray[np.int64],
        begin: NDArray[np.int64],
    ) -> InputTransform:
        """One FMNMX for each finite bound of each loaded input, as ptxas has it.

        `limits` are [segments, inputs, 2]. `slot`, `segment` and `register` of the input are [products]; products of
        one `run` have inputs of one load, which is there from the product `begin` [products] on.
        """
        _, first = np.unique(run << _REGISTER_BITS | register, return_index=True)
        first.sort()
        limit = limits[segment[first], bounds.of_slot[slot[first]]]
        which, side = np.nonzero(np.isfinite(limit))
        product = first[which]
        # The lowest value comes first, as in the template.
        follows = (side == 0) & np.isfinite(limit[which, 1])
        before = np.maximum(begin[product], product - BOUND_CYCLES * (1 + follows))
        order = np.lexsort((product, side, before))
        which, side, product, before = which[order], side[order], product[order], before[order]
        own = register[product]
        value = limit[which, side].view(np.uint32).astype(np.int64)
        low = FMNMX_IMMEDIATE | encoding.ALWAYS << 12 | own << 16 | own << 24 | value << 32
        return InputTransform(before, own, low, _NOT_BELOW_OR_ABOVE[side], BOUND_CYCLES, _BOUND_SPACING)

    def __len__(self) -> int:
        return len(self.before)

    @property
    def operations(self) -> NDArray[np.int64]:
        """[words]: the number of each among the operations."""
        return self.before + np.arange(len(self))

    def multiply_adds(self, count: int) -> NDArray[np.int64]:
        """[count]: the number of each multiply-add among the operations."""
        numbers = np.arange(count)
        return numbers + np.searchsorted(self.before, numbers, side="right")

    def begun(self, multiply_adds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of operations before each of these multiply-adds and the words right before it."""
        return multiply_adds + np.searchsorted(self.before, multiply_adds, side="left")
