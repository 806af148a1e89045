"""Facts that the architectures before Hopper share: sm_80, sm_86 and sm_89."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from codegen.sass.isa.architecture import ConstantPlaces, pipe
from codegen.sass.isa.latencies import Latencies
from codegen.sass.isa.opcodes import (
    INPUT_PREDICATE,
    UNIFORM_DESTINATION,
    UNIFORM_REGISTERS,
    Opcode,
    Slot,
    opcodes_with,
)
from codegen.sass.isa.opcodes import OPCODES as COMMON

_SCALE: Final = (78, 2)
"""Shared access: the register of its address is multiplied by 4, 8 or 16, [R.X4]."""


_COPY_HINTS: Final = (0x12180 << 68, 0x10180 << 68, 0x200012180 << 68, 0x200010180 << 68)


def _scaled(row: Opcode) -> Opcode:
    return replace(row, understood=(*(row.understood or ()), _SCALE))


OPCODES: Final = opcodes_with(
    Opcode(0x17, "IMNMX", "alu", 1, 1, 1, reads=(INPUT_PREDICATE,), understood=((73, 1),)),
    Opcode(
        *(0x1C2, "R2UR", "function", 0, 1),
        more_writes=(Slot(UNIFORM_REGISTERS, UNIFORM_DESTINATION),),
        understood=((16, 6),),
        fixed=(0x7 << 81,),
    ),
    _scaled(COMMON[0x184]),
    _scaled(COMMON[0x188]),
    replace(COMMON[0x1AE], fixed=_COPY_HINTS),
    replace(COMMON[0x148], understood=(), fixed=(0, 0xFFFFFFFF << 32)),
    replace(COMMON[0x05], least_cycles=8),
    without=("VIADD", "VIADDMNMX", "VIMNMX", "UCGABAR", "LD"),
)
"""R2UR reads its register as soon as MUFU does."""
LATENCIES: Final = Latencies.of(
    registers={
        "fma": (4, 5, 6, 5, 4, 4, 4, 5, 4),
        "half": (5, 4, 6, 5, 5, 5, 5, 5, 5),
        "matrix": (10, 10, 6, 10, 10, 10, 10, 7, 7),
        "alu": (5, 5, 6, 4, 5, 5, 5, 5, 4),
        "lower": (4, 5, 6, 5, 6, 6, 6, 5, 4),
        "upper": (4, 5, 6, 5, 6, 6, 6, 5, 4),
    },
    predicates={
        "alu": {"alu": 4, "fma": 5, "multiplicand": 5},
        "fma": {"alu": 5, "fma": 4},
        "upper": {"alu": 5, "fma": 4},
    },
    uniform={"uniform": 4, "alu": 6, "fma": 6, "multiplicand": 6, "memory": 9, "function": 12},
    longest=13,
    moved_uniform=2,
    overwritten_matrix=(7, 6),
)
"""Distances that ptxas 13.0.88 leaves, seen in 112 cubins of each of the three; else sm_90's."""
CONSTANTS: Final = ConstantPlaces(descriptor=0x118)
INTEGERS: Final = pipe(2, "IMAD", "IMAD.WIDE", "IMAD.HI")
"""The interval of a pipe that float words do not share on sm_86, sm_87 and sm_89."""
