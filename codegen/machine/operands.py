"""Which registers each word reads and writes, for the instructions that ptxas makes of the farm's kernels for sm_90.

Opcodes are twelve bits: nine say what is done, three where the second and third operand come from. An opcode that is
not in `SHAPES` is an error, so that whoever trusts what stands here trusts nothing unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.machine.word import (
    DESTINATION,
    OPCODE,
    PREDICATE,
    SIZE,
    SOURCE_A,
    SOURCE_B,
    SOURCE_C,
    Field,
    Words,
)

Unit = Literal["float", "half", "alu", "integer", "wide", "uniform", "control", "shared", "global", "local", "other"]
"""What executes an instruction. Results of the units from `shared` on take a time that nobody knows ahead."""

VARIABLE: Final = ("shared", "global", "local", "other")

REGISTERS: Final = 0
PREDICATES: Final = 256
UNIFORM_REGISTERS: Final = 264
UNIFORM_PREDICATES: Final = 328
RESOURCES: Final = 336
"""Registers of all kinds in one numbering, each kind from its number on; the last of a kind is the constant one."""

_KINDS: Final = ((REGISTERS, 255), (PREDICATES, 7), (UNIFORM_REGISTERS, 63), (UNIFORM_PREDICATES, 7))

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
    0x20: Shape("FMUL", "float", 1, 1, 1),
    0x21: Shape("FADD", "float", 1, 1, 1),
    0x23: Shape("FFMA", "float", 1, 1, 1, 1),
    0x24: Shape("IMAD", "integer", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x25: Shape("IMAD.WIDE", "wide", 2, 1, 1, 2, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x30: Shape("HADD2", "half", 1, 1, 1),
    0x31: Shape("HFMA2", "half", 1, 1, 1, 1),
    0x35: Shape("HFMA2.MMA", "half", 1, 1, 1, 1),
    0x36: Shape("VIADD", "alu", 1, 1, 1),
    0x3E: Shape("F2FP", "alu", 1, 1, 1),
    0x46: Shape("VIADDMNMX", "alu", 1, 1, 1, 1, reads=(INPUT_PREDICATE,)),
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
    0x181: Shape("LDG", "global", -1, 2, asynchronous=True),
    0x182: Shape("LDC", "other", -1, 1, asynchronous=True),
    0x183: Shape("LDL", "local", -1, 1, asynchronous=True),
    0x184: Shape("LDS", "shared", -1, 1, asynchronous=True),
    0x186: Shape("STG", "global", 0, 2, -1, asynchronous=True),
    0x187: Shape("STL", "local", 0, 1, -1, asynchronous=True),
    0x188: Shape("STS", "shared", 0, 1, -1, asynchronous=True),
    0x1AE: Shape("LDGSTS", "global", 0, 2, reads=(INPUT_PREDICATE,), asynchronous=True),
    0x1AF: Shape("LDGDEPBAR", "global", asynchronous=True),
    0x82: Shape("UMOV", "uniform", 1, b=1),
    0x90: Shape("UIADD3", "uniform", 1, 1, 1, 1, writes=_ADDED, reads=(INPUT_PREDICATE, CARRY_PREDICATE)),
    0x91: Shape("ULEA", "uniform", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x92: Shape("ULOP3", "uniform", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0x99: Shape("USHF", "uniform", 1, 1, 1, 1),
    0xA4: Shape("UIMAD", "uniform", 1, 1, 1, 1, writes=(FIRST_PREDICATE,), reads=(INPUT_PREDICATE,)),
    0xB9: Shape("ULDC", "uniform", -1),
    0x1C3: Shape("S2UR", "other", 1, asynchronous=True),
}
"""By the lower nine bits of the opcode."""

_REGISTER_FORM, _THIRD_IMMEDIATE, _THIRD_CONSTANT, _IMMEDIATE, _CONSTANT, _UNIFORM, _THIRD_UNIFORM = range(1, 8)
"""The upper three bits of an arithmetic opcode: both registers; or the one of the 32 bits from bit 32 on."""
_MEMORY: Final = ("shared", "global", "local")
_UNIFORM_RESULTS: Final = ("ULDC", "S2UR")


@dataclass(frozen=True, eq=False)
class Accesses:
    """Which word uses which resource: [accesses] each, in the order of the words."""

    word: NDArray[np.int64]
    resource: NDArray[np.int64]

    @staticmethod
    def of(pieces: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Accesses:
        word = np.concatenate([np.zeros(0, np.int64), *(piece for piece, _ in pieces)])
        resource = np.concatenate([np.zeros(0, np.int64), *(piece for _, piece in pieces)])
        order = np.argsort(word, kind="stable")
        return Accesses(word[order], resource[order])


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
    opcodes, which = np.unique(OPCODE.get(words), return_inverse=True)
    reads: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    writes: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    shapes = []
    for index, opcode in enumerate(opcodes.tolist()):
        at = np.flatnonzero(which == index)
        shape = SHAPES.get(opcode & 0x1FF)
        if shape is None or opcode >> 9 == 0:
            raise MachineCodeError(f"word {int(at[0])} has the opcode {opcode:#05x}, which is not known here")
        shapes.append(shape)
        chosen = words[at]
        for places, resources in _read(shape, opcode >> 9, chosen):
            reads.append((at[places], resources))
        for places, resources in _written(shape, chosen):
            writes.append((at[places], resources))
    return Operands(tuple(shapes), which, Accesses.of(reads), Accesses.of(writes))


_Found = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Places in an array of words, and the resource that each uses."""


