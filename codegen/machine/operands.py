"""Which registers each word reads and writes, for the instructions that ptxas makes of the farm's kernels for sm_90.

Opcodes are twelve bits: nine say what is done, three where the second and third operand come from. An opcode that is
not in `SHAPES` is an error, so that whoever trusts what stands here trusts nothing unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.machine.word import DESTINATION, OPCODE, PREDICATE, SIZE, SOURCE_A, SOURCE_B, SOURCE_C, Field, Words

Unit = Literal[
    "float", "half", "alu", "integer", "wide", "high", "uniform", "control", "shared", "global", "local", "other"
]
"""What executes an instruction. Results of the units from `shared` on take a time that nobody knows ahead."""

VARIABLE: Final = ("shared", "global", "local", "other")

REGISTERS: Final = 0
PREDICATES: Final = 256
UNIFORM_REGISTERS: Final = 264
UNIFORM_PREDICATES: Final = 328
RESOURCES: Final = 336
"""Registers of all kinds in one numbering, each kind from its number on; the last of a kind is the constant one."""

_LAST: Final = {REGISTERS: 255, PREDICATES: 7, UNIFORM_REGISTERS: 63, UNIFORM_PREDICATES: 7}

UNIFORM_DESTINATION = Field(16, 6)
UNIFORM_A, UNIFORM_B, UNIFORM_C = Field(24, 6), Field(32, 6), Field(64, 6)
FIRST_PREDICATE, SECOND_PREDICATE, INPUT_PREDICATE = Field(81, 3), Field(84, 3), Field(87, 3)
"""Two that an instruction writes, one that it reads."""
CARRY_PREDICATE, COMPARE_PREDICATE = Field(77, 3), Field(68, 3)
EXTENDED = Field(74, 1)
"""Of IADD3 and LEA: with carry in."""
CONTINUED = Field(72, 1)
"""Of ISETP: of a comparison that another one began."""
UNIFORM_ADDRESS = Field(91, 1)
"""Of a memory access: a uniform register is part of the address, or describes the memory."""
UNIFORM_COMPARE = Field(67, 1)
"""Of PLOP3: its third predicate is a uniform one."""
PREDICATE_MASK = Field(32, 7)
WHOLE_64 = Field(80, 1)
"""Of CS2R: the result has 64 bits."""

WORDS_OF_SIZE: Final = np.array([1, 1, 1, 1, 1, 2, 4, 1])
"""Registers by the field SIZE."""


@dataclass(frozen=True)
class Shape:
    """An instruction's operands: how many registers each has, 0 where there is none, -1 where SIZE says."""

    name: str
    unit: Unit
    to: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    writes: tuple[Field, ...] = ()
    """Predicates."""
    reads: tuple[Field, ...] = ()
    asynchronous: bool = False
    """It reads its operands after it has issued."""


