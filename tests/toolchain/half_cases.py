"""Small layers of 16-bit types: pairs of columns and of images, sums of both kinds, copies of each length."""

from __future__ import annotations

from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, ConvTranspose2d, DataType, Linear, Swish
from codegen.ir.tiling import Tiling
from tests.toolchain.operator_case import ACCUMULATORS, BFLOATS, HALVES, PAD, RESIDUAL, Case

_HALF: DataType = "float16"

_NARROW = {
    f"{name}, added up in {accumulate}": case
    for accumulate in ACCUMULATORS
    for name, case in {
        "float16": Case(HALVES, Tiling("conv2d", 4, 4, 1, 4, 2, 2, accumulate)),
        "float16, several rows a thread": Case(HALVES, Tiling("conv2d", 4, 3, 2, 4, 3, 3, accumulate)),
        "float16, groups": Case(
            Conv2d(8, 9, 11, 16, 3, 3, padding=PAD, groups=4, data_type="float16"),
            Tiling("conv2d", 4, 4, 1, 8, 4, 2, accumulate),
        ),
        "float16, transposed": Case(
            ConvTranspose2d(6, 5, 6, 5, 3, 3, stride=(2, 2), padding=PAD, data_type="float16"),
            Tiling("conv2d", 2, 4, 2, 3, 2, 2, accumulate),
        ),
        "float16, a 1x1 kernel": Case(
            Conv2d(16, 8, 12, 10, 1, 1, data_type="float16"), Tiling("conv2d", 32, 1, 1, 5, 8, 2, accumulate)
        ),
        "float16, linear": Case(
            Linear(41, 10, epilogue=RESIDUAL, data_type="float16"),
            Tiling("linear", 32, 1, 2, 4, 8, 2, accumulate),
            batch=70,
        ),
    }.items()
} | {
    "float16, long sums of groups": Case(
        Conv2d(96, 4, 5, 6, 3, 3, padding=PAD, groups=2, data_type="float16"),
        Tiling("conv2d", 5, 4, 1, 2, 7, 2, images=2),
        batch=2,
    ),
    "float16, long sums of several groups in a stream": Case(
        Conv2d(120, 4, 4, 8, 3, 3, padding=PAD, groups=4, data_type="float16"),
        Tiling("conv2d", 4, 4, 1, 4, 60, 2),
        batch=2,
    ),
    "float16, long sums, transposed": Case(
        ConvTranspose2d(200, 3, 4, 5, 3, 3, stride=(2, 2), padding=PAD, data_type="float16"),
        Tiling("conv2d", 2, 4, 1, 3, 8, 2),
    ),
    "float16, long sums, linear": Case(
        Linear(500, 6, data_type="float16"), Tiling("linear", 32, 1, 2, 4, 32, 2), batch=70
    ),
    "float16 without cp.async": Case(HALVES, Tiling("conv2d", 4, 4, 1, 4, 2, 2), virtual_arch="compute_75"),
    "bfloat16": Case(BFLOATS, Tiling("conv2d", 4, 4, 1, 4, 2, 2)),
    "bfloat16 without cp.async": Case(BFLOATS, Tiling("conv2d", 4, 4, 1, 4, 2, 2), virtual_arch="compute_75"),
    "bfloat16, transposed": Case(
        ConvTranspose2d(6, 5, 6, 5, 3, 3, stride=(2, 2), padding=PAD, data_type="bfloat16"),
        Tiling("conv2d", 4, 4, 1, 3, 2, 2),
    ),
    "bfloat16, linear": Case(
        Linear(41, 10, epilogue=RESIDUAL, data_type="bfloat16"), Tiling("linear", 32, 1, 2, 4, 8, 2), batch=40
    ),
}

