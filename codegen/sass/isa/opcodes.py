"""The opcodes that ptxas uses in the farm's kernels for sm_90, one row of facts for each.

An opcode has twelve bits. The lower nine say which instruction it is, the upper three where its operands come from
(`Form`). An opcode without a row is refused, so that nothing unknown is ever trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.encoding import DESTINATION, Field

Unit = Literal[
    "float",
    "half",
    "matrix",
    "alu",
    "dual",
    "pair",
    "integer",
    "wide",
    "high",
    "uniform",
    "control",
    "shared",
    "global",
    "local",
    "function",
    "other",
]
"""The unit that executes an instruction. matrix: HFMA2.MMA, on the tensor cores; dual, pair: of sm_120, what takes the
alu a cycle longer, and instructions of 64 bits; integer: IMAD and VIADD; wide: IMAD.WIDE; high: IMAD.HI; function:
MUFU; other: special registers and constants."""

MEMORY_UNITS: Final = ("shared", "global", "local")
ASYNCHRONOUS_UNITS: Final = (*MEMORY_UNITS, "function", "other")
"""Units that read their operands after the instruction has issued, and whose results take an unknown time."""

REGISTERS: Final = 0
PREDICATES: Final = 256
UNIFORM_REGISTERS: Final = 264
UNIFORM_PREDICATES: Final = 328
"""Resources: registers and predicates of all kinds in one numbering, in which each kind begins at its constant."""

LAST: Final = {REGISTERS: 255, PREDICATES: 7, UNIFORM_REGISTERS: 63, UNIFORM_PREDICATES: 7}
"""By kind: the number that names the constant (RZ, PT, URZ, UPT) instead of a resource."""

UNIFORM_DESTINATION = Field(16, 6)
UNIFORM_A, UNIFORM_B, UNIFORM_C = Field(24, 6), Field(32, 6), Field(64, 6)
FIRST_PREDICATE, SECOND_PREDICATE = Field(81, 3), Field(84, 3)
"""Predicates that an instruction writes."""
INPUT_PREDICATE, CARRY_PREDICATE, COMPARE_PREDICATE = Field(87, 3), Field(77, 3), Field(68, 3)
"""Predicates that an instruction reads."""
CONTINUED = Field(72, 1)
"""ISETP: compares the upper halves of 64-bit numbers, after another ISETP compared the lower ones."""
UNIFORM_ADDRESS = Field(91, 1)
"""Memory access: a uniform register is part of the address, or describes the memory."""
UNIFORM_COMPARE = Field(67, 1)
"""PLOP3: its third predicate is uniform."""
PREDICATE_MASK = Field(32, 7)
"""P2R: the predicates that it copies."""
UNIFORM_BRANCH = Field(32, 1)
"""BRA: it goes only if a uniform predicate holds."""
WHOLE_64 = Field(80, 1)
"""CS2R, MOV, UMOV: the result has 64 bits."""
IMMEDIATE_64 = (24, 64)
"""MOV.64, UMOV.64: the immediate, its first bit and how many."""
SIGN_33 = Field(64, 1)
"""SEL.64: the sign of an immediate whose other 32 bits are in their usual place."""


class Form(IntEnum):
    """Sources of an arithmetic instruction's second and third operand (b, c): the upper three bits of its opcode.

    Bits 32 to 63 hold the operand that the name ends with, bits 64 to 71 the register of the other one.
    """

    REGISTERS = 1
    IMMEDIATE_C = 2
    CONSTANT_C = 3
    IMMEDIATE_B = 4
    CONSTANT_B = 5
    UNIFORM_B = 6
    UNIFORM_C = 7

    @property
    def swapped(self) -> bool:
        """Whether c is in bits 32 to 63 and b at bit 64."""
        return self in _SWAPPED

    @property
    def low(self) -> Literal["register", "immediate", "constant", "uniform"]:
        """The kind of operand in bits 32 to 63."""
        return _LOW[self]

    @property
    def without_c(self) -> Form:
        """The form as an instruction without c understands it: b is always in bits 32 to 63."""
        return _WITHOUT_C.get(self, self)


_SWAPPED: Final = (Form.IMMEDIATE_C, Form.CONSTANT_C, Form.UNIFORM_C)
_WITHOUT_C: Final = {
    Form.IMMEDIATE_C: Form.IMMEDIATE_B,
    Form.CONSTANT_C: Form.CONSTANT_B,
    Form.UNIFORM_C: Form.UNIFORM_B,
}
_LOW: Final[dict[Form, Literal["register", "immediate", "constant", "uniform"]]] = {
    Form.REGISTERS: "register",
    Form.IMMEDIATE_B: "immediate",
    Form.IMMEDIATE_C: "immediate",
    Form.CONSTANT_B: "constant",
    Form.CONSTANT_C: "constant",
    Form.UNIFORM_B: "uniform",
    Form.UNIFORM_C: "uniform",
}


@dataclass(frozen=True)
class Slot:
    """An operand slot: the field that names a register or predicate, and when the instruction uses it."""

    kind: int
    """REGISTERS, PREDICATES, UNIFORM_REGISTERS or UNIFORM_PREDICATES."""
    field: Field | None
    """None: the operand is number 0."""
    width: int = 1
    """Consecutive registers; -1: the number is in SIZE."""
    only_if: Field | None = None
    """The slot counts only in words where this field is not zero."""
    unless: Field | None = None
    """The slot counts only in words where this field is zero."""
    beyond: int = 0
    """Added to the number in the field."""


Bits = tuple[int, int]
"""First bit of a word, and how many."""


@dataclass(frozen=True)
class Opcode:
    """The facts of one instruction."""

    number: int
    """The lower nine bits of its opcode; all twelve for an instruction that shares them with another one."""
    name: str
    unit: Unit
    result: int = 0
    """Registers that it writes. Here and below, 0: no such operand; -1: the number is in SIZE."""
    a: int = 0
    b: int = 0
    c: int = 0
    writes: tuple[Field, ...] = ()
    """Predicates."""
    reads: tuple[Field, ...] = ()
    """Predicates besides the guard; the bit above each negates it."""
    more_reads: tuple[Slot, ...] = ()
    more_writes: tuple[Slot, ...] = ()
    uniform: bool = False
    """Its result and its predicates are uniform, and so are the operands of the unit `uniform`."""
    queue: int = 0
    """Results of instructions of one queue arrive in order; 0: no queue."""
    least_cycles: int = 0
    """No reader has a result of a fixed latency before this many cycles, even if its unit's are fewer."""
    quick_uniform: bool = False
    """A uniform result that is there after MOVED_UNIFORM_CYCLES."""
    forms: tuple[int, ...] = ()
    """Upper three bits of its opcode that are understood; empty: all."""
    form: Form | None = None
    """Sources of its operands, if the upper three bits of its opcode say something else."""
    understood: tuple[Bits, ...] | None = None
    """Bits whose meaning the emulator knows, besides operands, guard and scheduling. None: it does not execute it."""
    fixed: tuple[int, ...] = (0,)
    """Values of the remaining bits that ptxas writes: true predicates, hints to caches."""

    @property
    def asynchronous(self) -> bool:
        """Whether it reads its operands after issue, and its result takes an unknown time."""
        return self.unit in ASYNCHRONOUS_UNITS

    @property
    def arithmetic(self) -> bool:
        """Whether the upper three bits of its opcode are a `Form`."""
        return self.unit not in (*MEMORY_UNITS, "control", "other") and self.result >= 0

    def form_in(self, opcode: int) -> Form:
        """Sources of the operands of a word with this opcode of twelve bits."""
        form = self.form or Form(opcode >> FORM_SHIFT)
        return form if self.c else form.without_c

    def understood_mask(self, form: Form) -> int:
        """The bits of a word in this form whose meaning the emulator knows, as a number of 128 bits."""
        fields = [_GUARD, _SCHEDULING, *(self.understood or ()), *((field.first, 4) for field in self.reads)]
        if self.result:
            fields.append((16, 8))
        if self.a:
            fields.append((24, 8))
        if self.arithmetic:
            fields.append(_UNIFORM_FORM)
        if self.arithmetic and (self.b or self.c):
            fields.append(_LOW_BITS[form.low])
        if self.arithmetic and self.b and self.c:
            fields.append((64, 8))
        mask = 0
        for first, count in fields:
            mask |= (1 << count) - 1 << first
        return mask


