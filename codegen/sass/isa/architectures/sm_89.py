"""Ada: L4, L40, GeForce RTX 40."""

from __future__ import annotations

from typing import Final

from codegen.sass.isa.architecture import Architecture, pipe
from codegen.sass.isa.architectures.before_hopper import CONSTANTS, INTEGERS, LATENCIES, OPCODES
from codegen.sass.isa.published_latencies import AMPERE_TO_BLACKWELL

SM_89: Final = Architecture(
    capability=89,
    opcodes=OPCODES,
    latencies=LATENCIES,
    published=AMPERE_TO_BLACKWELL,
    intervals=(INTEGERS,),
    kept_intervals=(pipe(2, "HFMA2", "HMUL2"),),
    matrix_halves=False,
    branch_pieces=1,
    constants=CONSTANTS,
    shared_base=0,
    shared_kib=100,
)
