"""Convolutions whose kernel computes the max pool behind them."""

from __future__ import annotations

from dataclasses import replace

from codegen.spec import Clip, Conv2d, LeakyRelu, MaxPool
from codegen.tiling import Tiling
from tests.toolchain.operator_case import ACCUMULATORS, Case

_RELU = (Clip(low=0.0), MaxPool())
_SPEC = Conv2d(5, 8, 12, 10, 3, 3, padding=(1, 1, 1, 1), epilogue=_RELU)
_ODD = Conv2d(3, 9, 11, 6, 3, 3, padding=(1, 1, 1, 1), epilogue=(LeakyRelu(0.1), MaxPool()))
_HALVES = replace(_SPEC, data_type="float16")

POOL_CASES: dict[str, Case] = {
    "pool": Case(_SPEC, Tiling(12, 4, 1, 4, 2, 2)),
    "pool, all kernels at once, tiles beside the map": Case(_SPEC, Tiling(8, 6, 1, 10, 3, 3)),
    "pool, several images a block": Case(_SPEC, Tiling(12, 8, 1, 5, 5, 2, images=2), batch=3),
    "pool, an odd map, no kernels left over": Case(_ODD, Tiling(4, 2, 1, 3, 3, 2)),
    "pool, an odd map on an older GPU": Case(_ODD, Tiling(6, 4, 1, 6, 1, 2), virtual_arch="compute_75"),
    "pool alone, stride 2, no padding": Case(
        Conv2d(4, 15, 13, 7, 3, 3, stride=(2, 2), epilogue=(MaxPool(),)), Tiling(6, 4, 1, 7, 4, 2)
    ),
    "pool, groups, K groups side by side": Case(
        Conv2d(6, 6, 8, 8, 3, 3, padding=(1, 1, 1, 1), groups=2, epilogue=_RELU),
        Tiling(8, 2, 1, 2, 3, 2, order="place"),
    ),
    "pool, many sums for little memory": Case(
        Conv2d(2, 6, 32, 24, 3, 3, padding=(1, 1, 1, 1), epilogue=_RELU), Tiling(32, 6, 1, 24, 1, 2)
    ),
    **{
        f"float16 pool, {what}, added up in {accumulate}": Case(
            _HALVES, Tiling(width, 4, 1, 5, 2, 3, accumulate, images=images), batch=3
        )
        for what, width, images in (("image pairs", 12, 2), ("column pairs", 6, 1))
        for accumulate in ACCUMULATORS
    },
    "bfloat16 pool": Case(replace(_SPEC, data_type="bfloat16"), Tiling(12, 8, 1, 10, 5, 2, images=2), batch=3),
}
