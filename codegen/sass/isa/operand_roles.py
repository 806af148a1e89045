"""What a word does with its operands: which registers and predicates its fields name, and whether it writes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.encoding import DESTINATION, PREDICATE, SIZE, SOURCE_A, SOURCE_B, SOURCE_C, Field, Words
from codegen.sass.isa.opcodes import (
    COMPARE_PREDICATE,
    CONTINUED,
    LAST,
    PREDICATE_MASK,
    PREDICATES,
    REGISTERS,
    SHAPES,
    UNIFORM_A,
    UNIFORM_ADDRESS,
    UNIFORM_B,
    UNIFORM_C,
    UNIFORM_COMPARE,
    UNIFORM_DESTINATION,
    UNIFORM_PREDICATES,
    UNIFORM_REGISTERS,
    WHOLE_64,
    WORDS_OF_SIZE,
    Shape,
)

REGISTER_FORM, _THIRD_IMMEDIATE, _THIRD_CONSTANT, _IMMEDIATE, _CONSTANT, _UNIFORM, _THIRD_UNIFORM = range(1, 8)
"""The upper three bits of an arithmetic opcode: both registers; or the one of the 32 bits from bit 32 on."""
_MEMORY: Final = ("shared", "global", "local")
_UNIFORM_RESULTS: Final = ("ULDC", "S2UR")
Uses = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Places of words, and a resource that each uses."""


@dataclass(frozen=True)
class Role:
    """What words of some opcodes do with resources of a kind: which number they name, and how many from there on."""

    kind: int
    field: Field | None
    """None: number 0."""
    width: int = 1
    """-1: as SIZE says."""
    only_if: Field | None = None
    """A field that is not zero in the words that do."""
    unless: Field | None = None
    """A field that is zero in the words that do."""
    beyond: int = 0
    """Added to the number."""

    def accesses(self, words: Words, places: NDArray[np.int64]) -> Iterator[Uses]:
        """Of words [instructions, 2] at these places."""
        numbers = np.zeros(len(places), np.int64) if self.field is None else self.field.get(words)
        real = numbers != LAST[self.kind]
        if self.only_if is not None:
            real &= self.only_if.get(words) != 0
        if self.unless is not None:
            real &= self.unless.get(words) == 0
        if not real.any():
            return
        places, numbers = places[real], numbers[real] + (self.kind + self.beyond)
        if self.width > 0:
            yield from ((places, numbers + i) for i in range(self.width))
            return
        widths = WORDS_OF_SIZE[SIZE.get(words[real])]
        for i in range(int(widths.max())):
            wide = np.flatnonzero(widths > i)
            yield places[wide], numbers[wide] + i