_GUARD: Final = (0, 16)
"""The opcode, and the predicate that guards the word."""
_SCHEDULING: Final = (105, 23)
"""Stalls, scoreboards and reuse: nothing that changes a result."""
_UNIFORM_FORM: Final = (91, 1)
"""Set where the form names a uniform register."""
_LOW_BITS: Final = {"register": (32, 8), "immediate": (32, 32), "constant": (38, 21), "uniform": (32, 8)}

_SIGN_A, _SIGN_B, _SIGN_C = (72, 2), (62, 2), (74, 2)
"""Sign of a float: negated, and made positive before that."""
_NEGATED_A, _NEGATED_B, _NEGATED_C = (72, 1), (63, 1), (75, 1)
_HALVES_A, _HALVES_B = (74, 2), (60, 2)
"""Halves of a register that two float16 operands are."""
_HALVES_AND_SIGN_C: Final = (81, 4)
_FIRST, _SECOND = (81, 3), (84, 3)
_SIGNED: Final = (73, 1)
_EXTENDED: Final = (74, 1)
"""IADD3, LEA, IMAD: adds a carry."""
_COMBINED: Final = (74, 2)
_SATURATED: Final = (77, 1)
_TRUTH_TABLE: Final = (72, 8)
_HIGH: Final = (80, 1)
_SPECIAL_REGISTER: Final = (72, 8)
_CONSTANT: Final = (38, 21)
"""Bank and offset of constant memory."""
_BARRIER: Final = (16, 4)
_SIZE, _OFFSET, _DESCRIPTOR = (73, 3), (40, 24), (91, 1)
_DATA: Final = (32, 8)

