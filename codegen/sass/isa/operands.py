"""Which registers each word reads and writes, and where a register is read or written before and after a word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.isa.encoding import OPCODE, Words
from codegen.sass.isa.opcodes import SHAPES, Shape, Unit
from codegen.sass.isa.operand_roles import Roles, Uses, reads_of, writes_of

_RESOURCE_SHIFT: Final = 32
MANY: Final = 256
"""Words of an opcode from which on they are worth looking at on their own."""


@dataclass(frozen=True, eq=False)
class Accesses:
    """Which word uses which resource, in the order of the resources, then of the words: [accesses] each."""

    keys: NDArray[np.int64]
    """Resource and word in one number, sorted."""
    length: int
    """Of the code, in words."""

    @staticmethod
    def of(uses: Iterable[Uses], length: int) -> Accesses:
        word, resource = (np.concatenate(each) for each in zip(*uses, strict=True))
        return Accesses(np.sort(resource << _RESOURCE_SHIFT | word), length)

    @cached_property
    def word(self) -> NDArray[np.int64]:
        return self.keys & ((1 << _RESOURCE_SHIFT) - 1)

    @cached_property
    def resource(self) -> NDArray[np.int64]:
        return self.keys >> _RESOURCE_SHIFT

    def where(self, chosen: NDArray[np.bool_]) -> Accesses:
        return Accesses(self.keys[chosen], self.length)

    @cached_property
    def _ended(self) -> NDArray[np.int64]:
        """The keys and one of no resource, which is also what comes before the first."""
        return np.append(self.keys, -1)

    def before(self, resources: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last word before each place that uses its resource, or -1."""
        found = self.index_before(resources, places)
        return np.where(found < 0, -1, self._ended[found] & ((1 << _RESOURCE_SHIFT) - 1))

    def index_before(self, resources: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same as an index of these accesses."""
        found = np.searchsorted(self.keys, resources << _RESOURCE_SHIFT | places) - 1
        return np.where(self._ended[found] >> _RESOURCE_SHIFT == resources, found, -1)

    def hold(self, resources: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the word at each place uses its resource."""
        here: NDArray[np.bool_] = self.following(resources, places) == places
        return here

    def following(self, resources: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first word at each place, or behind it, that uses its resource, or the code's length."""
        found = self._ended[np.searchsorted(self.keys, resources << _RESOURCE_SHIFT | places)]
        return np.where(found >> _RESOURCE_SHIFT == resources, found & ((1 << _RESOURCE_SHIFT) - 1), self.length)


@dataclass(frozen=True, eq=False)
class Operands:
    """What a stream reads and writes, and which shape each word has."""

    shapes: tuple[Shape, ...]
    shape_of: NDArray[np.int64]
    """[instructions], an index into `shapes`."""
    reads: Accesses
    writes: Accesses

    def where(self, *units: Unit) -> NDArray[np.bool_]:
        """[instructions]: whether one of these units executes it."""
        return np.array([shape.unit in units for shape in self.shapes], dtype=np.bool_)[self.shape_of]

    def named(self, *names: str) -> NDArray[np.bool_]:
        """[instructions]: whether it is one of these."""
        return np.array([shape.name in names for shape in self.shapes], dtype=np.bool_)[self.shape_of]


def operands(words: Words) -> Operands:
    """What the words [instructions, 2] read and write. Raises MachineCodeError for an opcode that is not known."""
    opcodes = OPCODE.get(words)
    counts = np.bincount(opcodes)
    present = np.flatnonzero(counts)
    number = np.zeros(len(counts), dtype=np.int64)
    number[present] = np.arange(len(present))
    which = number[opcodes]
    for opcode in present.tolist():
        if opcode & 0x1FF not in SHAPES or opcode >> 9 == 0:
            place = int(np.argmax(opcodes == opcode))
            raise MachineCodeError(f"word {place} has the opcode {opcode:#05x}, which is not known here")
    often = counts[present] > MANY
    seldom = np.flatnonzero(~often[which])
    roles = Roles.of(tuple(present.tolist()))
    reads, writes = ([each] for each in roles.accesses(words[seldom], seldom, which[seldom]))
    for i in np.flatnonzero(often).tolist():
        places = np.flatnonzero(which == i)
        chosen = words[places]
        for found, of in ((reads, reads_of), (writes, writes_of)):
            for role in of(int(present[i])):
                found += role.accesses(chosen, places)
    shapes = tuple(SHAPES[opcode & 0x1FF] for opcode in present.tolist())
    return Operands(shapes, which, Accesses.of(reads, len(words)), Accesses.of(writes, len(words)))
