"""Predicted run times of nvcc and ptxas, for plans.

Fitted to 240 templates and 480 kernels of layers of seven networks and of the ten operators (float32, sparsity 0.8 to
0.95, -O3 and -O1; tests/benchmarks/tool_time.py measures and fits), and to layers of float16: nine kernels of ten are
within a factor of 1.6, and the sums of kernels of any size within a seventh. Other machines differ by a constant.
"""

from __future__ import annotations

import math

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.kernels import template_cost

NVCC_SECONDS, SECONDS_PER_SLOT = 0.25, 0.00019
"""Seconds to start nvcc, and per multiply-add of a template's loop."""
NVCC_MOST_SECONDS = 600.0
"""Seconds that a full template counts as, in plans that need a number."""
PTXAS_SECONDS, SECONDS_OF_KERNEL, GROWTH = 0.02, 0.68, 1.17
"""Seconds to start ptxas, seconds for a kernel of 10,000 machine instructions, exponent of growth with their number."""
PACKED = 2.9
"""Factor on the time of an instruction in a float16 layer."""
LOW_LEVEL = 0.88
"""Time of ptxas at -O1 as a share of that at -O3."""
SKELETON_SECONDS = 1.0
"""Seconds for a skeleton, about: ptxas has no multiply-adds to schedule."""
DIRECT_SECONDS, SECONDS_PER_INSTRUCTION = 0.03, 1.2e-6
"""Seconds without ptxas: per cubin, with its rewriting, and per instruction."""


def nvcc_seconds(spec: LayerSpec, tiling: Tiling) -> float | None:
    """CPU seconds of nvcc for a template; None for a full one, which may take hours."""
    return None if tiling.form == "full" else NVCC_SECONDS + SECONDS_PER_SLOT * template_cost(spec, tiling)


def ptxas_seconds(spec: LayerSpec, instructions: float, optimisation: int) -> float:
    """CPU seconds of ptxas for one kernel of `instructions`, at optimisation level 0 to 3."""
    seconds = SECONDS_OF_KERNEL * math.pow(instructions / 10_000, GROWTH)
    seconds *= PACKED if spec.data_type == "float16" else 1.0
    return PTXAS_SECONDS + seconds * (LOW_LEVEL if optimisation <= 1 else 1.0)


def direct_seconds(instructions: float) -> float:
    """CPU seconds for one kernel that is assembled without ptxas."""
    return DIRECT_SECONDS + SECONDS_PER_INSTRUCTION * instructions