_INPUT: Final = (INPUT_PREDICATE,)
_INPUT_AND_CARRY: Final = (INPUT_PREDICATE, CARRY_PREDICATE)
_ONE: Final = (FIRST_PREDICATE,)
_TWO: Final = (FIRST_PREDICATE, SECOND_PREDICATE)
_MASKED_PREDICATES: Final = tuple(
    Slot(PREDICATES, None, only_if=Field(PREDICATE_MASK.first + i, 1), beyond=i) for i in range(PREDICATE_MASK.bits)
)
_COMPARED: Final = Slot(PREDICATES, COMPARE_PREDICATE, only_if=CONTINUED)
_THIRD_PREDICATE: Final = (
    Slot(PREDICATES, COMPARE_PREDICATE, unless=UNIFORM_COMPARE),
    Slot(UNIFORM_PREDICATES, COMPARE_PREDICATE, only_if=UNIFORM_COMPARE),
)
_LOAD_ADDRESS, _STORE_ADDRESS = (
    Slot(UNIFORM_REGISTERS, field, only_if=UNIFORM_ADDRESS) for field in (UNIFORM_B, UNIFORM_C)
)
_LOAD_DESCRIPTOR, _STORE_DESCRIPTOR = (
    Slot(UNIFORM_REGISTERS, field, 2, only_if=UNIFORM_ADDRESS) for field in (UNIFORM_B, UNIFORM_C)
)
_SECOND_WORD: Final = Slot(REGISTERS, DESTINATION, only_if=WHOLE_64, beyond=1)
_TARGET_ADDRESS: Final = Slot(REGISTERS, DESTINATION)
"""LDGSTS: the shared memory that it writes to."""

