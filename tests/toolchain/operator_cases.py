"""Small layers that reach every kind of generated code: what a tile copies, what a stream holds, how it ends."""

from __future__ import annotations

from dataclasses import replace

from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Linear,
    Mish,
    Quantize,
    Scale,
    Sigmoid,
    Swish,
    Tanh,
)
from codegen.ir.tiling import Tiling
from tests.toolchain.cluster_cases import CLUSTER_CASES
from tests.toolchain.gate_cases import GATE_CASES
from tests.toolchain.half_cases import HALF_CASES
from tests.toolchain.operator_case import ACCUMULATORS, BFLOATS, HALVES, PAD, RESIDUAL, Case
from tests.toolchain.pool_cases import POOL_CASES
from tests.toolchain.table_cases import TABLE_CASES

_CONVOLUTIONS = {
    "channels and kernels that do not divide": Case(
        Conv2d(5, 9, 11, 7, 3, 3, padding=PAD), Tiling("conv2d", 8, 4, 1, 4, 2, 2)
    ),
    "without cp.async": Case(
        Conv2d(5, 9, 11, 7, 3, 3, stride=(1, 2), padding=(0, 1, 1, 2)),
        Tiling("conv2d", 4, 8, 1, 7, 2, 2),
        virtual_arch="compute_75",
    ),
    "several rows a thread, three stages": Case(
        Conv2d(5, 9, 11, 7, 3, 3, padding=PAD), Tiling("conv2d", 8, 4, 2, 4, 2, 3)
    ),
    "strides, a rectangular kernel, uneven padding": Case(
        Conv2d(5, 19, 21, 7, 3, 5, stride=(2, 3), padding=(1, 0, 2, 1)), Tiling("conv2d", 5, 4, 2, 3, 2, 2)
    ),
    "stride 2, where loads come in pairs": Case(
        Conv2d(6, 20, 21, 7, 3, 3, stride=(2, 2), padding=(1, 0, 1, 1)), Tiling("conv2d", 8, 4, 2, 4, 2, 3)
    ),
    "patches of 8 x 8": Case(Conv2d(3, 24, 32, 10, 8, 8, stride=(8, 8)), Tiling("conv2d", 4, 3, 1, 5, 2, 2)),
    "patches of 6 x 6, rows left over, in tiles, two rows a thread": Case(
        Conv2d(2, 22, 44, 7, 6, 6, stride=(6, 6), epilogue=RESIDUAL), Tiling("conv2d", 5, 1, 2, 4, 3, 3)
    ),
    "patches of 5 x 5 without cp.async, as many rows a chunk as they have": Case(
        Conv2d(2, 15, 20, 7, 5, 5, stride=(5, 5)), Tiling("conv2d", 4, 3, 1, 4, 5, 2), virtual_arch="compute_75"
    ),
    "patches apart in one direction only": Case(
        Conv2d(3, 16, 11, 5, 4, 3, stride=(4, 1), padding=(0, 1, 0, 1)), Tiling("conv2d", 4, 4, 1, 5, 2, 2)
    ),
    "patches in the full form": Case(
        Conv2d(2, 8, 12, 5, 4, 4, stride=(4, 4)), Tiling("conv2d", 3, 2, 1, 3, 2, 2, form="full"), batch=2
    ),
    "tiles of one position, a kernel of one column": Case(
        Conv2d(2, 4, 5, 3, 3, 1, padding=(1, 0, 1, 1)), Tiling("conv2d", 1, 1, 1, 3, 1, 2)
    ),
    "a stride larger than the kernel": Case(
        Conv2d(3, 13, 13, 4, 2, 1, stride=(3, 4)), Tiling("conv2d", 4, 4, 2, 4, 3, 2)
    ),
    "whole maps of an odd size, in one piece": Case(
        Conv2d(8, 7, 9, 5, 3, 3, padding=PAD), Tiling("conv2d", 9, 7, 1, 3, 4, 3, images=2), batch=3
    ),
    "whole maps of an odd size, stride 2, without cp.async": Case(
        Conv2d(8, 9, 7, 5, 3, 3, stride=(2, 2), padding=PAD, epilogue=RESIDUAL),
        Tiling("conv2d", 4, 5, 1, 5, 4, 2),
        virtual_arch="compute_75",
    ),
    "whole maps of an odd size, uneven padding and a dilation": Case(
        Conv2d(4, 5, 7, 6, 2, 3, padding=(0, 1, 1, 2), dilation=(2, 1)), Tiling("conv2d", 8, 4, 1, 3, 4, 2)
    ),
    "whole maps of an odd size, bfloat16": Case(
        Conv2d(8, 7, 7, 5, 3, 3, padding=PAD, data_type="bfloat16"), Tiling("conv2d", 7, 7, 1, 5, 8, 2)
    ),
    "one output": Case(Conv2d(4, 3, 3, 1, 3, 3), Tiling("conv2d", 1, 1, 1, 1, 4, 2), batch=1),
    "a residual and a Relu": Case(
        Conv2d(5, 9, 11, 7, 3, 3, padding=(1, 0, 1, 2), epilogue=RESIDUAL), Tiling("conv2d", 8, 4, 2, 4, 2, 2), batch=3
    ),
    "a residual after a Relu6": Case(
        Conv2d(3, 6, 7, 5, 3, 3, padding=PAD, epilogue=(Clip(0.0, 6.0), AddResidual())),
        Tiling("conv2d", 7, 3, 2, 5, 3, 2),
    ),
    "dilation, a leaky Relu, a Clip": Case(
        Conv2d(
            5, 19, 21, 7, 3, 3, stride=(2, 1), padding=PAD, dilation=(2, 3), epilogue=(LeakyRelu(0.1), Clip(-1.0, 1.0))
        ),
        Tiling("conv2d", 8, 2, 2, 4, 2, 2),
    ),
    "a 1-D convolution": Case(Conv2d(6, 1, 40, 5, 1, 5, padding=(0, 2, 0, 2)), Tiling("conv2d", 32, 1, 1, 5, 3, 2)),
}

