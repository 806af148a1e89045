"""The kernels that benchmarks compare with, as nvcc compiles them, in the emulator against NumPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d
from codegen.model_zoo import random_weights
from codegen.toolchain.tools import find_toolchain
from codegen.verification.reference import layer_output
from farm.bench.layers.index_kernels import (
    ESCOIN_POSITIONS,
    StretchedRows,
    columns_shape,
    compile_ptx,
    escoin_grid,
    im2col_grid,
    padded,
)

SPECS = {
    "padded": Conv2d(3, 9, 11, 5, 3, 3, padding=(1, 1, 1, 1)),
    "strided, dilated, padded on one side": Conv2d(
        2, 12, 10, 4, 3, 2, stride=(2, 1), padding=(0, 2, 1, 0), dilation=(2, 3)
    ),
    "pointwise": Conv2d(7, 6, 5, 3, 1, 1),
}
IMAGES = 3


@cache
def ptx(kernel: str, name: str) -> str:
    return compile_ptx(kernel, SPECS[name], "compute_80", find_toolchain())


def layer(name: str) -> tuple[Conv2d, NDArray[np.float32], Weights]:
    spec = SPECS[name]
    x = np.random.default_rng(7).standard_normal((IMAGES, *spec.input_shape), dtype=np.float32)
    weights = random_weights(spec, 0.6)
    return spec, x, Weights(weights.kernel, np.zeros(spec.output_channels, np.float32))


@pytest.mark.parametrize("name", SPECS)
def test_im2col_makes_the_convolution_one_product(name: str) -> None:
    spec, x, weights = layer(name)
    columns = np.full(columns_shape(spec, IMAGES), np.nan, np.float32)
    emulate.run(ptx("im2col", name), im2col_grid(spec, IMAGES), (256, 1, 1), 0, [x, columns, IMAGES])
    product = weights.kernel.reshape(spec.output_channels, -1).astype(np.float64) @ columns
    got = product.reshape(spec.output_channels, IMAGES, *spec.output_shape[1:]).swapaxes(0, 1)
    np.testing.assert_allclose(got, layer_output(spec, weights, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("positions", ESCOIN_POSITIONS)
@pytest.mark.parametrize("name", SPECS)
def test_escoins_kernel_is_the_convolution(name: str, positions: int) -> None:
    spec, x, weights = layer(name)
    matrix = StretchedRows.of(spec, weights)
    output = np.full((IMAGES, *spec.output_shape), np.nan, np.float32)
    trace = emulate.run(
        ptx("escoin", name),
        escoin_grid(spec, IMAGES, positions),
        (256, 1, 1),
        0,
        [padded(spec, x), matrix.rows, matrix.entries, output, IMAGES],
        kernel=f"escoin_{positions}",
    )
    np.testing.assert_allclose(output, layer_output(spec, weights, x), rtol=1e-5, atol=1e-5)
    # The method's cost, from which its limit follows: a load of an input for every multiply-add.
    assert trace.executed["ld.global.nc.f32"] == trace.executed["fma.rn.f32"]


def test_escoins_kernel_stages_rows_longer_than_shared_memory_holds_and_skips_empty_ones() -> None:
    spec = Conv2d(130, 4, 3, 3, 3, 3, padding=(1, 1, 1, 1))
    x = np.random.default_rng(8).standard_normal((2, *spec.input_shape), dtype=np.float32)
    kernel = random_weights(spec, 0.2).kernel
    kernel[1] = 0
    weights = Weights(kernel, np.zeros(3, np.float32))
    assert weights.nonzeros_per_output.max() > 512
    matrix = StretchedRows.of(spec, weights)
    output = np.full((2, *spec.output_shape), np.nan, np.float32)
    text = compile_ptx("escoin", spec, "compute_80", find_toolchain())
    arguments = [padded(spec, x), matrix.rows, matrix.entries, output, 2]
    emulate.run(text, escoin_grid(spec, 2, 2), (256, 1, 1), 0, arguments, kernel="escoin_2")
    np.testing.assert_allclose(output, layer_output(spec, weights, x), rtol=1e-4, atol=1e-4)
    assert not output[:, 1].any()
