"""PTX of ordinary CUDA and of the operators, run in the emulator and compared with NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen import kernels
from codegen.emulator.ptx import emulate
from codegen.errors import EmulationError
from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Form, Tiling
from codegen.kernels import weight_stream
from codegen.kernels.placeholders import FIRST_BIAS, FIRST_WEIGHT
from codegen.toolchain.tools import Toolchain, ToolLimits, find_toolchain, run_tool

LIMITS = ToolLimits(120)


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain()


def compile_to_ptx(toolchain: Toolchain, source: Path, folder: Path, arch: str = "compute_80") -> str:
    output = folder / "kernel.ptx"
    run_tool([toolchain.nvcc, "-ptx", f"-arch={arch}", f"-I{folder}", "-o", output, source], limits=LIMITS)
    return output.read_text()


KERNELS = r"""
extern "C" __global__ void saxpy(int n, float a, const float* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void saxpy_without_check(int n, float a, const float* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = a * x[i] + y[i];
}

template <bool BARRIER>
__device__ void transpose_tile(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[8][9];
    const int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = in[(size_t)row * columns + column];
    if (BARRIER) __syncthreads();
    const int to_row = blockIdx.x * 8 + threadIdx.y, to_column = blockIdx.y * 8 + threadIdx.x;
    if (to_row < columns && to_column < rows) out[(size_t)to_row * rows + to_column] = tile[threadIdx.x][threadIdx.y];
}
extern "C" __global__ void transpose(const float* in, float* out, int rows, int columns) {
    transpose_tile<true>(in, out, rows, columns);
}
extern "C" __global__ void transpose_without_barrier(const float* in, float* out, int rows, int columns) {
    transpose_tile<false>(in, out, rows, columns);
}

// Sums the Collatz steps of the block's numbers: a loop whose length differs by lane, then a tree.
extern "C" __global__ void collatz(const unsigned* numbers, unsigned* sums) {
    extern __shared__ unsigned partial[];
    const int t = threadIdx.x;
    unsigned n = numbers[blockIdx.x * blockDim.x + t], steps = 0;
    while (n > 1) {
        if (n % 2) n = 3 * n + 1; else n /= 2;
        if (++steps > 1000) break;
    }
    partial[t] = steps;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) partial[t] += partial[t + half];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = partial[0];
}

// Signed and unsigned division and remainder, by constants and by values, in 32 and 64 bits.
extern "C" __global__ void division(const int* a, const int* b, int* out, long long* wide) {
    const int i = threadIdx.x, x = a[i], y = b[i];
    out[8 * i + 0] = x / 7;
    out[8 * i + 1] = x % 7;
    out[8 * i + 2] = x / y;
    out[8 * i + 3] = x % y;
    out[8 * i + 4] = (unsigned)x / 12u;
    out[8 * i + 5] = (unsigned)x % (unsigned)y;
    out[8 * i + 6] = x / -16;
    out[8 * i + 7] = min(x, y);
    wide[4 * i + 0] = (long long)x * 1000003 / 10;
    wide[4 * i + 1] = (long long)x * y;
    wide[4 * i + 2] = (unsigned long long)x / 10u;
    wide[4 * i + 3] = ((long long)x << 20) % (y | 1LL << 33);
}