_WHOLE_ROWS = {
    "whole rows": Case(Conv2d(5, 9, 11, 7, 3, 3, padding=PAD), Tiling("conv2d", 11, 4, 1, 4, 2, 2)),
    "whole rows copied by fours": Case(
        Conv2d(4, 9, 12, 7, 3, 3, padding=PAD, epilogue=RESIDUAL), Tiling("conv2d", 12, 3, 2, 4, 4, 3)
    ),
    "whole rows copied by twos, that begin in the middle of a copy": Case(
        Conv2d(5, 10, 14, 7, 3, 5, padding=(1, 2, 1, 2)), Tiling("conv2d", 14, 10, 1, 4, 2, 2)
    ),
    "whole rows without cp.async": Case(
        Conv2d(5, 10, 14, 7, 3, 3, padding=PAD), Tiling("conv2d", 14, 4, 1, 7, 2, 2), virtual_arch="compute_75"
    ),
    "whole rows, copies of several channels": Case(
        Conv2d(8, 4, 8, 7, 3, 3, padding=PAD), Tiling("conv2d", 8, 4, 1, 7, 8, 2)
    ),
    "whole rows, a stride and uneven padding": Case(
        Conv2d(5, 11, 21, 7, 3, 5, stride=(2, 3), padding=(1, 0, 2, 1)), Tiling("conv2d", 6, 3, 2, 3, 2, 2)
    ),
    "whole rows, more padding than map": Case(
        Conv2d(3, 3, 4, 5, 5, 7, padding=(2, 5, 2, 5)), Tiling("conv2d", 8, 3, 1, 5, 3, 2)
    ),
    "whole rows, dilation": Case(
        Conv2d(4, 9, 12, 7, 3, 3, padding=(2, 3, 2, 3), dilation=(2, 3)), Tiling("conv2d", 12, 5, 1, 7, 2, 2)
    ),
    "whole rows, groups": Case(Conv2d(8, 9, 11, 16, 3, 3, padding=PAD, groups=4), Tiling("conv2d", 11, 5, 1, 8, 4, 2)),
    "whole rows, transposed": Case(
        ConvTranspose2d(6, 5, 6, 5, 3, 3, stride=(2, 2), padding=PAD, output_padding=(1, 1)),
        Tiling("conv2d", 6, 5, 1, 3, 2, 2),
    ),
    "whole rows, bfloat16": Case(BFLOATS, Tiling("conv2d", 11, 4, 1, 4, 2, 2)),
    "several images a block": Case(
        Conv2d(5, 7, 7, 7, 3, 3, padding=PAD, epilogue=RESIDUAL), Tiling("conv2d", 7, 7, 1, 4, 2, 2, images=2), batch=3
    ),
    "several images a block, in tiles": Case(
        Conv2d(5, 9, 11, 7, 3, 3, padding=PAD), Tiling("conv2d", 8, 4, 1, 4, 2, 2, images=3), batch=4
    ),
    "several images a block, float16": Case(HALVES, Tiling("conv2d", 4, 4, 1, 4, 2, 2, images=2), batch=3),
    "several images a block, a 1x1 kernel": Case(
        Conv2d(16, 7, 7, 10, 1, 1, epilogue=RESIDUAL), Tiling("conv2d", 49, 1, 1, 5, 8, 2, images=2), batch=3
    ),
    "several images a block, a 1x1 kernel, channels that do not divide": Case(
        Conv2d(13, 7, 7, 10, 1, 1), Tiling("conv2d", 49, 1, 1, 5, 8, 2, images=2), batch=3
    ),
    "several images a block, full form": Case(
        Conv2d(3, 5, 6, 5, 3, 2, padding=(1, 1, 0, 0)),
        Tiling("conv2d", 6, 5, 1, 3, 2, 2, form="full", images=2),
        batch=3,
    ),
}

