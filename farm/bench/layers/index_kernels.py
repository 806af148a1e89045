"""Two kernels of the benchmarks: im2col of a batch, and Escoin's sparse convolution."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.layer_spec import Conv2d, LayerSpec
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.temp_folders import TempFolder
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain, run_tool

THREADS = 256
ESCOIN_POSITIONS = (1, 2, 4, 8)
"""Positions per thread of the kernels in escoin.cu; the fastest counts."""
GRID_ROWS = 65_535
"""Most blocks of a grid along y."""


def lacks(spec: Conv2d) -> str:
    """Why these kernels do not support a convolution; empty if they do."""
    if spec.groups != 1:
        return "grouped: one GEMM or one CSR matrix does not describe it"
    if spec.data_type != "float32":
        return "these kernels compute in float32"
    return ""


def macros(spec: Conv2d) -> list[str]:
    """Preprocessor macros of a shape."""
    top, left, bottom, right = spec.padding
    values = {
        "C": spec.channels,
        "H": spec.height,
        "W": spec.width,
        "K": spec.output_channels,
        "R": spec.kernel_height,
        "S": spec.kernel_width,
        "H_OUT": spec.output_height,
        "W_OUT": spec.output_width,
        "H_PADDED": spec.height + top + bottom,
        "W_PADDED": spec.width + left + right,
        "PAD_TOP": top,
        "PAD_LEFT": left,
        "STRIDE_Y": spec.stride[0],
        "STRIDE_X": spec.stride[1],
        "DILATION_Y": spec.dilation[0],
        "DILATION_X": spec.dilation[1],
    }
    return [f"-D{name}={value}" for name, value in values.items()]


def compile_ptx(name: str, spec: Conv2d, virtual: str, toolchain: Toolchain) -> str:
    """The PTX of im2col or escoin for one shape. Raises ToolError."""
    with TempFolder("bench") as scratch, as_file(files("farm.bench.layers").joinpath(f"{name}.cu")) as source:
        output = scratch / "kernel.ptx"
        run_tool(
            [toolchain.nvcc, "-ptx", "-O3", "-std=c++17", *macros(spec), f"-arch={virtual}", "-o", output, source],
            limits=DEFAULT_LIMITS,
            temp_folder=scratch,
        )
        return output.read_text()


def compile_cubin(name: str, spec: Conv2d, arch: str, toolchain: Toolchain) -> bytes:
    """Machine code of im2col or escoin for one shape. Raises ToolError."""
    return assemble(compile_ptx(name, spec, virtual_arch(arch), toolchain).encode(), arch, toolchain).data


@dataclass(frozen=True, eq=False)
class IndexCubins:
    """Machine code of both kernels for one shape."""

    im2col: bytes
    escoin: bytes


def index_cubins(spec: LayerSpec, arch: str, toolchain: Toolchain) -> IndexCubins | None:
    """im2col and Escoin for a layer's shape; None where they do not apply. Raises ToolError."""
    if not isinstance(spec, Conv2d) or lacks(spec):
        return None
    im2col, escoin = (compile_cubin(name, spec, arch, toolchain) for name in ("im2col", "escoin"))
    return IndexCubins(im2col, escoin)


def im2col_grid(spec: Conv2d, images: int) -> tuple[int, int, int]:
    """Grid of im2col."""
    positions = images * spec.output_height * spec.output_width
    return -(-positions // THREADS), min(spec.channels, GRID_ROWS), 1


def columns_shape(spec: Conv2d, images: int) -> tuple[int, int]:
    """Shape of the columns: (C R S, N H' W')."""
    rows = spec.channels * spec.kernel_height * spec.kernel_width
    return rows, images * spec.output_height * spec.output_width


@dataclass(frozen=True, eq=False)
class StretchedRows:
    """Weights in CSR with offsets into the padded image instead of columns."""

    rows: NDArray[np.int32]
    """Start of each output channel's weights, [K + 1]."""
    entries: NDArray[np.int32]
    """Offset and weight bits, [non-zeros, 2]."""

    @staticmethod
    def of(spec: Conv2d, weights: Weights) -> StretchedRows:
        k, c, r, s = np.nonzero(weights.kernel)
        height = spec.height + spec.padding[0] + spec.padding[2]
        width = spec.width + spec.padding[1] + spec.padding[3]
        offsets = (c * height + r * spec.dilation[0]) * width + s * spec.dilation[1]
        values = weights.kernel[k, c, r, s].astype(np.float32).view(np.int32)
        rows = np.searchsorted(k, np.arange(spec.output_channels + 1)).astype(np.int32)
        return StretchedRows(rows, np.stack([offsets.astype(np.int32), values], axis=1))


def escoin_grid(spec: Conv2d, images: int, positions: int) -> tuple[int, int, int]:
    """Grid of the Escoin kernel with `positions` per thread."""
    places = images * spec.output_height * spec.output_width
    return -(-places // (THREADS * positions)) * spec.output_channels, 1, 1


def padded(spec: Conv2d, x: FloatArray) -> FloatArray:
    """Input padded with zeros, as stretched offsets require."""
    top, left, bottom, right = spec.padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
