"""Convolutions whose kernel computes the max pool behind them."""

from __future__ import annotations

from dataclasses import replace

from codegen.ir.layer_spec import Clip, Conv2d, LeakyRelu, MaxPool
from codegen.ir.tiling import Tiling
from tests.toolchain.operator_case import ACCUMULATORS, Case

_RELU = (Clip(low=0.0), MaxPool())
_SPEC = Conv2d(5, 8, 12, 10, 3, 3, padding=(1, 1, 1, 1), epilogue=_RELU)
_ODD = Conv2d(3, 9, 11, 6, 3, 3, padding=(1, 1, 1, 1), epilogue=(LeakyRelu(0.1), MaxPool()))
_HALVES = replace(_SPEC, data_type="float16")
_WIDE = replace(_SPEC, epilogue=(Clip(low=0.0), MaxPool(3, (1, 1, 1, 1))))
"""Windows of 3x3: those of an even map with the first row and column of padding only."""
_WIDE_HALVES = replace(_WIDE, data_type="float16")

POOL_CASES: dict[str, Case] = {
    "pool": Case(_SPEC, Tiling("conv2d", 12, 4, 1, 4, 2, 2)),
    "pool, all kernels at once, tiles beside the map": Case(_SPEC, Tiling("conv2d", 8, 6, 1, 10, 3, 3)),
    "pool, several images a block": Case(_SPEC, Tiling("conv2d", 12, 8, 1, 5, 5, 2, images=2), batch=3),
    "pool, an odd map, no kernels left over": Case(_ODD, Tiling("conv2d", 4, 2, 1, 3, 3, 2)),
    "pool, an odd map on an older GPU": Case(_ODD, Tiling("conv2d", 6, 4, 1, 6, 1, 2), virtual_arch="compute_75"),
    "pool alone, stride 2, no padding": Case(
        Conv2d(4, 15, 13, 7, 3, 3, stride=(2, 2), epilogue=(MaxPool(),)), Tiling("conv2d", 6, 4, 1, 7, 4, 2)
    ),
    "pool, groups, K groups side by side": Case(
        Conv2d(6, 6, 8, 8, 3, 3, padding=(1, 1, 1, 1), groups=2, epilogue=_RELU),
        Tiling("conv2d", 8, 2, 1, 2, 3, 2, order="place"),
    ),
    "pool, many sums for little memory": Case(
        Conv2d(2, 6, 32, 24, 3, 3, padding=(1, 1, 1, 1), epilogue=_RELU), Tiling("conv2d", 32, 6, 1, 24, 1, 2)
    ),
    **{
        f"float16 pool, {what}, added up in {accumulate}": Case(
            _HALVES, Tiling("conv2d", width, 4, 1, 5, 2, 3, accumulate, images=images), batch=3
        )
        for what, width, images in (("image pairs", 12, 2), ("column pairs", 6, 1))
        for accumulate in ACCUMULATORS
    },
    "wide pool": Case(_WIDE, Tiling("conv2d", 13, 5, 1, 4, 2, 2)),
    "wide pool, tiles that end beside the map": Case(_WIDE, Tiling("conv2d", 7, 9, 1, 10, 3, 3)),
    "wide pool, several images a block": Case(_WIDE, Tiling("conv2d", 11, 13, 1, 5, 5, 2, images=2), batch=3),
    "wide pool, an odd map, padding at all sides": Case(
        replace(_ODD, width=7, epilogue=(LeakyRelu(0.1), MaxPool(3, (1, 1, 1, 1)))), Tiling("conv2d", 5, 7, 1, 3, 3, 2)
    ),
    "wide pool, two rows a thread": Case(_WIDE, Tiling("conv2d", 13, 3, 2, 4, 2, 2)),
    "wide pool, two rows a thread, several images a block": Case(
        _WIDE, Tiling("conv2d", 11, 7, 2, 5, 5, 2, images=2), batch=3
    ),
    "wide pool, two rows a thread, an odd map, padding at all sides": Case(
        replace(_ODD, width=7, epilogue=(LeakyRelu(0.1), MaxPool(3, (1, 1, 1, 1)))), Tiling("conv2d", 5, 3, 2, 3, 3, 2)
    ),
    "wide pool, two rows a thread, padding behind the map, an older GPU": Case(
        replace(_ODD, width=8, epilogue=(MaxPool(3, (0, 0, 1, 1)),)),
        Tiling("conv2d", 7, 2, 2, 3, 3, 2),
        virtual_arch="compute_75",
    ),
    "wide pool alone, no padding": Case(replace(_WIDE, epilogue=(MaxPool(3),)), Tiling("conv2d", 7, 5, 1, 10, 3, 3)),
    "wide pool, padding behind the map, stride 2, an older GPU": Case(
        Conv2d(4, 15, 13, 7, 3, 3, stride=(2, 2), epilogue=(MaxPool(3, (0, 1, 1, 0)),)),
        Tiling("conv2d", 5, 5, 1, 7, 4, 2),
        virtual_arch="compute_75",
    ),
    "wide pool, groups, K groups side by side": Case(
        Conv2d(6, 6, 8, 8, 3, 3, padding=(1, 1, 1, 1), groups=2, epilogue=(MaxPool(3, (1, 0, 0, 1)),)),
        Tiling("conv2d", 9, 3, 1, 2, 3, 2, order="place"),
    ),
    "wide pool, many sums for little memory": Case(
        Conv2d(2, 6, 32, 24, 3, 3, padding=(1, 1, 1, 1), epilogue=_WIDE.epilogue), Tiling("conv2d", 33, 7, 1, 24, 1, 2)
    ),
    **{
        f"float16 wide pool, {rows} rows a thread, added up in {accumulate}": Case(
            _WIDE_HALVES, Tiling("conv2d", 11, 5, rows, 5, 2, 3, accumulate, images=2), batch=3
        )
        for rows in (1, 2)
        for accumulate in ACCUMULATORS
    },
    "bfloat16 wide pool": Case(
        replace(_WIDE, data_type="bfloat16"), Tiling("conv2d", 11, 13, 1, 10, 5, 2, images=2), batch=3
    ),
    "bfloat16 pool": Case(
        replace(_SPEC, data_type="bfloat16"), Tiling("conv2d", 12, 8, 1, 10, 5, 2, images=2), batch=3
    ),
}
