"""The instructions that ptxas makes of the farm's kernels for sm_90: what executes each, and which operands it has.

Opcodes are twelve bits: nine say what is done, three where the second and third operand come from. An opcode that is
not in `SHAPES` is an error, so that whoever trusts what stands here trusts nothing unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from codegen.sass.isa.encoding import Field

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

LAST: Final = {REGISTERS: 255, PREDICATES: 7, UNIFORM_REGISTERS: 63, UNIFORM_PREDICATES: 7}

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
    0x36: Shape("VIADD", "integer", 1, 1, 1),
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

BRA: Final = 0x947
BREAK: Final = 0x942
BRX: Final = 0x949
BSSY: Final = 0x945
BSYNC: Final = 0x941
BAR: Final = 0xB1D
CCTL: Final = 0x98F
CGAERRBAR: Final = 0x5AB
ERRBAR: Final = 0x9AB
EXIT: Final = 0x94D
FADD: Final = 0x221
FADD_IMMEDIATE: Final = 0x421
FFMA_IMMEDIATE: Final = 0x823
"""FFMA d, a, immediate, c."""
FFMA_IMMEDIATE_ADDEND: Final = 0x423
"""FFMA d, a, b, immediate."""
FMNMX_IMMEDIATE: Final = 0x809
FMUL: Final = 0x220
HADD2: Final = 0x230
HFMA2_IMMEDIATE: Final = 0x831
HFMA2_MMA_IMMEDIATE: Final = 0x835
"""HFMA2 on the unit of the tensor cores."""
ISETP_IMMEDIATE: Final = 0x80C
LDG: Final = 0x981
LDGSTS: Final = 0xFAE
LDS: Final = 0x984
LOP3: Final = 0x212
MEMBAR: Final = 0x992
MOV: Final = 0x202
MOV_IMMEDIATE: Final = 0x802
NOP: Final = 0x918
STG: Final = 0x986
STS: Final = 0x988
STS_PLAIN: Final = 0x388
"""STS without a uniform register in its address."""
UCGABAR_ARRIVE: Final = 0x9C7
UCGABAR_WAIT: Final = 0xDC7
WARPSYNC: Final = 0x948