_TILES = {
    "tiles copied by fours": Case(Conv2d(5, 9, 24, 7, 3, 3, padding=PAD), Tiling("conv2d", 8, 4, 1, 4, 2, 2)),
    "tiles copied by twos": Case(Conv2d(6, 9, 22, 7, 3, 5, padding=(1, 2, 1, 2)), Tiling("conv2d", 8, 4, 1, 4, 3, 2)),
    "tiles copied by fours, stride 2": Case(
        Conv2d(5, 9, 24, 7, 3, 3, stride=(2, 2), padding=PAD), Tiling("conv2d", 8, 4, 1, 4, 2, 2)
    ),
}

_GROUPS = {
    "groups larger than a stream": Case(
        Conv2d(8, 9, 11, 12, 3, 3, padding=PAD, groups=2), Tiling("conv2d", 8, 4, 1, 4, 2, 2)
    ),
    "groups that chunks and streams do not divide": Case(
        Conv2d(10, 9, 11, 14, 3, 3, padding=PAD, groups=2), Tiling("conv2d", 8, 4, 1, 4, 4, 2)
    ),
    "streams of two groups": Case(
        Conv2d(8, 9, 11, 16, 3, 3, padding=PAD, groups=4), Tiling("conv2d", 8, 4, 1, 8, 4, 2)
    ),
    "depthwise": Case(Conv2d(8, 9, 11, 8, 3, 3, padding=PAD, groups=8), Tiling("conv2d", 8, 4, 1, 4, 4, 2)),
    "depthwise with two kernels a channel, stride 2": Case(
        Conv2d(6, 11, 9, 12, 3, 3, stride=(2, 2), padding=PAD, groups=6, epilogue=(Clip(0.0, 6.0),)),
        Tiling("conv2d", 5, 3, 2, 6, 3, 2),
    ),
}

