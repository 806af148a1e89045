"""Inputs that are brought within the bounds of their channel, in their place of the ring.

ptxas makes one FMNMX of each bound that there is; so does this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.assemble.input_transforms import Preparation
from codegen.sass.isa import encoding
from codegen.sass.isa.opcodes import FMNMX_IMMEDIATE

CYCLES = 5
"""From a bound to the first product of its input."""
_APART = 2
"""ptxas never leaves less between two words of this unit."""
_REGISTER_BITS = 8
_BOUNDED = re.compile(r"^mov\.f32 x(\d+),(%f\d+);$")
_BOUND = re.compile(r"^mov\.f32 b,0f[0-9A-F]{8}; (max|min)\.NaN\.f32 x(\d+),x\2,b; // farm\.(low|high) \2$")
_SIDES = {"low": "max", "high": "min"}
_NOT_BELOW_OR_ABOVE = np.array([0x07820000, 0x03820000], dtype=np.int64)
"""Of FMNMX: which of two it takes, and that NaN is one of them."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Which inputs there are; they have their numbers in the template."""

    sources: tuple[str, ...]
    """[inputs]: the register that each is loaded into."""
    of_slot: NDArray[np.int64]
    """[slots]: the input of each."""

    @staticmethod
    def of(turn: list[str], input_lines: list[int], bound_lines: list[int], of_slot: NDArray[np.int64]) -> Bounds:
        """Of the lines of a loop. Raises MachineCodeError for what the assembler does not do."""
        inputs = [_BOUNDED.match(turn[line]) for line in input_lines]
        bounds = [_BOUND.match(turn[line]) for line in bound_lines]
        sources = tuple(each[2] for each in inputs if each)
        if len(sources) != len(inputs) or any(each is None or _SIDES[each[3]] != each[1] for each in bounds):
            raise MachineCodeError("bounds of inputs that are no greatest and least of two")
        return Bounds(sources, of_slot)

    def source_of(self, name: str) -> str:
        """The register that an input `x0`, `x1`, ... was loaded into."""
        return self.sources[int(name.removeprefix("x"))]

    def preparation(
        self,
        limits: NDArray[np.float32],
        slot: NDArray[np.int64],
        segment: NDArray[np.int64],
        register: NDArray[np.int64],
        fetched: NDArray[np.int64],
        begin: NDArray[np.int64],
    ) -> Preparation:
        """Of products [products] of these slots, whose inputs are in these registers; one number of `fetched` has what
        one load brings. No input is there before the product `begin` [products].

        Limits are [segments, inputs, 2]: what is infinite is none.
        """
        _, first = np.unique(fetched << _REGISTER_BITS | register, return_index=True)
        first.sort()
        limit = limits[segment[first], self.of_slot[slot[first]]]
        which, side = np.nonzero(np.isfinite(limit))
        product = first[which]
        # Of two bounds the lowest comes first, as in the template.
        follows = (side == 0) & np.isfinite(limit[which, 1])
        before = np.maximum(begin[product], product - CYCLES * (1 + follows))
        order = np.lexsort((product, side, before))
        which, side, product, before = which[order], side[order], product[order], before[order]
        own = register[product]
        value = limit[which, side].view(np.uint32).astype(np.int64)
        low = FMNMX_IMMEDIATE | encoding.ALWAYS << 12 | own << 16 | own << 24 | value << 32
        return Preparation(before, own, low, _NOT_BELOW_OR_ABOVE[side], CYCLES, _APART)
