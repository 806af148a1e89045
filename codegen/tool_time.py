"""Predicts how long nvcc and ptxas will run, well enough to plan by.

Fitted to 17 layers (convolutions of LeNet, AlexNet and ResNet-50, fully connected ones; float32 and float16; sparsity
0.8 to 0.95) at -O3 on one x86-64 core: four of five cubins within a fifth, all within a half. Other machines differ by
a constant.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from codegen.operators import template_cost
from codegen.spec import LayerSpec, Linear
from codegen.tiling import Tiling

NVCC_SECONDS, SECONDS_PER_SLOT = 0.13, 0.00021
"""To start, and for each multiply-add of a template's loop."""
PTXAS_SECONDS, SECONDS_PER_INSTRUCTION = 0.03, 5.5e-5
STREAM, STREAM_GROWTH = 2000.0, 0.15
"""Instructions of a K group for which that holds, and how a longer one raises it."""
PACKED, FULLY_CONNECTED = 2.9, 1.8
"""How much longer an instruction takes of a float16 layer, and of a fully connected one."""
LOW_LEVEL = 0.5
"""Time of ptxas at -O1 as a share of that at -O3."""


def nvcc_seconds(spec: LayerSpec, tiling: Tiling) -> float | None:
    """CPU seconds for a template; None for one of the full form, which may take hours."""
    return None if tiling.form == "full" else NVCC_SECONDS + SECONDS_PER_SLOT * template_cost(spec, tiling)


def ptxas_seconds(spec: LayerSpec, streams: NDArray[np.float64], optimisation: int) -> float:
    """CPU seconds for one kernel whose K groups have so many instructions, at a level from 0 to 3."""
    each = SECONDS_PER_INSTRUCTION * math.pow(float(streams.max()) / STREAM, STREAM_GROWTH)
    each *= PACKED if spec.data_type == "float16" else 1.0
    each *= FULLY_CONNECTED if isinstance(spec, Linear) else 1.0
    return PTXAS_SECONDS + each * float(streams.sum()) * (LOW_LEVEL if optimisation <= 1 else 1.0)