_IMAGE_PAIRS = {
    "image pairs, one image": Case(HALVES, Tiling("conv2d", 8, 4, 1, 4, 2, 2, images=2), batch=1),
    "image pairs, the last alone, whole rows": Case(HALVES, Tiling("conv2d", 11, 4, 1, 4, 2, 2, images=2), batch=3),
    "image pairs, two in a block, the last empty": Case(HALVES, Tiling("conv2d", 8, 9, 1, 4, 2, 3, images=4), batch=5),
    "image pairs, two in a block, whole maps": Case(
        Conv2d(8, 7, 7, 7, 3, 3, padding=PAD, data_type=_HALF), Tiling("conv2d", 7, 7, 1, 4, 4, 3, images=4), batch=6
    ),
    "image pairs, whole maps of an odd size, stride 2, without cp.async": Case(
        Conv2d(8, 9, 7, 5, 3, 3, stride=(2, 2), padding=PAD, epilogue=RESIDUAL, data_type=_HALF),
        Tiling("conv2d", 4, 5, 1, 5, 4, 2, images=2),
        virtual_arch="compute_75",
        batch=3,
    ),
    "image pairs, whole rows copied by fours": Case(
        Conv2d(4, 9, 12, 7, 3, 3, padding=PAD, epilogue=RESIDUAL, data_type=_HALF),
        Tiling("conv2d", 12, 3, 2, 4, 4, 3, images=2),
        batch=3,
    ),
    "image pairs, whole rows copied by twos, that begin in the middle of a copy": Case(
        Conv2d(5, 10, 14, 7, 3, 5, padding=(1, 2, 1, 2), data_type=_HALF),
        Tiling("conv2d", 14, 10, 1, 4, 2, 2, images=2),
        batch=3,
    ),
    "image pairs, tiles copied by fours, stride 2": Case(
        Conv2d(5, 9, 24, 7, 3, 3, stride=(2, 2), padding=PAD, data_type=_HALF),
        Tiling("conv2d", 8, 4, 1, 4, 2, 2, images=2),
        batch=3,
    ),
    "image pairs, strides that copies do not divide": Case(
        Conv2d(5, 19, 21, 7, 3, 5, stride=(2, 3), padding=(1, 0, 2, 1), data_type=_HALF),
        Tiling("conv2d", 5, 4, 2, 3, 2, 3, images=2),
        batch=3,
    ),
    "image pairs, dilation": Case(
        Conv2d(4, 9, 12, 7, 3, 3, padding=(2, 3, 2, 3), dilation=(2, 3), data_type=_HALF),
        Tiling("conv2d", 12, 5, 1, 7, 2, 2, images=2),
    ),
    "image pairs, streams of two groups": Case(
        Conv2d(8, 9, 11, 16, 3, 3, padding=PAD, groups=4, data_type=_HALF),
        Tiling("conv2d", 11, 5, 1, 8, 4, 2, images=2),
        batch=3,
    ),
    "image pairs, groups that chunks do not divide": Case(
        Conv2d(10, 9, 12, 14, 3, 3, padding=PAD, groups=2, data_type=_HALF),
        Tiling("conv2d", 12, 4, 1, 4, 4, 2, images=2),
        batch=3,
    ),
    "image pairs, a 1x1 kernel in one piece": Case(
        Conv2d(16, 5, 5, 10, 1, 1, epilogue=RESIDUAL, data_type=_HALF),
        Tiling("conv2d", 25, 1, 1, 5, 8, 2, images=4),
        batch=5,
    ),
    "image pairs, a 1x1 kernel in one piece copied word by word": Case(
        Conv2d(13, 7, 7, 10, 1, 1, data_type=_HALF), Tiling("conv2d", 49, 1, 1, 5, 8, 2, images=2), batch=3
    ),
    "image pairs, a 1x1 kernel with a stride": Case(
        Conv2d(6, 9, 11, 10, 1, 1, stride=(2, 2), data_type=_HALF),
        Tiling("conv2d", 6, 3, 2, 5, 4, 2, images=2),
        batch=3,
    ),
    "image pairs, a 1x1 kernel with a stride, copied by fours": Case(
        Conv2d(6, 9, 16, 10, 1, 1, stride=(2, 2), epilogue=RESIDUAL, data_type=_HALF),
        Tiling("conv2d", 8, 3, 1, 5, 4, 2, accumulate="float16", images=2),
        batch=3,
    ),
    "image pairs, a 1x1 kernel with a stride, copied by twos, the last tile not full": Case(
        Conv2d(8, 12, 28, 10, 1, 1, stride=(2, 2), data_type=_HALF),
        Tiling("conv2d", 6, 4, 1, 5, 8, 3, images=4),
        batch=3,
    ),
    "image pairs, a column of a filter with a stride, copied by fours": Case(
        Conv2d(4, 9, 24, 6, 3, 1, stride=(2, 2), padding=(1, 0, 1, 0), data_type=_HALF),
        Tiling("conv2d", 12, 3, 1, 3, 4, 2, images=2),
        batch=3,
    ),
    "image pairs, transposed": Case(
        ConvTranspose2d(
            6, 5, 6, 5, 3, 3, stride=(2, 2), padding=PAD, output_padding=(1, 1), epilogue=RESIDUAL, data_type=_HALF
        ),
        Tiling("conv2d", 6, 5, 1, 3, 2, 2, images=2),
        batch=3,
    ),
    "image pairs, chunks added up together, the last alone": Case(
        Conv2d(37, 4, 5, 3, 3, 3, padding=PAD, data_type=_HALF), Tiling("conv2d", 5, 4, 1, 3, 4, 2, images=2), batch=3
    ),
    "image pairs, registers bounded": Case(
        Conv2d(6, 5, 8, 32, 3, 3, padding=PAD, data_type=_HALF), Tiling("conv2d", 8, 5, 1, 32, 2, 2, images=2)
    ),
    "image pairs, added up in float16": Case(
        HALVES, Tiling("conv2d", 11, 9, 1, 4, 2, 2, accumulate="float16", images=2), batch=3
    ),
    "image pairs, without cp.async": Case(
        Conv2d(4, 9, 12, 7, 3, 3, padding=PAD, data_type=_HALF),
        Tiling("conv2d", 12, 3, 1, 4, 4, 2, images=2),
        virtual_arch="compute_75",
        batch=3,
    ),
}

