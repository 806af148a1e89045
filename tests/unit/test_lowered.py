"""Lowering: which kernels can compute a layer, and what its tilings share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen.errors import TilingError
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import lower, tiled

SPEC = Conv2d(32, 28, 28, 32, 3, 3, padding=(1, 1, 1, 1))
TILING = Tiling("conv2d", 28, 4, 1, 16, 8, 2)


@pytest.mark.parametrize(
    ("spec", "tiling", "cause"),
    [
        (Linear(64, 32), TILING, "conv2d cannot compute 64 -> 32: it is a linear layer"),
        (SPEC, replace(TILING, kernel="linear"), "linear cannot compute .*: it is a convolution"),
        (SPEC, replace(TILING, kernel="direct_global", stages=0), "it is no 1x1 convolution"),
        (SPEC, replace(TILING, stages=0), "takes at least one stage"),
        (SPEC, replace(TILING, cluster=4, form="full"), "a full template has neither clusters"),
        (SPEC, replace(TILING, groups=2, form="full"), "nor blocks of several K groups"),
        (SPEC, replace(TILING, kernel="cluster_conv2d"), "of which there must be several"),
        (SPEC, replace(TILING, kernel="cluster_conv2d", cluster=2, order="place"), "no other order"),
        (replace(SPEC, groups=4), replace(TILING, kernel="cluster_conv2d", cluster=2), "grouped convolution"),
        (replace(SPEC, groups=4), replace(TILING, kernel="table_conv2d", stages=1), "grouped convolution"),
        (replace(SPEC, data_type="bfloat16"), replace(TILING, cluster=2), "not in bfloat16"),
        (SPEC, replace(TILING, listed=True), "columns cannot be listed"),
    ],
)
def test_a_combination_that_the_kernel_does_not_have_is_refused_with_its_cause(
    spec: LayerSpec, tiling: Tiling, cause: str
) -> None:
    with pytest.raises(TilingError, match=cause):
        tiled(spec, tiling)


@pytest.mark.parametrize("other", [replace(TILING, group_outputs=8), replace(TILING, stages=3)])
def test_tilings_that_read_the_same_input_share_its_layout(other: Tiling) -> None:
    layer = lower(SPEC)
    assert layer.tiled(TILING).input_tile is layer.tiled(other).input_tile


@pytest.mark.parametrize(
    "other", [replace(TILING, chunk_channels=4), replace(TILING, tile_width=14), replace(TILING, images=2)]
)
def test_tilings_that_read_another_input_do_not(other: Tiling) -> None:
    layer = lower(SPEC)
    assert layer.tiled(other).input_tile == tiled(SPEC, other).input_tile != layer.tiled(TILING).input_tile


def test_a_layer_is_lowered_canonical() -> None:
    assert lower(Conv2d(8, 4, 6, 8, 1, 1)).spec == Conv2d(8, 1, 24, 8, 1, 1)