_SETP: Final = (_FIRST, _SECOND, _SIGNED, _COMBINED, (76, 3))
_IADD3: Final = (_FIRST, _SECOND, _NEGATED_A, _NEGATED_B, _EXTENDED, _NEGATED_C)
_LEA: Final = (_FIRST, _NEGATED_B, _SIGNED, _EXTENDED, (75, 5), _HIGH)
_LOP3: Final = (_FIRST, _TRUTH_TABLE, (80, 1))
_SHF: Final = ((73, 2), (76, 1), _HIGH)
_IMAD: Final = (_NEGATED_A, _NEGATED_B, _SIGNED, _EXTENDED, _NEGATED_C)
_WIDE: Final = (_SIGNED, _NEGATED_C)
_HFMA2: Final = (_SIGN_A, _SIGN_B, _HALVES_A, _HALVES_B, _HALVES_AND_SIGN_C)
_FLOATS: Final = (_SIGN_A, _SIGN_B, _SATURATED)
_LDS: Final = (_DATA, _OFFSET, _SIZE, _DESCRIPTOR)
_STS: Final = (*_LDS, (64, 6))
_LDG: Final = (0x41E11 << 72, 0x41E91 << 72, 0x45E91 << 72)
"""LDG.E, LDG.E.CONSTANT, and LDG.E.NA.CONSTANT, which asks for no place in the L1 cache."""
_TRUE: Final = 7
"""PT, as a number in a field of predicates."""