_NEIGHBOURS = {
    f"neighbouring columns, {name}": case
    for name, case in {
        "whole maps of several images, the last block with one": Case(
            Conv2d(16, 6, 6, 10, 1, 1, epilogue=RESIDUAL, data_type=_HALF),
            Tiling("conv2d", 18, 1, 1, 5, 8, 2, images=3),
            batch=4,
        ),
        "tiles, the last not full, copied by twos": Case(
            Conv2d(13, 14, 14, 10, 1, 1, epilogue=(Clip(low=0.0),), data_type=_HALF),
            Tiling("conv2d", 32, 1, 1, 5, 4, 3),
        ),
        "tiles copied by fours, a K group with fewer kernels": Case(
            Conv2d(8, 16, 16, 10, 1, 1, epilogue=(Swish(),), data_type=_HALF),
            Tiling("conv2d", 48, 1, 1, 4, 4, 3, accumulate="float16"),
        ),
        "a K group with fewer kernels, a residual": Case(
            Conv2d(8, 8, 8, 10, 1, 1, epilogue=RESIDUAL, data_type=_HALF),
            Tiling("conv2d", 32, 1, 1, 4, 4, 3, accumulate="float16"),
        ),
        "words copied one by one": Case(
            Conv2d(9, 5, 14, 6, 1, 1, epilogue=(AddResidual(),), data_type=_HALF), Tiling("conv2d", 32, 1, 1, 6, 4, 2)
        ),
        "groups": Case(
            Conv2d(8, 4, 4, 12, 1, 1, groups=2, data_type=_HALF), Tiling("conv2d", 8, 1, 1, 6, 4, 2, images=2)
        ),
        "long sums": Case(
            Conv2d(400, 4, 4, 6, 1, 1, epilogue=RESIDUAL, data_type=_HALF), Tiling("conv2d", 8, 1, 1, 3, 40, 2)
        ),
        "K groups side by side": Case(
            Conv2d(16, 8, 8, 12, 1, 1, epilogue=RESIDUAL, data_type=_HALF),
            Tiling("conv2d", 32, 1, 1, 4, 8, 2, order="place"),
        ),
        "without cp.async": Case(
            Conv2d(16, 8, 8, 12, 1, 1, epilogue=RESIDUAL, data_type=_HALF),
            Tiling("conv2d", 32, 1, 1, 4, 8, 3, images=2),
            virtual_arch="compute_75",
            batch=3,
        ),
    }.items()
}

