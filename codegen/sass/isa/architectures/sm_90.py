"""Hopper: H100, H200, GH200."""

from __future__ import annotations

from typing import Final

from codegen.sass.isa.architecture import Architecture
from codegen.sass.isa.latencies import Latencies
from codegen.sass.isa.opcodes import OPCODES
from codegen.sass.isa.published_latencies import AMPERE_TO_BLACKWELL

_LATENCIES: Final = Latencies.of(
    registers={
        "fma": (4, 5, 6, 5, 4, 4, 2, 5, 4),
        "half": (5, 4, 6, 5, 5, 5, 3, 5, 5),
        "matrix": (10, 10, 8, 10, 10, 10, 8, 7, 7),
        "alu": (5, 5, 6, 4, 5, 5, 3, 5, 4),
        "lower": (4, 4, 6, 3, 4, 4, 4, 5, 4),
        "upper": (4, 5, 6, 5, 6, 4, 4, 5, 4),
    },
    predicates={
        "alu": {"alu": 4, "fma": 5, "multiplicand": 5},
        "fma": {"alu": 5, "fma": 4},
        "upper": {"alu": 5, "fma": 4},
    },
    uniform={"uniform": 4, "alu": 6, "fma": 6, "multiplicand": 6, "memory": 9, "function": 12},
    longest=13,
    moved_uniform=2,
    overwritten_matrix=(9, 8),
)
"""Distances that ptxas 13.0.88 leaves.

Seen in chains in which each writer stands right before each operand slot that can read it
(`tests/toolchain/latency_chains.py`), in every layer of `tests/toolchain/operator_cases.py` (160,000 words) and, for
uniform results, in 1,100 more skeletons (1.6 million words). A pair that was never seen at its least distance has a
longer one, at most the longest. IMAD.WIDE reads the upper half of its addend 2 cycles late, and delivers the lower half
of its result 2 cycles before the upper.
"""

SM_90: Final = Architecture(capability=90, opcodes=OPCODES, latencies=_LATENCIES, published=AMPERE_TO_BLACKWELL)