def _used(kind: int, numbers: NDArray[np.int64], widths: NDArray[np.int64] | int = 1) -> Iterator[_Found]:
    """Consecutive registers of a kind from a number on, as many as the width; the constant one of a kind is none."""
    last = dict(_KINDS)[kind]
    widths = np.broadcast_to(widths, numbers.shape)
    for i in range(int(widths.max(initial=0))):
        places = np.flatnonzero((numbers != last) & (widths > i))
        yield places, kind + numbers[places] + i


def _width(count: int, words: Words) -> NDArray[np.int64] | int:
    return WORDS_OF_SIZE[SIZE.get(words)] if count < 0 else count


def _read(shape: Shape, form: int, words: Words) -> Iterator[_Found]:
    uniform = shape.unit == "uniform"
    predicates = UNIFORM_PREDICATES if uniform or shape.name == "S2UR" else PREDICATES
    kind = UNIFORM_REGISTERS if uniform else REGISTERS
    yield from _used(predicates, PREDICATE.get(words))
    for field in shape.reads:
        yield from _used(predicates, field.get(words))
    if shape.name == "ISETP" and (continued := np.flatnonzero(CONTINUED.get(words))).size:
        for places, resources in _used(predicates, COMPARE_PREDICATE.get(words[continued])):
            yield continued[places], resources
    if shape.name == "P2R":
        yield from _masked(PREDICATE_MASK.get(words))
    if shape.a:
        yield from _used(kind, (UNIFORM_A if uniform else SOURCE_A).get(words), shape.a)
    if shape.unit in _MEMORY:
        yield from _memory(shape, words)
        return
    second = shape.b and form != _IMMEDIATE
    if shape.b and not shape.c and form in (_THIRD_IMMEDIATE, _THIRD_CONSTANT, _THIRD_UNIFORM):
        form = {_THIRD_IMMEDIATE: _IMMEDIATE, _THIRD_CONSTANT: _CONSTANT, _THIRD_UNIFORM: _UNIFORM}[form]
        second = form != _IMMEDIATE
    low, high = ((UNIFORM_B, UNIFORM_C) if uniform else (SOURCE_B, SOURCE_C)) if second or shape.c else (None, None)
    if low is None or high is None:
        return
    if form == _REGISTER_FORM:
        yield from _used(kind, low.get(words), shape.b)
    elif form in (_THIRD_IMMEDIATE, _THIRD_CONSTANT, _THIRD_UNIFORM):
        yield from _used(kind, high.get(words), shape.b)
    if form in (_UNIFORM, _THIRD_UNIFORM):
        yield from _used(UNIFORM_REGISTERS, UNIFORM_B.get(words), shape.b if form == _UNIFORM else shape.c)
    if shape.c and form not in (_THIRD_IMMEDIATE, _THIRD_CONSTANT, _THIRD_UNIFORM):
        yield from _used(kind, high.get(words), shape.c)


def _memory(shape: Shape, words: Words) -> Iterator[_Found]:
    """What a memory access reads beside its address register."""
    if shape.b:
        yield from _used(REGISTERS, SOURCE_B.get(words), _width(shape.b, words))
    if shape.name == "LDGSTS":
        yield from _used(REGISTERS, DESTINATION.get(words))
    with_uniform = np.flatnonzero(UNIFORM_ADDRESS.get(words))
    field = UNIFORM_C if shape.name in ("STG", "LDGSTS", "STS", "STL") else UNIFORM_B
    width = 2 if shape.unit == "global" else 1
    for places, resources in _used(UNIFORM_REGISTERS, field.get(words[with_uniform]), width):
        yield with_uniform[places], resources


def _masked(masks: NDArray[np.int64]) -> Iterator[_Found]:
    for predicate in range(7):
        places = np.flatnonzero(masks >> predicate & 1)
        yield places, np.full(len(places), PREDICATES + predicate)


def _written(shape: Shape, words: Words) -> Iterator[_Found]:
    uniform = shape.unit == "uniform" or shape.name in _UNIFORM_RESULTS
    if shape.to:
        width = WHOLE_64.get(words) + 1 if shape.name == "CS2R" else _width(shape.to, words)
        field, kind = (UNIFORM_DESTINATION, UNIFORM_REGISTERS) if uniform else (DESTINATION, REGISTERS)
        yield from _used(kind, field.get(words), width)
    for predicate in shape.writes:
        yield from _used(UNIFORM_PREDICATES if uniform else PREDICATES, predicate.get(words))