_POINTWISE = {
    "a 1x1 kernel copied word by word": Case(Conv2d(16, 9, 11, 10, 1, 1), Tiling("conv2d", 32, 1, 1, 4, 4, 2)),
    "a 1x1 kernel copied by fours": Case(Conv2d(16, 8, 12, 10, 1, 1), Tiling("conv2d", 32, 1, 1, 5, 8, 2)),
    "a 1x1 kernel, maps in one piece": Case(Conv2d(16, 7, 7, 10, 1, 1), Tiling("conv2d", 49, 1, 1, 5, 8, 2)),
    "a 1x1 kernel without cp.async": Case(
        Conv2d(16, 8, 12, 10, 1, 1), Tiling("conv2d", 32, 1, 1, 5, 8, 2), virtual_arch="compute_75"
    ),
    "a 1x1 kernel, channels that do not divide": Case(
        Conv2d(13, 7, 7, 10, 1, 1, epilogue=RESIDUAL), Tiling("conv2d", 49, 1, 1, 5, 8, 2)
    ),
    "a 1x1 kernel in groups": Case(Conv2d(16, 8, 12, 12, 1, 1, groups=2), Tiling("conv2d", 32, 1, 1, 6, 4, 2)),
    "a 1x1 kernel with a stride and padding": Case(
        Conv2d(6, 9, 11, 10, 1, 1, stride=(2, 3), padding=(1, 1, 1, 1)), Tiling("conv2d", 5, 3, 2, 5, 4, 2)
    ),
    "a 1x3 kernel with a stride": Case(
        Conv2d(6, 9, 11, 5, 1, 3, stride=(2, 2), padding=(0, 1, 0, 1)), Tiling("conv2d", 6, 3, 2, 5, 4, 2)
    ),
    "a 1x1 kernel with a stride, float16": Case(
        Conv2d(6, 9, 11, 10, 1, 1, stride=(2, 2), data_type="float16"), Tiling("conv2d", 3, 3, 2, 5, 4, 2)
    ),
    "a 1x1 kernel, all groups of a place together": Case(
        Conv2d(16, 8, 12, 22, 1, 1, epilogue=RESIDUAL), Tiling("conv2d", 32, 1, 1, 8, 8, 2, order="place"), batch=3
    ),
    "a strided 1x1 kernel, all groups of a place together": Case(
        Conv2d(6, 14, 14, 20, 1, 1, stride=(2, 2)), Tiling("conv2d", 7, 4, 1, 4, 2, 3, images=1, order="place"), batch=5
    ),
    "a 1x1 kernel with a stride": Case(Conv2d(6, 9, 11, 10, 1, 1, stride=(2, 2)), Tiling("conv2d", 6, 3, 2, 5, 4, 2)),
}

_TRANSPOSED = {
    "transposed": Case(
        ConvTranspose2d(6, 5, 6, 5, 3, 3, stride=(2, 2), padding=PAD, output_padding=(1, 1), epilogue=RESIDUAL),
        Tiling("conv2d", 4, 4, 1, 3, 2, 2),
    ),
    "transposed, dilation, groups, uneven strides": Case(
        ConvTranspose2d(6, 5, 6, 6, 4, 3, stride=(3, 2), padding=(0, 1, 2, 0), dilation=(2, 1), groups=2),
        Tiling("conv2d", 4, 4, 2, 3, 3, 2),
    ),
    "transposed, a kernel smaller than its stride": Case(
        ConvTranspose2d(3, 4, 5, 4, 2, 1, stride=(3, 2), output_padding=(1, 1)), Tiling("conv2d", 5, 2, 2, 4, 2, 2)
    ),
    "transposed with stride 1": Case(ConvTranspose2d(4, 6, 5, 5, 3, 2), Tiling("conv2d", 6, 4, 2, 3, 2, 2)),
}

