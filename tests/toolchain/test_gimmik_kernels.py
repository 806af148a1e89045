"""GiMMiK as a peer: its kernels for a layer, made by the real generator and ptxas."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from codegen.model_zoo import random_weights
from codegen.toolchain.tools import ToolLimits, find_toolchain
from farm.bench.layers import gimmik_kernels
from farm.bench.layers.gimmik_kernels import GimmikKernels, columns_of

POINTWISE = Conv2d(40, 10, 10, 24, 1, 1, stride=(2, 2))
FITTING: dict[str, LayerSpec] = {"1x1, strided": POINTWISE, "linear": Linear(48, 32)}
UNFIT: dict[str, tuple[LayerSpec, str]] = {
    "3x3": (Conv2d(8, 8, 8, 8, 3, 3), "1x1 convolutions only"),
    "grouped": (Conv2d(8, 8, 8, 8, 1, 1, groups=2), "1x1 convolutions only"),
    "padded": (Conv2d(8, 8, 8, 8, 1, 1, padding=(1, 1, 1, 1)), "no border of zeros"),
    "half precision": (Linear(8, 8, data_type="float16"), "float32 and float64"),
}
IMAGES = 3


def made(spec: LayerSpec, weights: Weights | None = None) -> GimmikKernels:
    return gimmik_kernels.gimmik_kernels(spec, weights or random_weights(spec, 0.9), IMAGES, "sm_90", find_toolchain())


@pytest.mark.parametrize("name", FITTING)
def test_the_best_variants_are_machine_code_for_every_column(name: str) -> None:
    spec = FITTING[name]
    found = made(spec)
    assert len(found.kernels) == gimmik_kernels.VARIANTS
    assert not found.reason
    for kernel in found.kernels:
        assert kernel.cubin.startswith(b"\x7fELF")
        assert gimmik_kernels.ENTRY.encode() in kernel.cubin
        assert kernel.grid[0] * kernel.block[0] * 2 >= columns_of(spec, IMAGES)  # a thread has one column or two


def test_columns_in_and_sums_out_are_feature_major(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    kept = gimmik_kernels.assemble
    monkeypatch.setattr(
        gimmik_kernels, "assemble", lambda ptx, *rest, **more: seen.append(ptx.decode()) or kept(ptx, *rest, **more)
    )
    weights = random_weights(POINTWISE, 0.9)
    kernels = made(POINTWISE, weights).kernels
    plain = next(i for i, kernel in enumerate(kernels) if kernel.variant.startswith("cstream/"))
    n = columns_of(POINTWISE, IMAGES)
    columns = np.random.default_rng(1).standard_normal((40, n), dtype=np.float32)
    sums = np.full((24, n), np.nan, np.float32)
    emulate.run(seen[plain], kernels[plain].grid, kernels[plain].block, 0, [columns, sums])
    np.testing.assert_allclose(sums, weights.kernel.reshape(24, 40).astype(np.float64) @ columns, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UNFIT)
def test_a_layer_that_it_has_no_kernel_for_says_why(name: str) -> None:
    spec, reason = UNFIT[name]
    found = made(spec)
    assert not found.kernels
    assert reason in found.reason


def test_a_matrix_that_is_not_sparse_enough_is_left_to_a_gemm() -> None:
    assert "dense GEMM" in made(POINTWISE, random_weights(POINTWISE, 0.5)).reason


def test_a_matrix_of_zeros_is_refused() -> None:
    zeros = Weights(np.zeros_like(random_weights(POINTWISE, 0.9).kernel), np.zeros(24, np.float32))
    assert "zeros" in made(POINTWISE, zeros).reason


def test_without_the_package_the_reason_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gimmik", None)
    assert "pip install '.[peers]'" in made(POINTWISE).reason


def test_what_ptxas_does_not_finish_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gimmik_kernels, "PTXAS_LIMITS", ToolLimits(seconds=0.001))
    found = made(POINTWISE)
    assert not found.kernels
    assert "0.001" in found.reason
