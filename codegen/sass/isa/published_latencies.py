"""NVIDIA's figures for results of fixed latency, in the classes in which Mesa's compiler NAK publishes them.

Cycles, from issue to issue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from codegen.sass.isa.opcodes import Opcode

RESULTS: Final = (
    *("alu", "dispatch", "fma", "lower", "upper", "fp16", "fp16_f32", "hfma2_mma"),
    *("udp", "umov", "decoupled"),
)
"""Classes of results. dispatch: CS2R; lower, upper: halves of a wide product; udp: uniform; decoupled: of unknown
latency."""
OPERANDS: Final = (
    *("alu", "fma", "multiplicand", "lower", "upper", "fp16", "fp16_f32", "hfma2_mma"),
    *("decoupled", "agu", "udp", "umov"),
)
"""Classes of operands. agu: of memory accesses and barriers; decoupled: of other words of unknown latency."""

_ALU: Final = (
    *("MOV", "P2R", "SEL", "FSEL", "FMNMX", "FSETP", "ISETP", "IADD3", "LEA", "LOP3", "PRMT", "SHF", "PLOP3", "F2FP"),
    *("VIADDMNMX", "VIMNMX", "IMNMX", "FMNMX3", "MOV.64", "SEL.64", "IADD.64"),
)
_CLASS_OF: Final = (
    dict.fromkeys(_ALU, "alu")
    | dict.fromkeys(("FMUL", "FADD", "FFMA", "IMAD", "VIADD"), "fma")
    | {"HADD2": "fp16", "HMUL2": "fp16", "HFMA2": "fp16", "HFMA2.MMA": "hfma2_mma"}
    | dict.fromkeys(("UISETP", "UIADD3", "UIADD3.64", "UVIMNMX", "ULEA", "ULOP3", "USHF", "UIMAD", "UIMAD.WIDE"), "udp")
    | {"UMOV": "umov", "UMOV.64": "umov", "ULDC": "umov"}
)
_RESULT_OF: Final = _CLASS_OF | {"CS2R": "dispatch", "IMAD.WIDE": "upper", "IMAD.HI": "upper"}
_OPERAND_OF: Final = (
    _CLASS_OF
    | {"CS2R": "alu", "IMAD.WIDE": "multiplicand", "IMAD.HI": "multiplicand"}
    | dict.fromkeys(("LD", "LDG", "LDL", "LDS", "STG", "STL", "STS", "LDGSTS", "BAR"), "agu")
)

RELOAD_CYCLES: Final = 2
"""From a word of fixed latency that reads a register to a word of unknown latency that overwrites it."""
UNIFORM_MOVE_CYCLES: Final = 3
"""From a uniform word that reads a uniform register to a UMOV or ULDC that overwrites it."""


@dataclass(frozen=True, eq=False)
class PublishedLatencies:
    """Least cycles between a result of fixed latency and the words that use or overwrite it, on one architecture."""

    source: str
    """Files below Mesa's src/nouveau/compiler."""
    guard: NDArray[np.int64]
    """[kind of resource]; the kinds are registers, predicates, uniform registers, uniform predicates."""
    read: NDArray[np.int64]
    """[kind of resource, operand, result]"""
    overwrite: NDArray[np.int64]
    """[whether a predicate guards the first word, its result, the result that overwrites it]"""

    @staticmethod
    def of(
        source: str,
        *,
        read: Mapping[str, Sequence[int]],
        uniform_read: Mapping[str, tuple[int, int]],
        predicate_read: Mapping[str, Mapping[str, int]],
        uniform_predicate_read: Mapping[str, int],
        guard: tuple[int, int],
        overwritten: Mapping[str, Sequence[int]],
        overwritten_if_guarded: Mapping[str, Sequence[int]],
        overwritten_by_loads: Mapping[str, tuple[int, int]],
    ) -> PublishedLatencies:
        """From rows of Mesa's tables, in which a pair without a figure takes 1 cycle.

        `read`, by operand: a register, in the order of RESULTS; `uniform_read`: a uniform register of udp or umov;
        `predicate_read`, by result too: a predicate; `uniform_predicate_read`. `guard`: a predicate and a uniform one,
        as a guard or as an operand that the tables do not name. `overwritten`, by result: until each other result may
        overwrite it, always or if a predicate guards the overwriting word; `overwritten_by_loads`, by result: until a
        word of unknown latency may, in both cases.
        """
        of_guards = (0, guard[0], 0, guard[1])
        cycles = np.ones((4, len(OPERANDS), len(RESULTS)), dtype=np.int64)
        udp = RESULTS.index("udp")
        cycles[1] = guard[0]
        for i, operand in enumerate(OPERANDS):
            of_registers = read.get(operand, ())
            cycles[0, i, : len(of_registers)] = of_registers
            cycles[2, i, udp : udp + 2] = uniform_read[operand]
            for result, least in predicate_read.get(operand, {}).items():
                cycles[1, i, RESULTS.index(result)] = least
            cycles[3, i] = uniform_predicate_read.get(operand, guard[1])
        after = np.ones((2, len(RESULTS), len(RESULTS)), dtype=np.int64)
        for i, result in enumerate(RESULTS):
            for guarded, table in enumerate((overwritten, overwritten_if_guarded)):
                of_registers = table.get(result, ())
                after[guarded, i, : len(of_registers)] = of_registers
            after[:, i, RESULTS.index("decoupled")] = overwritten_by_loads.get(result, (1, 1))
        after[:, udp, RESULTS.index("umov")] = 7
        return PublishedLatencies(source, np.array(of_guards, dtype=np.int64), cycles, after)