_LINEAR = {
    "linear, copied by fours": Case(Linear(40, 10), Tiling("linear", 32, 1, 1, 4, 8, 2), batch=40),
    "linear, inputs that do not divide": Case(
        Linear(41, 10, epilogue=RESIDUAL), Tiling("linear", 32, 1, 2, 4, 8, 2), batch=70
    ),
    "linear, more outputs of a group than lanes of a warp": Case(
        Linear(40, 70, epilogue=RESIDUAL), Tiling("linear", 64, 1, 2, 40, 8, 2), batch=150
    ),
    "float16 linear, more outputs of a group than lanes of a warp": Case(
        Linear(40, 70, epilogue=RESIDUAL, data_type="float16"), Tiling("linear", 64, 1, 1, 40, 8, 2), batch=150
    ),
    "bfloat16 linear, one output at a time": Case(
        Linear(40, 3, data_type="bfloat16"), Tiling("linear", 32, 1, 1, 1, 8, 2), batch=40
    ),
    "linear, copied in a loop": Case(Linear(256, 10), Tiling("linear", 32, 1, 1, 4, 64, 2), batch=40),
    "linear, copied in a loop, inputs that do not divide": Case(
        Linear(300, 10, epilogue=RESIDUAL), Tiling("linear", 32, 1, 1, 4, 128, 2), batch=70
    ),
    "linear, copied in a loop, word by word, two blocks of rows": Case(
        Linear(301, 9), Tiling("linear", 64, 1, 1, 4, 64, 2), batch=100
    ),
    "linear, copied in a loop without cp.async, one row": Case(
        Linear(100, 6), Tiling("linear", 32, 1, 1, 4, 64, 2), virtual_arch="compute_75", batch=1
    ),
    "linear, copied in a loop without cp.async, two blocks": Case(
        Linear(201, 6), Tiling("linear", 64, 1, 1, 6, 64, 2), virtual_arch="compute_75", batch=70
    ),
    "linear, a large block, all groups of some rows together": Case(
        Linear(96, 100, epilogue=RESIDUAL), Tiling("linear", 320, 1, 1, 48, 32, 2, order="place"), batch=400
    ),
    "linear, weights in a table": Case(
        Linear(41, 10, epilogue=RESIDUAL), Tiling("table_linear", 128, 1, 1, 4, 64, 1), batch=3
    ),
    "linear, weights in a table, chunks that do not divide, two rows": Case(
        Linear(300, 9), Tiling("table_linear", 64, 1, 1, 2, 128, 1, images=2), batch=5
    ),
    "linear, weights in a table, outputs of many units": Case(
        Linear(1500, 3), Tiling("table_linear", 64, 1, 1, 2, 1504, 1, images=4), virtual_arch="compute_75", batch=2
    ),
    "linear, weights in a table, float16": Case(
        Linear(100, 9, epilogue=(Gelu(),), data_type="float16"),
        Tiling("table_linear", 64, 1, 1, 2, 64, 1, images=4),
        batch=7,
    ),
    "linear, weights in a table, four rows, chunks that do not divide": Case(
        Linear(301, 9, epilogue=RESIDUAL), Tiling("table_linear", 64, 1, 1, 2, 128, 1, images=4), batch=13
    ),
    "linear, weights in a table, float16, eight rows, chunks that do not divide": Case(
        Linear(300, 9, epilogue=RESIDUAL, data_type="float16"),
        Tiling("table_linear", 64, 1, 1, 2, 128, 1, images=8),
        batch=13,
    ),
    "linear, weights in a table, bfloat16": Case(
        Linear(67, 9, data_type="bfloat16"), Tiling("table_linear", 64, 1, 1, 2, 96, 1), batch=2
    ),
    "linear, weights in a table, bfloat16, two rows in a word": Case(
        Linear(67, 9, data_type="bfloat16"), Tiling("table_linear", 64, 1, 1, 2, 96, 1, images=2), batch=5
    ),
    "linear without cp.async": Case(
        Linear(40, 10), Tiling("linear", 32, 1, 1, 4, 8, 2), virtual_arch="compute_75", batch=3
    ),
}

_FULL = {
    "full form": Case(
        Conv2d(3, 9, 11, 5, 3, 2, stride=(1, 2), padding=(1, 1, 0, 0), epilogue=RESIDUAL),
        Tiling("conv2d", 5, 4, 2, 3, 2, 2, form="full"),
    ),
    "full form without cp.async": Case(
        Conv2d(3, 9, 11, 5, 3, 2, padding=(1, 1, 0, 0)),
        Tiling("conv2d", 8, 4, 1, 5, 3, 2, form="full"),
        virtual_arch="compute_75",
    ),
    "full form of a dilated 1x3 kernel": Case(
        Conv2d(3, 7, 9, 4, 1, 3, padding=(0, 2, 0, 2), dilation=(1, 2)), Tiling("conv2d", 9, 4, 2, 2, 2, 2, form="full")
    ),
}

