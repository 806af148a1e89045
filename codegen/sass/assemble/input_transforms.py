"""Words that change inputs in the ring before they are multiplied by weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Preparation:
    """[words] each, in their order. Operations are these words and the multiply-adds, all in their order."""

    before: NDArray[np.int64]
    """The multiply-add before which each comes."""
    register: NDArray[np.int64]
    """Of the input; the result takes its place."""
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    """The halves of the word, without scheduling bits."""
    cycles: int = 0
    """Until a multiply-add may read the result."""
    apart: int = 1
    """Cycles to the next of them."""

    @staticmethod
    def none() -> Preparation:
        """Of inputs that are multiplied as they are."""
        nothing = np.zeros(0, dtype=np.int64)
        return Preparation(nothing, nothing, nothing, nothing)

    def __len__(self) -> int:
        return len(self.before)

    @property
    def operations(self) -> NDArray[np.int64]:
        """[words]: the number of each among the operations."""
        return self.before + np.arange(len(self))

    def multiply_adds(self, count: int) -> NDArray[np.int64]:
        """The numbers among the operations of so many multiply-adds."""
        numbers = np.arange(count)
        return numbers + np.searchsorted(self.before, numbers, side="right")

    def begun(self, multiply_adds: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many operations come before each of these multiply-adds and the words right before it."""
        return multiply_adds + np.searchsorted(self.before, multiply_adds, side="left")