_UNIFORM_READ: Final = dict.fromkeys(OPERANDS, (6, 2)) | {
    "hfma2_mma": (9, 2),
    "decoupled": (9, 2),
    "agu": (9, 2),
    "udp": (4, 2),
    "umov": (7, 2),
}
_UNIFORM_PREDICATE_READ: Final = {"alu": 6, "fma": 6, "multiplicand": 6, "udp": 4, "decoupled": 9}
"""decoupled: the condition of BRA.U, not published, which ptxas leaves."""
_FIXED: Final = ("alu", "dispatch", "fma", "lower", "upper", "fp16", "fp16_f32")
"""Results in registers of all architectures."""

TURING: Final = PublishedLatencies.of(
    "nak/sm75_instr_latencies.rs",
    read={
        "alu": (4, 6, 5, 3, 5, 8, 8),
        "fma": (5, 6, 4, 2, 4, 8, 8),
        "multiplicand": (5, 6, 4, 4, 6, 8, 8),
        "lower": (5, 6, 4, 2, 2, 8, 8),
        "upper": (3, 4, 2, 2, 2, 6, 6),
        "fp16": (6, 6, 6, 6, 6, 6, 6),
        "fp16_f32": (6, 6, 6, 6, 6, 6, 6),
        "decoupled": (6, 6, 6, 6, 6, 8, 8),
        "agu": (8, 8, 8, 8, 8, 8, 8),
    },
    uniform_read=_UNIFORM_READ,
    predicate_read={
        "alu": {"alu": 4, "fma": 5, "upper": 5},
        "fma": {"alu": 5, "fma": 4, "upper": 4},
        "multiplicand": {"alu": 5, "fma": 4, "upper": 2},
    },
    uniform_predicate_read=_UNIFORM_PREDICATE_READ,
    guard=(12, 11),
    overwritten={
        "alu": (1, 1, 1, 1, 1, 2, 2),
        "dispatch": (2, 1, 2, 2, 1, 2, 2),
        "fma": (1, 1, 1, 1, 1, 2, 2),
        "lower": (1, 1, 1, 1, 1, 2, 2),
        "upper": (1, 1, 1, 1, 1, 2, 2),
        "fp16": (1, 3, 1, 3, 1, 1, 1),
        "fp16_f32": (1, 3, 1, 3, 1, 1, 1),
    },
    overwritten_if_guarded={
        "alu": (1, 1, 1, 3, 1, 2, 2),
        "dispatch": (2, 1, 2, 4, 2, 2, 2),
        "fma": (1, 1, 1, 2, 1, 2, 2),
        "lower": (1, 1, 1, 1, 1, 2, 2),
        "upper": (1, 1, 2, 1, 1, 2, 2),
        "fp16": (4, 3, 4, 6, 4, 1, 1),
        "fp16_f32": (4, 3, 4, 6, 4, 1, 1),
    },
    overwritten_by_loads=dict.fromkeys(_FIXED, (6, 6)) | {"udp": (6, 10), "umov": (4, 4)},
)
"""agu: what Mesa names DecoupledOther, and ptxas leaves before memory accesses; Mesa takes 6, as for `decoupled`."""

