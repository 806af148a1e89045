"""Blackwell with tensor memory: sm_100 (B200, GB200), sm_103 (B300, GB300) and sm_110 (Jetson Thor)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from codegen.sass.isa.architecture import Architecture, pipe
from codegen.sass.isa.architectures.blackwell import CONSTANTS, COPIES, INTERVALS, OPCODES
from codegen.sass.isa.latencies import Latencies
from codegen.sass.isa.opcodes import INPUT_PREDICATE, Opcode
from codegen.sass.isa.published_latencies import AMPERE_TO_BLACKWELL

LATENCIES: Final = Latencies.of(
    registers={
        "fma": (4, 5, 6, 5, 4, 4, 2, 5, 4),
        "half": (5, 4, 6, 5, 5, 5, 3, 5, 5),
        "alu": (5, 5, 6, 4, 5, 5, 3, 5, 4),
        "lower": (4, 4, 6, 3, 4, 4, 4, 5, 4),
        "upper": (4, 5, 6, 5, 6, 4, 4, 5, 4),
    },
    predicates={
        "alu": {"alu": 4, "fma": 5, "multiplicand": 5},
        "fma": {"alu": 5, "fma": 4},
        "upper": {"alu": 5, "fma": 4},
    },
    uniform={"uniform": 2, "alu": 6, "fma": 6, "multiplicand": 6, "memory": 9, "function": 12, "control": 9},
    longest=13,
    moved_uniform=2,
    overwritten_matrix=(9, 8),
)
"""No longer than what ptxas 13.0.88 leaves in 222 cubins. The uniform unit has UMOV's results alone after 2 cycles."""

_ALU: Final = frozenset(row.name for row in OPCODES.values() if row.unit == "alu")

SM_100: Final = Architecture(
    capability=100,
    opcodes=OPCODES,
    latencies=LATENCIES,
    published=AMPERE_TO_BLACKWELL,
    intervals=(*INTERVALS, pipe(2, *_ALU)),
    matrix_halves=False,
    constants=CONSTANTS,
    copies=COPIES,
)
SM_103: Final = replace(SM_100, capability=103)
_IMNMX: Final = Opcode(
    *(0x17, "IMNMX", "alu", 1, 1, 1), reads=(INPUT_PREDICATE,), understood=((73, 1),), fixed=(0x3FF << 77,)
)
SM_110: Final = replace(
    SM_100,
    capability=110,
    opcodes={**OPCODES, _IMNMX.number: _IMNMX},
    intervals=(*INTERVALS, pipe(2, *(_ALU - {"CS2R"}), _IMNMX.name)),
)