_ACTIVATED = Conv2d(5, 9, 11, 7, 3, 3, padding=PAD)
_ACTIVATIONS = {
    "GELU, a residual, Mish": Case(
        replace(_ACTIVATED, epilogue=(Gelu(), AddResidual(), Mish())), Tiling("conv2d", 8, 4, 2, 4, 2, 2)
    ),
    "SiLU, a hard swish, without cp.async": Case(
        replace(_ACTIVATED, epilogue=(Swish(), HardSwish(1 / 6, 0.5))),
        Tiling("conv2d", 8, 4, 1, 4, 2, 2),
        virtual_arch="compute_75",
    ),
    "quantized, a residual, scaled": Case(
        replace(_ACTIVATED, epilogue=(Quantize(0.0625, -128, 127), AddResidual(), Scale(-1.5, 0.25))),
        Tiling("conv2d", 8, 4, 2, 4, 2, 2),
    ),
    "SiLU and a sigmoid, full form": Case(
        Conv2d(3, 7, 9, 4, 1, 3, epilogue=(Swish(1.702), Sigmoid())), Tiling("conv2d", 9, 4, 2, 2, 2, 2, form="full")
    ),
    **{
        f"float16 GELU by tanh, a tanh, sums in {accumulate}": Case(
            replace(_ACTIVATED, epilogue=(Gelu("tanh"), Tanh()), data_type="float16"),
            Tiling("conv2d", 4, 4, 1, 4, 2, 2, accumulate),
        )
        for accumulate in ACCUMULATORS
    },
    "bfloat16 SiLU": Case(
        replace(_ACTIVATED, epilogue=(Swish(),), data_type="bfloat16"), Tiling("conv2d", 8, 4, 1, 4, 2, 2)
    ),
    "bounded inputs": Case(Conv2d(19, 10, 6, 7, 1, 1, bounded=True), Tiling("conv2d", 32, 1, 1, 4, 8, 2)),
    "bounded inputs and a residual": Case(
        Conv2d(16, 7, 5, 7, 1, 1, epilogue=RESIDUAL, bounded=True),
        Tiling("conv2d", 35, 1, 1, 7, 4, 3, images=2),
        batch=3,
    ),
    "bounded inputs in whole rows": Case(Conv2d(9, 6, 8, 8, 1, 1, bounded=True), Tiling("conv2d", 64, 1, 1, 3, 4, 2)),
    "bounded inputs on an older GPU": Case(
        Conv2d(8, 9, 1, 40, 1, 1, bounded=True), Tiling("conv2d", 32, 1, 1, 9, 8, 2), virtual_arch="compute_75"
    ),
    "bounded inputs, a cluster": Case(
        Conv2d(64, 5, 9, 20, 1, 1, epilogue=(Clip(low=0.0),), bounded=True),
        Tiling("cluster_conv2d", 23, 1, 1, 8, 8, 3, cluster=4),
        virtual_arch="compute_90",
    ),
    "bounded inputs, a cluster, several images and a residual": Case(
        Conv2d(48, 7, 7, 12, 1, 1, epilogue=RESIDUAL, bounded=True),
        Tiling("cluster_conv2d", 7, 7, 1, 4, 12, 2, images=2, cluster=4),
        batch=3,
        virtual_arch="compute_90",
    ),
    "linear, GELU": Case(Linear(41, 10, epilogue=(Gelu(),)), Tiling("linear", 32, 1, 2, 4, 8, 2), batch=40),
    "float16 linear, a hard sigmoid": Case(
        Linear(41, 10, epilogue=(HardSigmoid(0.2, 0.5),), data_type="float16"),
        Tiling("linear", 32, 1, 2, 4, 8, 2),
        batch=70,
    ),
}

CASES: dict[str, Case] = {
    **_CONVOLUTIONS,
    **_WHOLE_ROWS,
    **_TILES,
    **_GROUPS,
    **_POINTWISE,
    **_TRANSPOSED,
    **_LINEAR,
    **_FULL,
    **HALF_CASES,
    **_ACTIVATIONS,
    **CLUSTER_CASES,
    **GATE_CASES,
    **POOL_CASES,
    **TABLE_CASES,
}
