"""1x1 convolutions whose input is multiplied by gates."""

from __future__ import annotations

from dataclasses import replace

from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Tiling
from tests.toolchain.operator_case import ACCUMULATORS, RESIDUAL, Case

_SPEC = Conv2d(19, 8, 7, 10, 1, 1, gated=True)
_HALVES, _BFLOATS = replace(_SPEC, data_type="float16"), replace(_SPEC, data_type="bfloat16")

GATE_CASES: dict[str, Case] = {
    "gates": Case(_SPEC, Tiling("conv2d", 32, 1, 1, 4, 8, 2)),
    "gates and a residual, several images a block": Case(
        replace(_SPEC, channels=20, epilogue=RESIDUAL), Tiling("conv2d", 56, 1, 1, 10, 4, 3, images=4), batch=6
    ),
    "gates on an older GPU, all channels at once": Case(
        replace(_SPEC, channels=20), Tiling("conv2d", 32, 1, 1, 4, 20, 2), virtual_arch="compute_75"
    ),
    "gates, three groups, chunks that do not divide": Case(
        Conv2d(15, 8, 9, 12, 1, 1, groups=3, gated=True), Tiling("conv2d", 32, 1, 1, 2, 3, 2)
    ),
    "gates, several groups a stream": Case(
        Conv2d(18, 8, 9, 12, 1, 1, groups=6, gated=True), Tiling("conv2d", 36, 1, 1, 4, 6, 2, images=1)
    ),
    "gates, stride 2, two rows a thread": Case(
        Conv2d(18, 8, 9, 12, 1, 1, stride=(2, 2), gated=True), Tiling("conv2d", 5, 2, 2, 4, 8, 2)
    ),
    **{
        f"float16 gates, {what}, added up in {accumulate}": Case(
            _HALVES, Tiling("conv2d", width, 1, 1, 5, 4, 3, accumulate, images=images), batch=3
        )
        for what, width, images in (("image pairs", 56, 4), ("column pairs", 28, 1))
        for accumulate in ACCUMULATORS
    },
    "bfloat16 gates, several images a block": Case(
        replace(_BFLOATS, epilogue=RESIDUAL), Tiling("conv2d", 56, 1, 1, 10, 4, 3, images=2), batch=3
    ),
    "gates in a cluster": Case(
        Conv2d(32, 6, 7, 10, 1, 1, epilogue=RESIDUAL, gated=True),
        Tiling("cluster_conv2d", 42, 1, 1, 8, 8, 2, images=2, cluster=2),
        virtual_arch="compute_90",
        batch=3,
    ),
    "gates in a cluster, tiles of a map": Case(
        Conv2d(64, 6, 7, 20, 1, 1, gated=True),
        Tiling("cluster_conv2d", 21, 1, 1, 16, 16, 2, cluster=4),
        virtual_arch="compute_90",
    ),
}
