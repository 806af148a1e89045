"""Layers whose channels, or inputs, are split over the blocks of a cluster."""

from __future__ import annotations

from functools import partial

from codegen.ir.layer_spec import Clip, Conv2d, Gelu, LeakyRelu, Linear
from codegen.ir.tiling import Tiling
from tests.toolchain.operator_case import PAD, RESIDUAL, Case

_of_hopper = partial(Case, virtual_arch="compute_90")

CLUSTER_CASES: dict[str, Case] = {
    "a cluster of two, kernels that do not divide": _of_hopper(
        Conv2d(16, 9, 11, 12, 3, 3, padding=PAD, epilogue=RESIDUAL),
        Tiling("cluster_conv2d", 11, 9, 1, 8, 4, 3, cluster=2),
    ),
    "a cluster of eight": _of_hopper(
        Conv2d(32, 5, 6, 8, 3, 3, padding=PAD), Tiling("cluster_conv2d", 6, 5, 1, 8, 4, 2, cluster=8)
    ),
    "a cluster of four, in tiles, chunks copied as there is room": _of_hopper(
        Conv2d(48, 9, 11, 9, 3, 3, padding=PAD), Tiling("cluster_conv2d", 8, 4, 1, 4, 4, 2, cluster=4)
    ),
    "a cluster, two rows a thread, strides and uneven padding": _of_hopper(
        Conv2d(24, 11, 13, 8, 3, 5, stride=(2, 3), padding=(1, 0, 2, 1), epilogue=(LeakyRelu(0.1),)),
        Tiling("cluster_conv2d", 4, 2, 2, 4, 4, 3, cluster=2),
    ),
    "a cluster, several images a block, more chunks than stages": _of_hopper(
        Conv2d(32, 7, 7, 6, 3, 3, padding=PAD, epilogue=RESIDUAL),
        Tiling("cluster_conv2d", 7, 7, 1, 6, 4, 3, images=2, cluster=2),
        batch=3,
    ),
    "a cluster, tiles of a map, outputs missing from the last K group": _of_hopper(
        Conv2d(32, 9, 12, 10, 3, 3, padding=PAD, epilogue=(Clip(low=0.0),)),
        Tiling("cluster_conv2d", 6, 5, 1, 4, 4, 2, cluster=2),
        batch=2,
    ),
    "float16, a cluster, all groups of a place together": _of_hopper(
        Conv2d(32, 6, 8, 12, 3, 3, padding=PAD, data_type="float16"),
        Tiling("conv2d", 8, 3, 1, 4, 4, 2, images=2, cluster=4, order="place"),
        batch=6,
    ),
    "a cluster of four, channels apart in shared memory": _of_hopper(
        Conv2d(48, 9, 11, 10, 3, 3, padding=PAD, epilogue=RESIDUAL),
        Tiling("conv2d", 11, 5, 1, 8, 4, 3, cluster=4),
        batch=2,
    ),
    "a cluster of two, several whole maps a block": _of_hopper(
        Conv2d(32, 6, 6, 12, 3, 3, padding=PAD, epilogue=(Clip(low=0.0),)),
        Tiling("conv2d", 6, 6, 1, 8, 8, 3, images=2, cluster=2),
        batch=3,
    ),
    "a cluster, dilation, a Clip": _of_hopper(
        Conv2d(16, 9, 12, 8, 3, 3, padding=(2, 3, 2, 3), dilation=(2, 3), epilogue=(Clip(-1.0, 1.0),)),
        Tiling("cluster_conv2d", 12, 5, 1, 8, 8, 2, cluster=2),
    ),
    "a cluster, tiles of one row, several places a thread": _of_hopper(
        Conv2d(48, 8, 11, 4, 1, 3, stride=(1, 2)), Tiling("cluster_conv2d", 6, 1, 1, 4, 12, 2, cluster=4)
    ),
    "a cluster, a 1x1 kernel": _of_hopper(
        Conv2d(64, 5, 9, 20, 1, 1, epilogue=RESIDUAL), Tiling("cluster_conv2d", 23, 1, 1, 8, 8, 3, cluster=4)
    ),
    "a cluster, a 1x1 kernel, stride 2": _of_hopper(
        Conv2d(32, 9, 8, 16, 1, 1, stride=(2, 2)), Tiling("cluster_conv2d", 4, 3, 1, 16, 8, 3, cluster=2)
    ),
    "a cluster, a map of one place, whose sums are stored by fours": _of_hopper(
        Conv2d(64, 1, 1, 10, 1, 1, epilogue=(Clip(low=0.0),)),
        Tiling("cluster_conv2d", 1, 1, 1, 8, 8, 2, cluster=4),
        batch=3,
    ),
    "linear, a cluster, one row": _of_hopper(
        Linear(256, 40, epilogue=(Clip(low=0.0),)), Tiling("linear", 32, 1, 1, 16, 32, 2, cluster=8), batch=1
    ),
    "linear, a cluster, a row beyond a block": _of_hopper(
        Linear(64, 12, epilogue=RESIDUAL), Tiling("linear", 32, 1, 1, 8, 16, 3, cluster=2), batch=33
    ),
    "linear, a cluster, its last block with fewer inputs": _of_hopper(
        Linear(400, 20, epilogue=(Gelu(),)), Tiling("linear", 32, 1, 1, 8, 52, 2, cluster=8), batch=3
    ),
    "linear, a cluster, blocks without inputs": _of_hopper(
        Linear(40, 20), Tiling("linear", 32, 1, 1, 8, 8, 2, cluster=8), batch=3
    ),
    "linear, a cluster, copied word by word": _of_hopper(
        Linear(50, 20, epilogue=RESIDUAL), Tiling("linear", 32, 1, 1, 8, 8, 3, cluster=4), batch=40
    ),
    "linear, a cluster of large blocks": _of_hopper(
        Linear(256, 50, epilogue=(Gelu(),)), Tiling("linear", 320, 1, 1, 48, 32, 3, cluster=2), batch=400
    ),
    "linear, a cluster, more chunks than stages": _of_hopper(
        Linear(270, 20), Tiling("linear", 64, 1, 1, 8, 16, 3, cluster=4), batch=65
    ),
    "float16, a cluster of four, pairs of images, kernels that do not divide": _of_hopper(
        Conv2d(32, 7, 7, 12, 3, 3, padding=PAD, epilogue=RESIDUAL, data_type="float16"),
        Tiling("conv2d", 7, 7, 1, 8, 4, 2, images=4, cluster=4),
        batch=3,
    ),
    "float16, a cluster of two, stride 2, sums in float16": _of_hopper(
        Conv2d(16, 14, 14, 16, 3, 3, padding=PAD, stride=(2, 2), epilogue=(Clip(low=0.0),), data_type="float16"),
        Tiling("conv2d", 7, 7, 1, 8, 4, 3, accumulate="float16", images=8, cluster=2),
        batch=5,
    ),
    "float16, a cluster, tiles of pairs of columns, two rows a thread": _of_hopper(
        Conv2d(16, 9, 11, 8, 3, 3, padding=PAD, data_type="float16"), Tiling("conv2d", 6, 5, 2, 8, 4, 2, cluster=2)
    ),
    "float16, a cluster, a 1x1 kernel": _of_hopper(
        Conv2d(64, 8, 8, 8, 1, 1, epilogue=(Gelu(),), data_type="float16"),
        Tiling("conv2d", 32, 1, 1, 8, 16, 2, images=2, cluster=2),
    ),
    "float16, a cluster, a 1x1 kernel of neighbouring columns with what is added": _of_hopper(
        Conv2d(32, 6, 6, 16, 1, 1, epilogue=RESIDUAL, data_type="float16"),
        Tiling("conv2d", 18, 1, 1, 8, 4, 2, images=2, cluster=4),
        batch=3,
    ),
    "float16, a cluster of eight, one image of neighbouring columns, all groups of a place together": _of_hopper(
        Conv2d(64, 6, 6, 40, 1, 1, epilogue=(Clip(low=0.0),), data_type="float16"),
        Tiling("conv2d", 9, 1, 1, 16, 4, 2, images=1, cluster=8, order="place"),
        batch=3,
    ),
    "float16, a cluster of four, one column of each pair outside the map": _of_hopper(
        Conv2d(32, 14, 14, 20, 1, 1, stride=(2, 2), epilogue=(*RESIDUAL, Clip(low=0.0)), data_type="float16"),
        Tiling("conv2d", 7, 7, 1, 8, 4, 2, images=1, cluster=4),
        batch=2,
    ),
    "float16, linear, a cluster": _of_hopper(
        Linear(256, 30, epilogue=RESIDUAL, data_type="float16"),
        Tiling("linear", 32, 1, 1, 16, 32, 3, cluster=4),
        batch=45,
    ),
    "float16, linear, a cluster of large blocks": _of_hopper(
        Linear(128, 40, epilogue=RESIDUAL, data_type="float16"),
        Tiling("linear", 320, 1, 1, 32, 32, 2, cluster=4),
        batch=700,
    ),
    "float16, linear, a cluster, blocks without inputs, copied word by word": _of_hopper(
        Linear(39, 20, data_type="float16"), Tiling("linear", 32, 1, 1, 8, 8, 2, cluster=8), batch=70
    ),
}