_ADDED: Final = (FIRST_PREDICATE, SECOND_PREDICATE)
SHAPES: Final[dict[int, Shape]] = {
    0x02: Shape("MOV", "alu", 1, b=1),
    0x03: Shape("P2R", "alu", 1, 1),
    0x05: Shape("CS2R", "alu", 1),
    0x07: Shape("SEL", "alu", 1, 1, 1, reads=(INPUT_PREDICATE,)),
    0x08: Shape("FSEL", "alu", 1, 1, 1, reads=(INPUT_PREDICATE,)),
    0x09: Shape("FMNMX", "alu", 1, 1, 1, reads=(INPUT_PREDICATE,)),
    0x0B: Shape("FSETP", "alu", 0, 1, 1, writes=_ADDED, reads=(INPUT_PREDICATE,)),
    0x0C: Shape("ISETP", "alu", 0, 1, 1, writes=_ADDED, reads=(INPUT_PREDICATE,)),
    0x10: Shape("IADD3", "alu", 1, 1, 1, 1, writes=_ADDED, reads=(INPUT_PREDICATE, CARRY_PREDICATE)),
    0x11: Shape("LEA", "alu", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x12: Shape("LOP3", "alu", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x16: Shape("PRMT", "alu", 1, 1, 1, 1),
    0x19: Shape("SHF", "alu", 1, 1, 1, 1),
    0x1C: Shape("PLOP3", "alu", writes=_ADDED, reads=(INPUT_PREDICATE, CARRY_PREDICATE)),
    0x20: Shape("FMUL", "float", 1, 1, 1),
    0x21: Shape("FADD", "float", 1, 1, 1),
    0x23: Shape("FFMA", "float", 1, 1, 1, 1),
    0x24: Shape("IMAD", "integer", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x25: Shape("IMAD.WIDE", "wide", 2, 1, 1, 2, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x27: Shape("IMAD.HI", "high", 1, 1, 1, 2, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x30: Shape("HADD2", "half", 1, 1, 1),
    0x31: Shape("HFMA2", "half", 1, 1, 1, 1),
    0x35: Shape("HFMA2.MMA", "half", 1, 1, 1, 1),
    0x36: Shape("VIADD", "alu", 1, 1, 1),
    0x3E: Shape("F2FP", "alu", 1, 1, 1),
    0x46: Shape("VIADDMNMX", "alu", 1, 1, 1, 1, reads=(INPUT_PREDICATE,)),
    0x48: Shape("VIMNMX", "alu", 1, 1, 1, writes=_ADDED, reads=(INPUT_PREDICATE,)),
    0x108: Shape("MUFU", "other", 1, b=1, asynchronous=True),
    0x118: Shape("NOP", "control"),
    0x119: Shape("S2R", "other", 1, asynchronous=True),
    0x11A: Shape("DEPBAR", "control"),
    0x11D: Shape("BAR", "control"),
    0x141: Shape("BSYNC", "control"),
    0x142: Shape("BREAK", "control", reads=(INPUT_PREDICATE,)),
    0x145: Shape("BSSY", "control", reads=(INPUT_PREDICATE,)),
    0x147: Shape("BRA", "control", reads=(INPUT_PREDICATE,)),
    0x148: Shape("WARPSYNC", "control", reads=(INPUT_PREDICATE,)),
    0x149: Shape("BRX", "control", a=2, reads=(INPUT_PREDICATE,)),
    0x14D: Shape("EXIT", "control", reads=(INPUT_PREDICATE,)),
    0x155: Shape("BMOV", "other", 1, asynchronous=True),
    0x156: Shape("BMOV.B", "other", b=1, asynchronous=True),
    0x180: Shape("LD", "global", -1, 2, asynchronous=True),
    0x181: Shape("LDG", "global", -1, 2, asynchronous=True),
    0x182: Shape("LDC", "other", -1, 1, asynchronous=True),
    0x183: Shape("LDL", "local", -1, 1, asynchronous=True),
    0x184: Shape("LDS", "shared", -1, 1, asynchronous=True),
    0x186: Shape("STG", "global", 0, 2, -1, asynchronous=True),
    0x187: Shape("STL", "local", 0, 1, -1, asynchronous=True),
    0x188: Shape("STS", "shared", 0, 1, -1, asynchronous=True),
    0x18F: Shape("CCTL", "control"),
    0x192: Shape("MEMBAR", "control"),
    0x1AB: Shape("ERRBAR", "control"),
    0x1AE: Shape("LDGSTS", "global", 0, 2, reads=(INPUT_PREDICATE,), asynchronous=True),
    0x1AF: Shape("LDGDEPBAR", "global", asynchronous=True),
    0x1C7: Shape("UCGABAR", "control"),
    0x82: Shape("UMOV", "uniform", 1, b=1),
    0x8C: Shape("UISETP", "uniform", 0, 1, 1, writes=_ADDED, reads=(INPUT_PREDICATE,)),
    0x90: Shape("UIADD3", "uniform", 1, 1, 1, 1, writes=_ADDED, reads=(INPUT_PREDICATE, CARRY_PREDICATE)),
    0x91: Shape("ULEA", "uniform", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x92: Shape("ULOP3", "uniform", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x99: Shape("USHF", "uniform", 1, 1, 1, 1),
    0xA4: Shape("UIMAD", "uniform", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0xA5: Shape("UIMAD.WIDE", "uniform", 2, 1, 1, 2, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0xB9: Shape("ULDC", "uniform", -1),
    0x1C3: Shape("S2UR", "other", 1, asynchronous=True),
}
"""By the lower nine bits of the opcode."""

_REGISTER_FORM, _THIRD_IMMEDIATE, _THIRD_CONSTANT, _IMMEDIATE, _CONSTANT, _UNIFORM, _THIRD_UNIFORM = range(1, 8)
"""The upper three bits of an arithmetic opcode: both registers; or the one of the 32 bits from bit 32 on."""
_MEMORY: Final = ("shared", "global", "local")
_UNIFORM_RESULTS: Final = ("ULDC", "S2UR")

_RESOURCE_SHIFT: Final = 32
_OFTEN: Final = 256
"""Words of an opcode from which on they are worth looking at on their own."""
_Uses = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Places of words, and a resource that each uses."""


@dataclass(frozen=True, eq=False)
class Accesses:
    """Which word uses which resource, in the order of the resources, then of the words: [accesses] each."""

    keys: NDArray[np.int64]
    """Resource and word in one number, sorted."""
    length: int
    """Of the code, in words."""

    @staticmethod
    def of(uses: Iterable[_Uses], length: int) -> Accesses:
        word, resource = (np.concatenate(each) for each in zip(*uses, strict=True))
        # They come partly in order, of which this kind of sort makes use.
        return Accesses(np.sort(resource << _RESOURCE_SHIFT | word, kind="stable"), length)

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
    often = counts[present] > _OFTEN
    seldom = np.flatnonzero(~often[which])
    roles = _Roles.of(tuple(present.tolist()))
    reads, writes = ([each] for each in roles.accesses(words[seldom], seldom, which[seldom]))
    for i in np.flatnonzero(often).tolist():
        places = np.flatnonzero(which == i)
        chosen = words[places]
        for found, of in ((reads, _reads_of), (writes, _writes_of)):
            for role in of(int(present[i])):
                found += role.accesses(chosen, places)
    shapes = tuple(SHAPES[opcode & 0x1FF] for opcode in present.tolist())
    return Operands(shapes, which, Accesses.of(reads, len(words)), Accesses.of(writes, len(words)))


@dataclass(frozen=True)
class _Role:
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

    def accesses(self, words: Words, places: NDArray[np.int64]) -> Iterator[_Uses]:
        """Of words [instructions, 2] at these places."""
        numbers = np.zeros(len(places), np.int64) if self.field is None else self.field.get(words)
        real = numbers != _LAST[self.kind]
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
class _Roles:
    """The roles of several opcodes as a table, for words of which there are few of each: [roles] all but the first."""

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
    def of(opcodes: tuple[int, ...]) -> _Roles:
        of_each = [(_reads_of(opcode), _writes_of(opcode)) for opcode in opcodes]
        roles = [(role, kind == 1) for both in of_each for kind in (0, 1) for role in both[kind]]
        fields = [role.field or Field(0, 0) for role, _ in roles]
        conditions = [role.only_if or role.unless or Field(0, 0) for role, _ in roles]
        return _Roles(
            begins=np.cumsum([0] + [len(reads) + len(writes) for reads, writes in of_each]),
            writes=np.array([writes for _, writes in roles], dtype=np.bool_),
            half=np.array([field.first // 64 for field in fields], dtype=np.int64),
            shift=np.array([field.first % 64 for field in fields], dtype=np.uint64),
            mask=np.array([(1 << field.bits) - 1 for field in fields], dtype=np.uint64),
            constant=np.array([_LAST[role.kind] for role, _ in roles], dtype=np.int64),
            base=np.array([role.kind + role.beyond for role, _ in roles], dtype=np.int64),
            width=np.array([role.width for role, _ in roles], dtype=np.int64),
            asked_half=np.array([field.first // 64 for field in conditions], dtype=np.int64),
            asked=np.array([(1 << field.bits) - 1 << field.first % 64 for field in conditions], dtype=np.uint64),
            wanted=np.array([role.only_if is not None for role, _ in roles], dtype=np.bool_),
        )

    def accesses(self, words: Words, places: NDArray[np.int64], opcodes: NDArray[np.int64]) -> tuple[_Uses, _Uses]:
        """What words [instructions, 2] at these places read and write; `opcodes` are places among those of the table."""
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
        resources = (numbers + self.base[role])[each] + np.arange(len(each)) - np.repeat(np.cumsum(widths) - widths, widths)
        at, writes = places[owner][each], self.writes[role][each]
        return (at[~writes], resources[~writes]), (at[writes], resources[writes])


@cache
def _reads_of(opcode: int) -> tuple[_Role, ...]:
    return tuple(_reads(SHAPES[opcode & 0x1FF], opcode >> 9))


@cache
def _writes_of(opcode: int) -> tuple[_Role, ...]:
    return tuple(_writes(SHAPES[opcode & 0x1FF]))


def _reads(shape: Shape, form: int) -> Iterator[_Role]:
    uniform = shape.unit == "uniform"
    predicates = UNIFORM_PREDICATES if uniform or shape.name == "S2UR" else PREDICATES
    kind = UNIFORM_REGISTERS if uniform else REGISTERS
    for field in (PREDICATE, *shape.reads):
        yield _Role(predicates, field)
    if shape.name == "ISETP":
        yield _Role(predicates, COMPARE_PREDICATE, only_if=CONTINUED)
    if shape.name == "PLOP3":
        yield _Role(PREDICATES, COMPARE_PREDICATE, unless=UNIFORM_COMPARE)
        yield _Role(UNIFORM_PREDICATES, COMPARE_PREDICATE, only_if=UNIFORM_COMPARE)
    if shape.name == "P2R":
        for predicate in range(7):
            yield _Role(PREDICATES, None, only_if=Field(PREDICATE_MASK.first + predicate, 1), beyond=predicate)
    if shape.a:
        yield _Role(kind, UNIFORM_A if uniform else SOURCE_A, shape.a)
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
    if form == _REGISTER_FORM:
        yield _Role(kind, low, shape.b)
    elif form in (_THIRD_IMMEDIATE, _THIRD_CONSTANT, _THIRD_UNIFORM):
        yield _Role(kind, high, shape.b)
    if form in (_UNIFORM, _THIRD_UNIFORM):
        yield _Role(UNIFORM_REGISTERS, UNIFORM_B, shape.b if form == _UNIFORM else shape.c)
    if shape.c and form not in (_THIRD_IMMEDIATE, _THIRD_CONSTANT, _THIRD_UNIFORM):
        yield _Role(kind, high, shape.c)


def _memory(shape: Shape) -> Iterator[_Role]:
    """What a memory access reads beside its address register."""
    if shape.b:
        yield _Role(REGISTERS, SOURCE_B, shape.b)
    if shape.name == "LDGSTS":
        yield _Role(REGISTERS, DESTINATION)
    field = UNIFORM_C if shape.name in ("STG", "LDGSTS", "STS", "STL") else UNIFORM_B
    yield _Role(UNIFORM_REGISTERS, field, 2 if shape.unit == "global" else 1, only_if=UNIFORM_ADDRESS)


def _writes(shape: Shape) -> Iterator[_Role]:
    uniform = shape.unit == "uniform" or shape.name in _UNIFORM_RESULTS
    if shape.to:
        field, kind = (UNIFORM_DESTINATION, UNIFORM_REGISTERS) if uniform else (DESTINATION, REGISTERS)
        yield _Role(kind, field, shape.to)
        if shape.name == "CS2R":
            yield _Role(kind, field, only_if=WHOLE_64, beyond=1)
    for predicate in shape.writes:
        yield _Role(UNIFORM_PREDICATES if uniform else PREDICATES, predicate)