AMPERE_TO_BLACKWELL: Final = PublishedLatencies.of(
    "nak/sm80_instr_latencies.rs, latencies/sm100/*.csv",
    read={
        "alu": (4, 6, 5, 3, 5, 5, 5, 10),
        "fma": (5, 6, 4, 2, 4, 5, 5, 10),
        "multiplicand": (5, 6, 4, 4, 6, 5, 5, 10),
        "lower": (5, 6, 4, 2, 4, 5, 5, 10),
        "upper": (3, 4, 2, 2, 2, 3, 3, 8),
        "fp16": (5, 6, 5, 3, 5, 4, 5, 10),
        "fp16_f32": (5, 6, 5, 3, 5, 5, 5, 10),
        "hfma2_mma": (6, 6, 6, 6, 6, 6, 6, 6),
        "decoupled": (4, 4, 4, 4, 4, 4, 4, 6),
        "agu": (5, 5, 5, 5, 5, 5, 5, 7),
    },
    uniform_read=_UNIFORM_READ,
    predicate_read={
        "alu": {"alu": 4, "fma": 5, "upper": 5},
        "fma": {"alu": 5, "fma": 4, "upper": 4},
        "multiplicand": {"alu": 5, "fma": 4, "upper": 4},
    },
    uniform_predicate_read=_UNIFORM_PREDICATE_READ,
    guard=(13, 11),
    overwritten={"hfma2_mma": (3, 3, 3, 5, 5, 3, 3, 2)},
    overwritten_if_guarded={
        "alu": (1, 1, 1, 3, 1, 1, 1, 1),
        "dispatch": (2, 1, 2, 4, 2, 2, 1, 1),
        "fma": (1, 1, 1, 2, 1, 1, 1, 1),
        "upper": (1, 1, 2, 2, 1, 1, 1, 1),
        "fp16": (1, 1, 1, 3, 1, 1, 1, 1),
        "fp16_f32": (1, 1, 1, 3, 1, 1, 1, 1),
        "hfma2_mma": (6, 4, 6, 8, 6, 6, 5, 2),
    },
    overwritten_by_loads=dict.fromkeys(_FIXED, (1, 6)) | {"hfma2_mma": (1, 10), "udp": (4, 11), "umov": (4, 4)},
)
"""The larger of sm_80's and sm_100's figures, which hardly differ; HFMA2.MMA's is sm_80's, for sm_100 has none. None
are published for sm_86, sm_89 and sm_90. ptxas keeps to all of them on each."""


def result_index(opcode: Opcode) -> int:
    """The place in RESULTS of an opcode's result, the upper half if it has two."""
    return RESULTS.index(_RESULT_OF.get(opcode.name, "decoupled"))


def operand_index(opcode: Opcode) -> int:
    """The place in OPERANDS of an opcode's operands, the multiplicands if it has wide addends."""
    return OPERANDS.index(_OPERAND_OF.get(opcode.name, "decoupled"))