_ROWS: Final = (
    Opcode(0x02, "MOV", "alu", 1, 0, 1, understood=(), fixed=(0xF << 72,)),
    Opcode(0x03, "P2R", "alu", 1, 1, 1, more_reads=_MASKED_PREDICATES, understood=()),
    Opcode(
        *(0x05, "CS2R", "alu", 1),
        more_writes=(_SECOND_WORD,),
        least_cycles=11,
        understood=(_SPECIAL_REGISTER, (80, 1)),
    ),
    Opcode(0x07, "SEL", "alu", 1, 1, 1, reads=_INPUT, understood=()),
    Opcode(0x08, "FSEL", "alu", 1, 1, 1, reads=_INPUT, understood=(_SIGN_A, _SIGN_B)),
    Opcode(0x09, "FMNMX", "alu", 1, 1, 1, reads=_INPUT, understood=(_SIGN_A, _SIGN_B, (81, 1))),
    Opcode(
        *(0x0B, "FSETP", "alu", 0, 1, 1),
        writes=_TWO,
        reads=_INPUT,
        understood=(_FIRST, _SECOND, _SIGN_A, _SIGN_B, _COMBINED, (76, 4)),
    ),
    Opcode(
        *(0x0C, "ISETP", "alu", 0, 1, 1),
        writes=_TWO,
        reads=_INPUT,
        more_reads=(_COMPARED,),
        understood=_SETP,
        fixed=(_TRUE << 68,),
    ),
    Opcode(0x10, "IADD3", "alu", 1, 1, 1, 1, writes=_TWO, reads=_INPUT_AND_CARRY, understood=_IADD3),
    Opcode(0x11, "LEA", "alu", 1, 1, 1, 1, writes=_ONE, reads=_INPUT, understood=_LEA),
    Opcode(0x12, "LOP3", "alu", 1, 1, 1, 1, writes=_ONE, reads=_INPUT, understood=_LOP3),
    Opcode(0x16, "PRMT", "alu", 1, 1, 1, 1, understood=()),
    Opcode(0x19, "SHF", "alu", 1, 1, 1, 1, understood=_SHF),
    Opcode(
        *(0x1C, "PLOP3", "alu"),
        writes=_TWO,
        reads=_INPUT_AND_CARRY,
        more_reads=_THIRD_PREDICATE,
        understood=(_FIRST, _SECOND, (16, 8), (64, 8), (72, 5)),
    ),
    Opcode(0x20, "FMUL", "float", 1, 1, 1, understood=_FLOATS, fixed=(0x4 << 84,)),
    Opcode(0x21, "FADD", "float", 1, 1, 1, understood=_FLOATS),
    Opcode(0x23, "FFMA", "float", 1, 1, 1, 1, understood=(*_FLOATS, _SIGN_C)),
    Opcode(*(0x24, "IMAD", "integer", 1, 1, 1, 1), writes=_ONE, reads=_INPUT, understood=_IMAD, fixed=(_TRUE << 81,)),
    Opcode(*(0x25, "IMAD.WIDE", "wide", 2, 1, 1, 2), writes=_ONE, reads=_INPUT, understood=_WIDE, fixed=(_TRUE << 81,)),
    Opcode(*(0x27, "IMAD.HI", "high", 1, 1, 1, 2), writes=_ONE, reads=_INPUT, understood=_WIDE, fixed=(_TRUE << 81,)),
    Opcode(0x2D, "PREEXIT", "control", understood=()),
    Opcode(0x2E, "ACQBULK", "control", understood=()),
    Opcode(0x30, "HADD2", "half", 1, 1, 1, understood=(_SIGN_A, _SIGN_B, _HALVES_A, _HALVES_B, (78, 1))),
    Opcode(0x31, "HFMA2", "half", 1, 1, 1, 1, understood=_HFMA2),
    Opcode(0x32, "HMUL2", "half", 1, 1, 1, understood=(_HALVES_A, _HALVES_B)),
    Opcode(0x35, "HFMA2.MMA", "matrix", 1, 1, 1, 1, understood=_HFMA2),
    Opcode(0x36, "VIADD", "integer", 1, 1, 1, understood=(_NEGATED_A, _NEGATED_B)),
    Opcode(0x3E, "F2FP", "alu", 1, 1, 1, understood=(_SIGN_A, _SIGN_B, (75, 2)), fixed=(0xFF << 64,)),
    Opcode(0x46, "VIADDMNMX", "alu", 1, 1, 1, 1, reads=_INPUT, understood=((72, 1), _NEGATED_C)),
    Opcode(0x48, "VIMNMX", "alu", 1, 1, 1, writes=_TWO, reads=_INPUT, understood=((72, 1),), fixed=(0x7E << 80,)),
    Opcode(0x82, "UMOV", "uniform", 1, 0, 1, uniform=True, quick_uniform=True, understood=()),
    Opcode(
        *(0x8C, "UISETP", "uniform", 0, 1, 1),
        uniform=True,
        writes=_TWO,
        reads=_INPUT,
        understood=_SETP,
        fixed=(_TRUE << 68,),
    ),
    Opcode(
        *(0x90, "UIADD3", "uniform", 1, 1, 1, 1), uniform=True, writes=_TWO, reads=_INPUT_AND_CARRY, understood=_IADD3
    ),
    Opcode(0x91, "ULEA", "uniform", 1, 1, 1, 1, uniform=True, writes=_ONE, reads=_INPUT, understood=_LEA),
    Opcode(0x92, "ULOP3", "uniform", 1, 1, 1, 1, uniform=True, writes=_ONE, reads=_INPUT, understood=_LOP3),
    Opcode(0x99, "USHF", "uniform", 1, 1, 1, 1, uniform=True, understood=_SHF),
    Opcode(
        *(0xA4, "UIMAD", "uniform", 1, 1, 1, 1),
        uniform=True,
        writes=_ONE,
        reads=_INPUT,
        understood=_IMAD,
        fixed=(_TRUE << 81,),
    ),
    Opcode(
        *(0xA5, "UIMAD.WIDE", "uniform", 2, 1, 1, 2),
        uniform=True,
        writes=_ONE,
        reads=_INPUT,
        understood=_WIDE,
        fixed=(_TRUE << 81,),
    ),
    Opcode(0xB9, "ULDC", "uniform", -1, uniform=True, quick_uniform=True, understood=(_CONSTANT, _SIZE)),
    Opcode(0x108, "MUFU", "function", 1, 0, 1, queue=2, understood=(_SIGN_B, (74, 4))),
    Opcode(0x118, "NOP", "control", understood=()),
    Opcode(0x119, "S2R", "other", 1, queue=3, understood=(_SPECIAL_REGISTER,)),
    Opcode(0x11A, "DEPBAR", "control", understood=((38, 6), (44, 4))),
    Opcode(0x11D, "BAR", "control", understood=(), fixed=(0x1 << 80,)),
    Opcode(0x141, "BSYNC", "control", understood=(_BARRIER,), fixed=(_TRUE << 87,)),
    Opcode(0x142, "BREAK", "control", reads=_INPUT, understood=(_BARRIER,)),
    Opcode(0x145, "BSSY", "control", reads=_INPUT, understood=(_BARRIER, (32, 32))),
    Opcode(0x147, "BRA", "control", reads=_INPUT, understood=((16, 8), (34, 48))),
    Opcode(0x148, "WARPSYNC", "control", reads=_INPUT, understood=()),
    Opcode(0x149, "BRX", "control", 0, 2, reads=_INPUT),
    Opcode(0x14D, "EXIT", "control", reads=_INPUT, understood=()),
    Opcode(0x155, "BMOV", "other", 1, understood=((24, 8), (84, 1))),
    Opcode(0x156, "BMOV.B", "other", 0, 0, 1, understood=((24, 8), (32, 8))),
    Opcode(
        *(0x180, "LD", "global", -1, 2),
        more_reads=(_LOAD_DESCRIPTOR,),
        understood=((32, 23), _SIZE, (72, 1)),
        fixed=(0x1 << 84,),
    ),
    Opcode(0x181, "LDG", "global", -1, 2, more_reads=(_LOAD_DESCRIPTOR,), understood=_LDS, fixed=_LDG),
    Opcode(0x182, "LDC", "other", -1, 1, understood=(_CONSTANT, _SIZE)),
    Opcode(0x183, "LDL", "local", -1, 1, more_reads=(_LOAD_ADDRESS,), understood=(_OFFSET, _SIZE, (84, 3))),
    Opcode(0x184, "LDS", "shared", -1, 1, more_reads=(_LOAD_ADDRESS,), queue=1, understood=_LDS),
    Opcode(
        *(0x186, "STG", "global", 0, 2, -1),
        more_reads=(_STORE_DESCRIPTOR,),
        understood=_STS,
        fixed=(0x40011 << 72,),
    ),
    Opcode(
        *(0x187, "STL", "local", 0, 1, -1),
        more_reads=(_STORE_ADDRESS,),
        understood=(_DATA, _OFFSET, _SIZE, (84, 3)),
    ),
    Opcode(0x188, "STS", "shared", 0, 1, -1, more_reads=(_STORE_ADDRESS,), understood=_STS),
    Opcode(0x18F, "CCTL", "control", understood=(), fixed=(0x1 << 89 | 0xFF << 24,)),
    Opcode(0x192, "MEMBAR", "control", understood=(), fixed=(0xA << 76,)),
    Opcode(0x1AB, "ERRBAR", "control", understood=()),
    Opcode(
        *(0x1AE, "LDGSTS", "global", 0, 2),
        reads=_INPUT,
        more_reads=(_TARGET_ADDRESS, _STORE_DESCRIPTOR),
        forms=(7,),  # with a uniform register in the address ptxas 13.0 writes 6, and nvdisasm reads other registers
        understood=((16, 8), (32, 32), (64, 6), (73, 2), _DESCRIPTOR, (70, 1)),
        fixed=(0x12180 << 68, 0x10180 << 68),
    ),
    Opcode(0x1AF, "LDGDEPBAR", "global", understood=()),
    Opcode(0x1C3, "S2UR", "other", 1, uniform=True, queue=3, understood=(_SPECIAL_REGISTER,)),
    Opcode(0x1C7, "UCGABAR", "control", understood=(), fixed=(0x1 << 91,)),
)
OPCODES: Final = {row.number: row for row in _ROWS}
"""By the lower nine bits of the opcode."""


