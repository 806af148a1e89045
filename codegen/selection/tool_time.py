"""Predicts how long nvcc and ptxas will run, well enough to plan by.

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
"""To start, and for each multiply-add of a template's loop."""
NVCC_MOST_SECONDS = 600.0
"""What a template of the full form counts as, where something has to be said."""
PTXAS_SECONDS, SECONDS_OF_KERNEL, GROWTH = 0.02, 0.68, 1.17
"""To start; for a kernel of 10,000 machine instructions, and how that grows with their number."""
PACKED = 2.9
"""How much longer an instruction takes of a float16 layer."""
LOW_LEVEL = 0.88
"""Time of ptxas at -O1 as a share of that at -O3."""
SKELETON_SECONDS = 1.0
"""Of a skeleton, about: ptxas has no multiply-adds to schedule."""
DIRECT_SECONDS, SECONDS_PER_INSTRUCTION = 0.03, 1.2e-6
"""Without ptxas: of a cubin, with what is rewritten for it, and of each instruction."""


def nvcc_seconds(spec: LayerSpec, tiling: Tiling) -> float | None:
    """CPU seconds for a template; None for one of the full form, which may take hours."""
    return None if tiling.form == "full" else NVCC_SECONDS + SECONDS_PER_SLOT * template_cost(spec, tiling)


def ptxas_seconds(spec: LayerSpec, instructions: float, optimisation: int) -> float:
    """CPU seconds for one kernel of so many machine instructions, at a level from 0 to 3."""
    seconds = SECONDS_OF_KERNEL * math.pow(instructions / 10_000, GROWTH)
    seconds *= PACKED if spec.data_type == "float16" else 1.0
    return PTXAS_SECONDS + seconds * (LOW_LEVEL if optimisation <= 1 else 1.0)


def direct_seconds(instructions: float) -> float:
    """CPU seconds for one kernel that is assembled without ptxas."""
    return DIRECT_SECONDS + SECONDS_PER_INSTRUCTION * instructions
