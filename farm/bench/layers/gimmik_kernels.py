"""GiMMiK kernels of one layer: the matrix is unrolled into code, one thread per column."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from codegen.errors import ToolTimeout
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from codegen.target.arch import arch_number
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import Toolchain, ToolLimits
from farm.extras import way_out

ENTRY = "gimmik"
VARIANTS = 4
"""Most GiMMiK kernels measured, in the order of its own tables; the fastest counts."""
PTXAS_LIMITS = ToolLimits(seconds=60)


@dataclass(frozen=True, eq=False)
class GimmikKernel:
    """Machine code for one matrix and number of columns: columns [C, n] to sums [K, n]."""

    cubin: bytes
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    variant: str


@dataclass(frozen=True, eq=False)
class GimmikKernels:
    """Variants that were built, or the reason for having none."""

    kernels: tuple[GimmikKernel, ...] = ()
    reason: str = ""


def unfit(spec: LayerSpec) -> str:
    """Why GiMMiK has no kernel for a layer; empty for a linear layer or a 1x1 convolution."""
    if spec.data_type != "float32":
        return "GiMMiK computes in float32 and float64"
    if isinstance(spec, Linear):
        return ""
    if not isinstance(spec, Conv2d) or (spec.kernel_height, spec.kernel_width, spec.groups) != (1, 1, 1):
        return "GiMMiK multiplies one matrix by columns: linear layers and 1x1 convolutions only"
    return "GiMMiK's columns have no border of zeros" if any(spec.padding) else ""


def columns_of(spec: LayerSpec, images: int) -> int:
    """Number of columns: positions of all images, or rows of a linear layer."""
    return images * math.prod(spec.output_shape[1:])


def gimmik_kernels(spec: LayerSpec, weights: Weights, images: int, arch: str, toolchain: Toolchain) -> GimmikKernels:
    """Kernels of a layer's weights and batch, each assembled by ptxas within a minute. Raises ToolError."""
    if reason := unfit(spec):
        return GimmikKernels(reason=reason)
    try:
        from gimmik import PTXMatMul
    except ImportError:
        return GimmikKernels(reason=f"GiMMiK is not installed: {way_out('peers')}")
    n = columns_of(spec, images)
    matrix = np.asarray(weights.kernel, np.float32).reshape(spec.output_channels, -1)
    if not matrix.any():
        return GimmikKernels(reason="GiMMiK refuses a matrix of zeros")
    product = PTXMatMul(matrix, n=n, ldb=n, ldc=n, aligne=math.gcd(n, 4))
    made: list[GimmikKernel] = []
    reason = "GiMMiK leaves a matrix of this density to a dense GEMM"
    for ptx, facts in product.kernels(np.float32, ENTRY, compute_capability=divmod(arch_number(arch), 10)):
        # Its target may be an architecture-specific one, and ptxas requires the same name.
        target = arch + "a" if f".target {arch}a" in ptx else arch
        try:
            cubin = assemble(ptx.encode(), target, toolchain, limits=PTXAS_LIMITS)
        except ToolTimeout as error:
            reason = f"GiMMiK's kernel: {error}"
            break  # later ones are no smaller
        note = f"{facts['variant']}, ptxas {cubin.seconds:.1f} s"
        made.append(GimmikKernel(cubin.data, facts["grid"], facts["block"], note))
        if len(made) == VARIANTS:
            break
    return GimmikKernels(tuple(made), "" if made else reason)