// A ring of three stages, filled by asynchronous copies of 16 bytes.
extern "C" __global__ void stream(const float* in, float* out, int chunks) {
    extern __shared__ __align__(16) float ring[];
    const int t = threadIdx.x, width = 4 * blockDim.x;
    const unsigned base = __cvta_generic_to_shared(ring) + 16 * t;
    auto issue = [&](int chunk) {
        if (chunk < chunks)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         :: "r"(base + chunk % 3 * width * 4), "l"(in + chunk * width + 4 * t) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    issue(0);
    issue(1);
    float sum = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
        asm volatile("cp.async.wait_group KEEP;" ::: "memory");
        __syncthreads();
        issue(chunk + 2);
        for (int i = 0; i < 4; ++i) sum += ring[chunk % 3 * width + i * blockDim.x + t];
    }
    out[t] = sum;
}
"""


@pytest.fixture(scope="module")
def ptx(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.cu").write_text(KERNELS.replace("KEEP", "1"))
    return compile_to_ptx(toolchain, folder / "kernels.cu", folder)


def test_saxpy_stops_at_the_end_of_its_arrays(ptx: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 1000), dtype=np.float32)
    expected = (np.float64(np.float32(1.5)) * x + y.astype(np.float64)).astype(np.float32)
    trace = emulate.run(ptx, (8, 1, 1), (128, 1, 1), 0, [1000, 1.5, x, y], kernel="saxpy")
    assert y.tolist() == expected.tolist()
    assert trace.executed["fma.rn.f32"] == 1000
    with pytest.raises(
        EmulationError, match=r"ld.global.*thread \(104, 0, 0\) of block \(7, 0, 0\): .* has 4000 bytes"
    ):
        emulate.run(ptx, (8, 1, 1), (128, 1, 1), 0, [1000, 1.5, x, y], kernel="saxpy_without_check")


def test_a_transpose_goes_through_shared_memory(ptx: str) -> None:
    matrix = np.arange(19 * 13, dtype=np.float32).reshape(19, 13)
    out = np.zeros((13, 19), dtype=np.float32)
    emulate.run(ptx, (2, 3, 1), (8, 8, 1), 0, [matrix, out, 19, 13], kernel="transpose")
    assert out.tolist() == matrix.T.tolist()
    with pytest.raises(EmulationError, match=r"written by another thread since the last barrier|never written"):
        emulate.run(ptx, (2, 3, 1), (8, 8, 1), 0, [matrix, out, 19, 13], kernel="transpose_without_barrier")


def collatz_steps(n: int) -> int:
    steps = 0
    while n > 1:
        n = 3 * n + 1 if n % 2 else n // 2
        steps += 1
    return steps


def test_a_reduction_follows_loops_that_differ_by_lane(ptx: str) -> None:
    numbers = np.arange(1, 97, dtype=np.uint32)
    sums = np.zeros(3, dtype=np.uint32)
    emulate.run(ptx, (3, 1, 1), (32, 1, 1), 128, [numbers, sums], kernel="collatz")
    assert sums.tolist() == [sum(map(collatz_steps, part)) for part in numbers.reshape(3, 32).tolist()]


def truncated(a: int, b: int) -> tuple[int, int]:
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient, a - quotient * b


def test_division_rounds_towards_zero(ptx: str) -> None:
    a = np.array([0, 1, -1, 6, 7, -7, -8, 2**31 - 1, -(2**31), 123456789, -987654321], dtype=np.int32)
    b = np.array([1, 3, 7, -2, 7, 7, -3, -(2**31), 10, 2**16, -54321], dtype=np.int32)
    out, wide = np.zeros((len(a), 8), dtype=np.int32), np.zeros((len(a), 4), dtype=np.int64)
    emulate.run(ptx, (1, 1, 1), (len(a), 1, 1), 0, [a, b, out, wide], kernel="division")
    for x, y, got, got_wide in zip(a.tolist(), b.tolist(), out.tolist(), wide.tolist(), strict=True):
        unsigned, modulus = x % 2**32, (x % 2**32) % (y % 2**32)
        expected = [*truncated(x, 7), *truncated(x, y), unsigned // 12, modulus, truncated(x, -16)[0], min(x, y)]
        assert [value % 2**32 for value in got] == [value % 2**32 for value in expected]
        expected_wide = [truncated(x * 1000003, 10)[0], x * y, x % 2**64 // 10, truncated(x << 20, y | 1 << 33)[1]]
        assert [value % 2**64 for value in got_wide] == [value % 2**64 for value in expected_wide]


def test_a_ring_of_copies_needs_the_right_wait(toolchain: Toolchain, ptx: str, tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(-9, 9, (5, 4, 32)).astype(np.float32)
    out = np.zeros(32, dtype=np.float32)
    emulate.run(ptx, (1, 1, 1), (32, 1, 1), 3 * 512, [values, out, 5], kernel="stream")
    assert out.tolist() == values.sum(axis=(0, 1)).tolist()
    (tmp_path / "late.cu").write_text(KERNELS.replace("KEEP", "2"))
    late = compile_to_ptx(toolchain, tmp_path / "late.cu", tmp_path)
    with pytest.raises(EmulationError, match=r"its cp\.async was not waited for"):
        emulate.run(late, (1, 1, 1), (32, 1, 1), 3 * 512, [values, out, 5], kernel="stream")


# The instructions that cuda_fp16.h and cuda_bf16.h are made of: these headers include others, of another package.
NARROW_KERNELS = r"""
__device__ unsigned pair(float low, float high) {
    unsigned both;
    asm("{ cvt.rn.f16x2.f32 %0, %1, %2; }" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ float2 floats(unsigned both) {
    float2 values;
    asm("{.reg .f16 low,high;\n mov.b32 {low,high},%2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;}"
        : "=f"(values.x), "=f"(values.y) : "r"(both));
    return values;
}

// Neighbours' halves swapped through shared memory, then x * w + 0.5 in each half, then a clip.
extern "C" __global__ void half_pairs(const float2* x, const unsigned* w, float2* out, unsigned short* high, int n) {
    extern __shared__ unsigned short tile[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
    const unsigned own = i < n ? pair(x[i].x, x[i].y) : 0;
    tile[2 * t] = own & 0xffff;
    tile[2 * t + 1] = own >> 16;
    __syncthreads();
    unsigned swapped, sum = own;
    asm("mov.b32 %0, {%1, %2};" : "=r"(swapped) : "h"(tile[2 * t + 1]), "h"(tile[2 * t]));
    if (i >= n) return;
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(swapped), "r"(w[i]));
    asm("{ add.f16x2 %0, %0, %1; max.NaN.f16x2 %0, %0, %2; min.NaN.f16x2 %0, %0, %3; }"
        : "+r"(sum) : "r"(pair(0.5f, 0.5f)), "r"(pair(-1.f, -1.f)), "r"(pair(6.f, 6.f)));
    out[i] = floats(sum);
    high[i] = __byte_perm(sum, 0, 0x4432);
}

__device__ float widened(unsigned short x) {
    float wide;
    asm("{ mov.b32 %0, {0,%1};}" : "=f"(wide) : "h"(x));
    return wide;
}

extern "C" __global__ void bfloats(
    const unsigned short* x, const float* w, unsigned short* out, unsigned* pairs, float slope) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = fmaf(widened(x[i]), w[i], 0.25f);
    sum = sum < 0.f ? sum * slope : sum;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out[i]) : "f"(sum));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pairs[i]) : "f"(w[i]), "f"(sum));
}
"""

EDGES = [0.0, -0.0, 1.0, 65519.0, 65520.0, 1e-8, np.inf, -np.inf, np.nan, 1 + 2.0**-11, -3e38, 1 + 2.0**-8]


@pytest.fixture(scope="module")
def narrow_ptx(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "narrow.cu").write_text(NARROW_KERNELS)
    return compile_to_ptx(toolchain, folder / "narrow.cu", folder)


def test_pairs_of_halves_are_computed_with_one_rounding_each(narrow_ptx: str) -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((1000, 2)) * 4).astype(np.float32)
    x[: len(EDGES), 0] = EDGES
    w = rng.standard_normal((1000, 2)).astype(np.float16)
    out, high = np.zeros_like(x), np.zeros(1000, dtype=np.uint16)
    trace = emulate.run(narrow_ptx, (8, 1, 1), (128, 1, 1), 512, [x, w, out, high, 1000], kernel="half_pairs")
    with np.errstate(all="ignore"):
        halves = x.astype(np.float16).astype(np.float64)
        sums = (halves[:, ::-1] * w + halves).astype(np.float16) + np.float16(0.5)
    np.testing.assert_array_equal(out, np.clip(sums, -1, 6).astype(np.float32))
    np.testing.assert_array_equal(high.view(np.float16), np.clip(sums, -1, 6)[:, 1])
    assert np.isnan(out).any()
    assert trace.executed["fma.rn.f16x2"] == 1000


def nearest_bfloat(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The bits of the nearest bfloat16, by rounding the quotient by its last digit; those of one NaN for every NaN."""
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(values)
        digit = np.exp2(np.maximum(exponent - 8, -133).astype(np.float64))
        exact = np.where(np.isfinite(values), np.rint(values / digit) * digit, values).astype(np.float32)
    return np.where(np.isnan(values), 0x7FFF, exact.view(np.uint32) >> 16)