@dataclass(frozen=True, eq=False)
class Roles:
    """The roles of several opcodes as a table, for words of which there are few of each; [roles] but for the first."""

    begins: NDArray[np.int64]
    """[opcodes + 1]: where those of each begin."""
    writes: NDArray[np.bool_]
    half: NDArray[np.int64]
    shift: NDArray[np.uint64]
    mask: NDArray[np.uint64]
    constant: NDArray[np.int64]
    """The number that is none."""
    base: NDArray[np.int64]
    width: NDArray[np.int64]
    """-1: as SIZE says."""
    asked_half: NDArray[np.int64]
    asked: NDArray[np.uint64]
    """Bits of that half, if any: whether one of them is set must be as `wanted` says."""
    wanted: NDArray[np.bool_]

    @staticmethod
    @lru_cache(64)
    def of(opcodes: tuple[int, ...]) -> Roles:
        of_each = [(reads_of(opcode), writes_of(opcode)) for opcode in opcodes]
        roles = [(role, kind == 1) for both in of_each for kind in (0, 1) for role in both[kind]]
        fields = [role.field or Field(0, 0) for role, _ in roles]
        conditions = [role.only_if or role.unless or Field(0, 0) for role, _ in roles]
        return Roles(
            begins=np.cumsum([0] + [len(reads) + len(writes) for reads, writes in of_each]),
            writes=np.array([writes for _, writes in roles], dtype=np.bool_),
            half=np.array([field.first // 64 for field in fields], dtype=np.int64),
            shift=np.array([field.first % 64 for field in fields], dtype=np.uint64),
            mask=np.array([(1 << field.bits) - 1 for field in fields], dtype=np.uint64),
            constant=np.array([LAST[role.kind] for role, _ in roles], dtype=np.int64),
            base=np.array([role.kind + role.beyond for role, _ in roles], dtype=np.int64),
            width=np.array([role.width for role, _ in roles], dtype=np.int64),
            asked_half=np.array([field.first // 64 for field in conditions], dtype=np.int64),
            asked=np.array([(1 << field.bits) - 1 << field.first % 64 for field in conditions], dtype=np.uint64),
            wanted=np.array([role.only_if is not None for role, _ in roles], dtype=np.bool_),
        )

    def accesses(self, words: Words, places: NDArray[np.int64], opcodes: NDArray[np.int64]) -> tuple[Uses, Uses]:
        """What words [instructions, 2] at these places read and write; `opcodes` are numbers of those of the table."""
        counts = np.diff(self.begins)[opcodes]
        ends = np.cumsum(counts)
        owner = np.repeat(np.arange(len(words)), counts)
        role = np.arange(len(owner)) + np.repeat(self.begins[opcodes] - ends + counts, counts)
        numbers = (words[owner, self.half[role]] >> self.shift[role] & self.mask[role]).astype(np.int64)
        asked = (words[owner, self.asked_half[role]] & self.asked[role]) != 0
        real = np.flatnonzero((numbers != self.constant[role]) & (asked == self.wanted[role]))
        owner, role, numbers = owner[real], role[real], numbers[real]
        widths = self.width[role]
        widths = np.where(widths < 0, WORDS_OF_SIZE[SIZE.get(words)][owner], widths)
        each = np.repeat(np.arange(len(real)), widths)
        beyond = np.arange(len(each)) - np.repeat(np.cumsum(widths) - widths, widths)
        resources = (numbers + self.base[role])[each] + beyond
        at, writes = places[owner][each], self.writes[role][each]
        return (at[~writes], resources[~writes]), (at[writes], resources[writes])


@cache
def reads_of(opcode: int) -> tuple[Role, ...]:
    """What words of an opcode read."""
    return tuple(_reads(SHAPES[opcode & 0x1FF], opcode >> 9))


@cache
def writes_of(opcode: int) -> tuple[Role, ...]:
    """What they write."""
    return tuple(_writes(SHAPES[opcode & 0x1FF]))


def _reads(shape: Shape, form: int) -> Iterator[Role]:
    uniform = shape.unit == "uniform"
    predicates = UNIFORM_PREDICATES if uniform or shape.name == "S2UR" else PREDICATES
    kind = UNIFORM_REGISTERS if uniform else REGISTERS
    for field in (PREDICATE, *shape.reads):
        yield Role(predicates, field)
    if shape.name == "ISETP":
        yield Role(predicates, COMPARE_PREDICATE, only_if=CONTINUED)
    if shape.name == "PLOP3":
        yield Role(PREDICATES, COMPARE_PREDICATE, unless=UNIFORM_COMPARE)
        yield Role(UNIFORM_PREDICATES, COMPARE_PREDICATE, only_if=UNIFORM_COMPARE)
    if shape.name == "P2R":
        for predicate in range(7):
            yield Role(PREDICATES, None, only_if=Field(PREDICATE_MASK.first + predicate, 1), beyond=predicate)
    if shape.a:
        yield Role(kind, UNIFORM_A if uniform else SOURCE_A, shape.a)
    if shape.unit in _MEMORY:
        yield from _memory(shape)
        return
    second = shape.b and form != _IMMEDIATE
    if shape.b and not shape.c and form in (_THIRD_IMMEDIATE, _THIRD_CONSTANT, _THIRD_UNIFORM):
        form = {_THIRD_IMMEDIATE: _IMMEDIATE, _THIRD_CONSTANT: _CONSTANT, _THIRD_UNIFORM: _UNIFORM}[form]
        second = form != _IMMEDIATE
    if not (second or shape.c):
        return
    low, high = (UNIFORM_B, UNIFORM_C) if uniform else (SOURCE_B, SOURCE_C)
    if form == REGISTER_FORM:
        yield Role(kind, low, shape.b)
    elif form in (_THIRD_IMMEDIATE, _THIRD_CONSTANT, _THIRD_UNIFORM):
        yield Role(kind, high, shape.b)
    if form in (_UNIFORM, _THIRD_UNIFORM):
        yield Role(UNIFORM_REGISTERS, UNIFORM_B, shape.b if form == _UNIFORM else shape.c)
    if shape.c and form not in (_THIRD_IMMEDIATE, _THIRD_CONSTANT, _THIRD_UNIFORM):
        yield Role(kind, high, shape.c)


def _memory(shape: Shape) -> Iterator[Role]:
    """What a memory access reads beside its address register."""
    if shape.b:
        yield Role(REGISTERS, SOURCE_B, shape.b)
    if shape.name == "LDGSTS":
        yield Role(REGISTERS, DESTINATION)
    field = UNIFORM_C if shape.name in ("STG", "LDGSTS", "STS", "STL") else UNIFORM_B
    yield Role(UNIFORM_REGISTERS, field, 2 if shape.unit == "global" else 1, only_if=UNIFORM_ADDRESS)


def _writes(shape: Shape) -> Iterator[Role]:
    uniform = shape.unit == "uniform" or shape.name in _UNIFORM_RESULTS
    if shape.to:
        field, kind = (UNIFORM_DESTINATION, UNIFORM_REGISTERS) if uniform else (DESTINATION, REGISTERS)
        yield Role(kind, field, shape.to)
        if shape.name == "CS2R":
            yield Role(kind, field, only_if=WHOLE_64, beyond=1)
    for predicate in shape.writes:
        yield Role(UNIFORM_PREDICATES if uniform else PREDICATES, predicate)
