"""Small convolutions whose weights are a table: what a tile copies, how kernels, lanes and blocks share the weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from codegen.ir.layer_spec import Conv2d, Swish
from codegen.ir.tiling import Tiling
from tests.toolchain.operator_case import BFLOATS, PAD, RESIDUAL, Case

_Table = partial(Tiling, "table_conv2d")
_Case = partial(Case, virtual_arch="compute_90")
_SQUARE = Conv2d(10, 14, 14, 13, 3, 3, padding=PAD)

TABLE_CASES = {
    "table, 1x1, copies of 16 bytes, kernels that do not divide": _Case(
        Conv2d(24, 6, 8, 13, 1, 1, epilogue=RESIDUAL), _Table(24, 1, 1, 5, 24, 1)
    ),
    "table, 1x1, a tile that does not divide, several positions of a thread": _Case(
        Conv2d(24, 7, 7, 13, 1, 1), _Table(13, 1, 2, 5, 24, 1)
    ),
    "table, 1x1, four kernels of a warp, over a cluster": _Case(
        Conv2d(30, 7, 7, 19, 1, 1, epilogue=RESIDUAL), _Table(7, 1, 1, 8, 8, 1, cluster=4)
    ),
    "table, rows of a thread": _Case(_SQUARE, _Table(14, 2, 2, 4, 10, 1)),
    "table, chunks that do not divide, tiles across": _Case(_SQUARE, _Table(5, 4, 1, 6, 4, 1)),
    "table, one slice of each kernel, an activation": _Case(
        Conv2d(6, 9, 11, 33, 3, 3, padding=PAD, epilogue=(Swish(),)), _Table(11, 1, 1, 33, 6, 1)
    ),
    "table, strides, dilation, a rectangular kernel, uneven padding, over a cluster": _Case(
        Conv2d(12, 19, 21, 7, 3, 5, stride=(2, 3), padding=(1, 0, 2, 1), dilation=(2, 1)),
        _Table(6, 3, 1, 4, 3, 1, cluster=2),
    ),
    "table, 1x1 with a stride": _Case(Conv2d(9, 13, 13, 8, 1, 1, stride=(2, 2)), _Table(7, 4, 2, 3, 9, 1), batch=3),
    "table, float16, words of two columns, copies of 16 bytes, over a cluster": _Case(
        Conv2d(24, 6, 16, 14, 1, 1, epilogue=RESIDUAL, data_type="float16"), _Table(24, 1, 2, 6, 12, 1, cluster=2)
    ),
    "table, float16, words of two columns that do not divide": _Case(
        Conv2d(30, 7, 10, 19, 1, 1, data_type="float16"), _Table(9, 1, 1, 33, 30, 1)
    ),
    "table, float16, an odd map over a cluster": _Case(
        Conv2d(30, 7, 7, 19, 1, 1, epilogue=RESIDUAL, data_type="float16"), _Table(7, 1, 1, 8, 8, 1, cluster=4)
    ),
    "table, float16, rows of a thread, more channels than are on their way at once": _Case(
        Conv2d(90, 14, 14, 5, 3, 3, padding=PAD, data_type="float16"), _Table(14, 2, 2, 4, 90, 1), batch=1
    ),
    "table, float16, four positions of a thread in two words, over a cluster": _Case(
        replace(_SQUARE, epilogue=RESIDUAL, data_type="float16"), _Table(7, 2, 4, 4, 5, 1, cluster=2), batch=2
    ),
    "table, float16, 1x1, an odd map, two positions of a thread in a word": _Case(
        Conv2d(24, 7, 7, 13, 1, 1, epilogue=RESIDUAL, data_type="float16"), _Table(13, 1, 2, 5, 24, 1)
    ),
    "table, bfloat16, strides, dilation, uneven padding, two positions of a thread in a word": _Case(
        Conv2d(
            *(12, 19, 21, 7, 3, 5),
            stride=(2, 3),
            padding=(1, 0, 2, 1),
            dilation=(2, 1),
            data_type="bfloat16",
        ),
        _Table(6, 3, 2, 4, 3, 1, cluster=2),
    ),
    "table, bfloat16, 1x1 with a stride, four positions of a thread in two words": _Case(
        Conv2d(9, 13, 13, 8, 1, 1, stride=(2, 2), data_type="bfloat16"), _Table(7, 2, 4, 3, 9, 1), batch=3
    ),
    "table, bfloat16": _Case(BFLOATS, _Table(11, 4, 1, 4, 5, 1)),
    "table, kernels of many units": _Case(Conv2d(300, 4, 4, 2, 3, 3, padding=PAD), _Table(4, 4, 1, 1, 300, 1)),
}