def test_bfloats_are_computed_in_float32_and_rounded_to_nearest(narrow_ptx: str) -> None:
    rng = np.random.default_rng(5)
    x = nearest_bfloat(rng.standard_normal(512).astype(np.float32)).astype(np.uint16)
    w = (rng.standard_normal(512) * 10).astype(np.float32)
    w[: len(EDGES)] = EDGES
    out, pairs = np.zeros(512, dtype=np.uint16), np.zeros(512, dtype=np.uint32)
    emulate.run(narrow_ptx, (4, 1, 1), (128, 1, 1), 0, [x, w, out, pairs, 0.125], kernel="bfloats")
    with np.errstate(all="ignore"):
        wide = (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        sums = (wide * w + 0.25).astype(np.float32)
        sums = np.where(sums < 0, sums * np.float32(0.125), sums)
    assert out.tolist() == nearest_bfloat(sums).tolist()
    assert pairs.tolist() == (nearest_bfloat(sums) | nearest_bfloat(w) << 16).tolist()


SPEC = Conv2d(channels=6, height=9, width=11, output_channels=6, kernel_height=3, kernel_width=3, padding=(1, 1, 1, 1))


def placeholder_weights(tiling: Tiling) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The weights and biases that a template computes with before anything is replaced."""
    if tiling.form == "full":
        weights, bias = weight_stream.full_placeholders(SPEC)
        return weights.view(np.float32), bias.view(np.float32)
    indices = weight_stream.slots(kernels.tiled(SPEC, tiling)).weights
    one_copy = np.zeros((tiling.group_outputs, tiling.chunk_channels, 3, 3), dtype=np.uint32)
    # The rows of a thread have placeholders of their own for a weight, too near each other to tell apart here.
    one_copy.reshape(-1)[indices] = FIRST_WEIGHT + np.arange(len(indices))
    kernel, channel = (
        np.arange(SPEC.output_channels) % tiling.group_outputs,
        np.arange(SPEC.channels) % tiling.chunk_channels,
    )
    bias = (FIRST_BIAS + kernel).astype(np.uint32)
    return one_copy[kernel[:, None], channel].view(np.float32), bias.view(np.float32)


def convolve(x: NDArray[np.float32], weights: NDArray[np.float32], bias: NDArray[np.float32]) -> NDArray[np.float64]:
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    total: NDArray[np.float64] = np.einsum("kcrs,nchwrs->nkhw", weights.astype(np.float64), windows)
    return total + bias[:, None, None]


@pytest.mark.parametrize("arch", ["compute_75", "compute_80"])
@pytest.mark.parametrize("form", ["rolled", "full"])
def test_a_template_is_the_dense_convolution(toolchain: Toolchain, tmp_path: Path, arch: str, form: Form) -> None:
    tiling = Tiling(
        "conv2d", tile_width=8, tile_height=4, rows=2, group_outputs=3, chunk_channels=2, stages=3, form=form
    )
    for name, text in kernels.tiled(SPEC, tiling).sources().items():
        (tmp_path / name).write_text(text)
    template = compile_to_ptx(toolchain, kernels.source_path(tiling), tmp_path, arch)
    x = np.random.default_rng(3).standard_normal((2, 6, 9, 11), dtype=np.float32)
    output = np.full((2, SPEC.output_channels, 9, 11), np.nan, dtype=np.float32)
    launch = kernels.launch_of(SPEC, tiling)
    trace = emulate.run(
        template, launch.grid_at(2), launch.block, launch.shared_bytes, [x, output, *launch.numbers(2).values()]
    )
    expected = convolve(x, *placeholder_weights(tiling))
    assert np.abs(output - expected).max() < 1e-4
    multiply_adds = sum(count for opcode, count in trace.executed.items() if opcode.startswith("fma."))
    assert multiply_adds / trace.threads == tiling.rows * tiling.group_outputs * SPEC.channels * 3 * 3
