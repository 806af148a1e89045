"""Which kernels begin before the one ahead of them has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from codegen.ir.tiling import Tiling
from codegen.selection.early_start import MOST_IMAGES, with_early_start
from codegen.target.device_model import typical_device

H200, ADA, RTX_5090 = (typical_device(arch) for arch in ("sm_90", "sm_89", "sm_120"))
CONV = Tiling("conv2d", 8, 1, 1, 1, 2, 2)
CLUSTER = Tiling("cluster_conv2d", 8, 1, 1, 4, 2, 2, cluster=4)
TABLE_CONV = Tiling("table_conv2d", 8, 1, 1, 4, 2, 1, cluster=4)
WAITING = {
    "conv2d": (Conv2d(8, 4, 8, 40, 3, 3, padding=(1, 1, 1, 1)), CONV),
    "cluster_conv2d": (Conv2d(8, 1, 8, 40, 1, 1), CLUSTER),
    "linear": (Linear(64, 40), Tiling("linear", 32, 1, 1, 4, 8, 2)),
    "table_linear": (Linear(64, 40), Tiling("table_linear", 128, 1, 1, 4, 64, 1)),
}


def of_outputs(outputs: int) -> Conv2d:
    """A layer with a block of CONV for each output channel; CLUSTER and TABLE_CONV have four for each four."""
    return Conv2d(8, 1, 8, outputs, 1, 1)


@pytest.mark.parametrize(("spec", "tiling"), WAITING.values(), ids=WAITING)
def test_kernels_of_one_image_begin_early_from_hopper_on(spec: LayerSpec, tiling: Tiling) -> None:
    assert with_early_start(spec, tiling, MOST_IMAGES, H200).waits
    assert with_early_start(spec, tiling, MOST_IMAGES, RTX_5090).waits
    assert with_early_start(spec, tiling, MOST_IMAGES, ADA) == tiling
    assert with_early_start(spec, tiling, MOST_IMAGES + 1, H200) == tiling


@pytest.mark.parametrize(("spec", "tiling"), [WAITING["conv2d"], WAITING["table_linear"]], ids=["conv2d", "linear"])
def test_kernels_of_bfloat16_which_no_gpu_has_run_so_begin_as_they_did(spec: LayerSpec, tiling: Tiling) -> None:
    assert with_early_start(replace(spec, data_type="bfloat16"), tiling, 1, H200) == tiling
    assert with_early_start(replace(spec, data_type="float16"), tiling, 1, H200).waits


def test_kernels_without_a_wait_begin_as_they_did() -> None:
    for tiling in (replace(CONV, kernel="direct_global", stages=0), replace(CONV, form="full")):
        assert with_early_start(of_outputs(40), tiling, 1, H200) == tiling


def test_clusters_that_fill_few_places_begin_as_they_did() -> None:
    spec = of_outputs(124)  # of 240 places on an H200, or 152 on an RTX 5090
    assert with_early_start(spec, CLUSTER, 1, H200) == CLUSTER
    assert with_early_start(spec, CLUSTER, 1, RTX_5090).waits
    for waits in (of_outputs(4), of_outputs(120), of_outputs(164)):
        assert with_early_start(waits, CLUSTER, 1, H200).waits
    assert with_early_start(of_outputs(133), CONV, 1, H200).waits


def test_a_kernel_that_always_waits_stays_as_it_is() -> None:
    assert with_early_start(of_outputs(124), TABLE_CONV, 1, H200) == TABLE_CONV