def opcodes_with(*rows: Opcode, without: Collection[str] = ()) -> Mapping[int, Opcode]:
    """The table of an architecture that adds or replaces rows, and lacks the opcodes of these names."""
    kept = (row for row in _ROWS if row.name not in without)
    return {row.number: row for row in (*kept, *rows)}


_NUMBERS: Final = {row.name: row.number for row in _ROWS}
KIND_MASK: Final = 0x1FF
"""The lower nine bits of an opcode."""
FORM_SHIFT: Final = 9


def are_of_kind(opcodes: NDArray[np.int64], opcode: int) -> NDArray[np.bool_]:
    """[words]: whether opcodes of twelve bits are of an instruction, wherever its operands come from."""
    same: NDArray[np.bool_] = opcodes & KIND_MASK == opcode & KIND_MASK
    return same


def _opcode(name: str, upper: int) -> int:
    """Twelve bits: an instruction of the table, with these upper three bits."""
    return _NUMBERS[name] | upper << FORM_SHIFT


ACQBULK: Final = _opcode("ACQBULK", 4)
"""Waits for the kernel ahead, `griddepcontrol.wait`."""
BRA: Final = _opcode("BRA", 4)
BRA_UNIFORM: Final = _opcode("BRA", 2)
"""BRA.U: goes if a uniform predicate holds."""
BREAK: Final = _opcode("BREAK", 4)
BRX: Final = _opcode("BRX", 4)
BSSY: Final = _opcode("BSSY", 4)
BSYNC: Final = _opcode("BSYNC", 4)
BAR: Final = _opcode("BAR", 5)
CCTL: Final = _opcode("CCTL", 4)
CGAERRBAR: Final = _opcode("ERRBAR", 2)
ERRBAR: Final = _opcode("ERRBAR", 4)
EXIT: Final = _opcode("EXIT", 4)
FADD: Final = _opcode("FADD", Form.REGISTERS)
FADD_IMMEDIATE: Final = _opcode("FADD", Form.IMMEDIATE_C)
FFMA_IMMEDIATE: Final = _opcode("FFMA", Form.IMMEDIATE_B)
"""FFMA d, a, immediate, c."""
FFMA_IMMEDIATE_ADDEND: Final = _opcode("FFMA", Form.IMMEDIATE_C)
"""FFMA d, a, b, immediate."""
FMNMX_IMMEDIATE: Final = _opcode("FMNMX", Form.IMMEDIATE_B)
FMUL: Final = _opcode("FMUL", Form.REGISTERS)
HADD2: Final = _opcode("HADD2", Form.REGISTERS)
HFMA2_IMMEDIATE: Final = _opcode("HFMA2", Form.IMMEDIATE_B)
HFMA2_MMA_IMMEDIATE: Final = _opcode("HFMA2.MMA", Form.IMMEDIATE_B)
ISETP_IMMEDIATE: Final = _opcode("ISETP", Form.IMMEDIATE_B)
LDG: Final = _opcode("LDG", 4)
LDGSTS: Final = _opcode("LDGSTS", 7)
LDS: Final = _opcode("LDS", 4)
LOP3: Final = _opcode("LOP3", Form.REGISTERS)
MEMBAR: Final = _opcode("MEMBAR", 4)
MOV: Final = _opcode("MOV", Form.REGISTERS)
MOV_IMMEDIATE: Final = _opcode("MOV", Form.IMMEDIATE_B)
NOP: Final = _opcode("NOP", 4)
STG: Final = _opcode("STG", 4)
STS: Final = _opcode("STS", 4)
STS_PLAIN: Final = _opcode("STS", 1)
"""STS without a uniform register in its address."""
UCGABAR_ARRIVE: Final = _opcode("UCGABAR", 4)
UCGABAR_WAIT: Final = _opcode("UCGABAR", 6)
WARPSYNC: Final = _opcode("WARPSYNC", 4)