_HALF_VECTORS = {
    "column pairs copied by fours": Case(
        Conv2d(5, 9, 24, 7, 3, 3, padding=PAD, data_type=_HALF), Tiling("conv2d", 4, 4, 1, 4, 2, 3), batch=1
    ),
    "column pairs copied by fours, one tile": Case(
        Conv2d(5, 9, 16, 7, 3, 3, padding=PAD, data_type=_HALF), Tiling("conv2d", 8, 4, 1, 4, 2, 2)
    ),
    "column pairs, a 1x1 kernel with a stride, copied by fours": Case(
        Conv2d(6, 9, 24, 7, 1, 1, stride=(2, 2), epilogue=(Clip(low=0.0),), data_type=_HALF),
        Tiling("conv2d", 4, 4, 1, 4, 2, 2, accumulate="float16"),
    ),
    "column pairs, a 1x1 kernel with padding and a stride, copied by twos": Case(
        Conv2d(6, 9, 20, 7, 1, 1, stride=(2, 2), padding=(1, 0, 2, 3), data_type=_HALF),
        Tiling("conv2d", 6, 4, 1, 4, 2, 2),
    ),
    "column pairs copied by twos": Case(
        Conv2d(6, 9, 22, 7, 3, 5, padding=(1, 2, 1, 2), data_type=_HALF), Tiling("conv2d", 6, 4, 1, 4, 3, 2)
    ),
    "bfloat16 copied by fours, whole rows": Case(
        Conv2d(4, 9, 12, 7, 3, 3, padding=PAD, epilogue=RESIDUAL, data_type="bfloat16"),
        Tiling("conv2d", 12, 3, 2, 4, 4, 3),
    ),
    "bfloat16 copied by twos": Case(
        Conv2d(6, 9, 22, 7, 3, 5, padding=(1, 2, 1, 2), data_type="bfloat16"),
        Tiling("conv2d", 8, 4, 1, 4, 3, 2, images=2),
        batch=3,
    ),
    "bfloat16 copied by fours without cp.async": Case(
        Conv2d(5, 9, 24, 7, 3, 3, padding=PAD, data_type="bfloat16"),
        Tiling("conv2d", 8, 4, 1, 4, 2, 2),
        virtual_arch="compute_75",
    ),
}

_LINEAR_LOOPS = {
    "float16, linear, copied in a loop, the last row alone": Case(
        Linear(300, 10, epilogue=RESIDUAL, data_type=_HALF), Tiling("linear", 32, 1, 1, 4, 128, 2), batch=71
    ),
    "float16, linear, copied in a loop, some without an upper row": Case(
        Linear(128, 6, data_type=_HALF), Tiling("linear", 32, 1, 1, 4, 64, 2, "float16"), batch=90
    ),
    "float16, linear, copied in a loop, word by word": Case(
        Linear(131, 9, data_type=_HALF), Tiling("linear", 64, 1, 1, 4, 64, 2), batch=129
    ),
    "float16, linear, copied in a loop without cp.async": Case(
        Linear(100, 6, data_type=_HALF), Tiling("linear", 32, 1, 1, 4, 64, 2), virtual_arch="compute_75", batch=33
    ),
}

HALF_CASES: dict[str, Case] = {
    **_NARROW,
    **_IMAGE_PAIRS,
    **_NEIGHBOURS,
    **_HALF_VECTORS,
    **_LINEAR_LOOPS,
}
