"""The layers that run on the GPU: odd ones with tilings of their own, and some of real networks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Gelu,
    HardSigmoid,
    HardSwish,
    LayerSpec,
    LeakyRelu,
    Linear,
    MaxPool,
    Mish,
    Sigmoid,
    Swish,
    Tanh,
)
from codegen.ir.tiling import Tiling
from codegen.model_zoo import random_weights
from codegen.model_zoo.builder import square_conv

RELU = (Clip(low=0.0),)
RELU6 = (Clip(0.0, 6.0),)
ADD_RELU = (AddResidual(), Clip(low=0.0))


@dataclass(frozen=True)
class OddLayer:
    """A small layer that nothing divides evenly, unless its name says so."""

    spec: LayerSpec
    tiling: Tiling
    batch: int = 3


CONV = Conv2d(5, 9, 11, 7, 3, 3, padding=(1, 1, 1, 1))
POINTWISE = Conv2d(16, 8, 12, 10, 1, 1)
GATED = Conv2d(19, 9, 11, 10, 1, 1, gated=True)
TRANSPOSED = ConvTranspose2d(6, 5, 6, 5, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1), output_padding=(1, 1))
LINEAR = Linear(41, 10, epilogue=ADD_RELU)

CONV_TILING = Tiling("conv2d", 8, 4, 1, 4, 2, 2)
POINTWISE_TILING = Tiling("conv2d", 32, 1, 1, 5, 8, 2)
TRANSPOSED_TILING = Tiling("conv2d", 4, 4, 1, 3, 2, 2)
LINEAR_TILING = Tiling("linear", 32, 1, 2, 4, 8, 2)

HALF_LAYERS = {
    "conv": OddLayer(replace(CONV, epilogue=ADD_RELU), Tiling("conv2d", 4, 4, 1, 4, 2, 2)),
    "strides": OddLayer(Conv2d(5, 19, 21, 7, 3, 5, (2, 3), (1, 0, 2, 1)), Tiling("conv2d", 3, 4, 2, 3, 2, 3)),
    "groups": OddLayer(Conv2d(8, 9, 11, 16, 3, 3, padding=(1, 1, 1, 1), groups=4), Tiling("conv2d", 4, 4, 1, 8, 4, 2)),
    "patches": OddLayer(Conv2d(3, 48, 64, 10, 16, 16, stride=(16, 16)), Tiling("conv2d", 2, 3, 1, 5, 4, 3)),
    "one row of a wide map": OddLayer(
        Conv2d(32, 1, 196, 10, 1, 3, padding=(0, 1, 0, 1)), Tiling("conv2d", 32, 1, 1, 5, 16, 3)
    ),
    "transposed": OddLayer(TRANSPOSED, Tiling("conv2d", 2, 4, 2, 3, 2, 2)),
    "pointwise": OddLayer(POINTWISE, POINTWISE_TILING),
    "pointwise, strided": OddLayer(
        Conv2d(16, 9, 21, 10, 1, 1, (2, 2), (1, 2, 0, 1)), Tiling("conv2d", 4, 4, 2, 4, 8, 2)
    ),
    "pointwise, gates": OddLayer(GATED, Tiling("conv2d", 32, 1, 1, 4, 8, 2)),
    "linear": OddLayer(LINEAR, LINEAR_TILING, batch=101),
    "SiLU and GELU": OddLayer(replace(CONV, epilogue=(Swish(), Gelu())), Tiling("conv2d", 4, 4, 1, 4, 2, 2)),
}

IMAGE_PAIRS = {
    "tiles": OddLayer(replace(CONV, epilogue=ADD_RELU), Tiling("conv2d", 8, 4, 1, 4, 2, 2, images=2)),
    "whole rows": OddLayer(replace(CONV, epilogue=ADD_RELU), Tiling("conv2d", 11, 4, 2, 4, 2, 3, images=2)),
    "whole rows, copied by fours": OddLayer(
        Conv2d(4, 9, 12, 7, 3, 3, padding=(1, 1, 1, 1)), Tiling("conv2d", 12, 3, 1, 4, 4, 3, images=2)
    ),
    "tiles, copied by twos": OddLayer(
        Conv2d(6, 9, 22, 7, 3, 5, padding=(1, 2, 1, 2)), Tiling("conv2d", 8, 4, 1, 4, 3, 2, images=2)
    ),
    "strides": OddLayer(Conv2d(5, 19, 21, 7, 3, 5, (2, 3), (1, 0, 2, 1)), Tiling("conv2d", 5, 4, 2, 3, 2, 3, images=2)),
    "patches": OddLayer(Conv2d(3, 48, 64, 10, 16, 16, stride=(16, 16)), Tiling("conv2d", 4, 3, 1, 5, 4, 3, images=2)),
    "pointwise, gates, four images": OddLayer(GATED, Tiling("conv2d", 99, 1, 1, 5, 4, 3, images=4)),
    "four images": OddLayer(
        Conv2d(8, 7, 7, 7, 3, 3, padding=(1, 1, 1, 1)), Tiling("conv2d", 7, 7, 1, 4, 4, 3, images=4)
    ),
    "pointwise, four images": OddLayer(
        replace(POINTWISE, epilogue=ADD_RELU), Tiling("conv2d", 96, 1, 1, 5, 4, 2, images=4)
    ),
    "groups": OddLayer(
        Conv2d(8, 9, 11, 16, 3, 3, padding=(1, 1, 1, 1), groups=4), Tiling("conv2d", 11, 5, 1, 8, 4, 2, images=2)
    ),
    "transposed": OddLayer(TRANSPOSED, Tiling("conv2d", 6, 5, 1, 3, 2, 2, images=2)),
    "bounded registers": OddLayer(
        Conv2d(40, 9, 12, 32, 3, 3, padding=(1, 1, 1, 1)), Tiling("conv2d", 12, 5, 1, 32, 4, 3, images=2)
    ),
}

ODD_LAYERS = {
    "channels and kernels that do not divide": OddLayer(CONV, Tiling("conv2d", 8, 4, 2, 4, 2, 2)),
    "strides and uneven padding": OddLayer(
        Conv2d(5, 19, 21, 7, 3, 5, stride=(2, 3), padding=(1, 0, 2, 1)), Tiling("conv2d", 5, 4, 2, 3, 2, 3)
    ),
    "stride 2": OddLayer(
        Conv2d(6, 20, 21, 7, 3, 3, stride=(2, 2), padding=(1, 0, 1, 1)), Tiling("conv2d", 8, 4, 2, 4, 2, 2)
    ),
    "residual": OddLayer(replace(CONV, padding=(1, 0, 1, 2), epilogue=ADD_RELU), Tiling("conv2d", 8, 4, 2, 4, 2, 2)),
    "dilation": OddLayer(
        Conv2d(5, 19, 21, 7, 3, 3, (2, 1), (1, 1, 1, 1), (2, 3), epilogue=(LeakyRelu(0.1), Clip(-1.0, 1.0))),
        Tiling("conv2d", 8, 2, 2, 4, 2, 2),
    ),
    "streams within a group": OddLayer(Conv2d(8, 9, 11, 12, 3, 3, padding=(1, 1, 1, 1), groups=2), CONV_TILING),
    "chunks as large as a group": OddLayer(
        Conv2d(8, 9, 11, 12, 3, 3, padding=(1, 1, 1, 1), groups=2), Tiling("conv2d", 8, 4, 1, 4, 4, 2)
    ),
    "several groups in a stream": OddLayer(
        Conv2d(8, 9, 11, 16, 3, 3, padding=(1, 1, 1, 1), groups=4), Tiling("conv2d", 8, 4, 1, 8, 4, 2)
    ),
    "depthwise": OddLayer(
        Conv2d(8, 9, 11, 8, 3, 3, padding=(1, 1, 1, 1), groups=8, epilogue=RELU6), Tiling("conv2d", 8, 4, 1, 4, 4, 2)
    ),
    "one row of a wide map": OddLayer(
        Conv2d(32, 1, 196, 10, 1, 3, padding=(0, 1, 0, 1)), Tiling("conv2d", 32, 1, 1, 5, 16, 3)
    ),
    "one row of a wide map, strided": OddLayer(
        Conv2d(16, 1, 401, 6, 1, 7, stride=(1, 2), padding=(0, 3, 0, 3)), Tiling("conv2d", 64, 1, 1, 3, 4, 2)
    ),
    "one row of a wide map in groups": OddLayer(
        Conv2d(16, 1, 200, 16, 1, 3, padding=(0, 1, 0, 1), groups=16), Tiling("conv2d", 32, 1, 1, 4, 4, 2)
    ),
    "patches, 16 bytes a copy": OddLayer(
        Conv2d(3, 48, 64, 10, 16, 16, stride=(16, 16)), Tiling("conv2d", 4, 3, 1, 5, 4, 3)
    ),
    "patches, rows left over": OddLayer(
        Conv2d(3, 46, 44, 7, 14, 14, stride=(14, 14), epilogue=ADD_RELU), Tiling("conv2d", 3, 2, 2, 4, 2, 2)
    ),
    "patches apart in one direction only": OddLayer(
        Conv2d(3, 16, 11, 5, 4, 3, stride=(4, 1), padding=(0, 1, 0, 1)), Tiling("conv2d", 4, 4, 1, 5, 2, 2)
    ),
    "pool, rows and columns left over": OddLayer(
        Conv2d(5, 19, 23, 10, 3, 3, padding=(1, 1, 1, 1), epilogue=(LeakyRelu(0.1), MaxPool())),
        Tiling("conv2d", 8, 6, 1, 5, 2, 3),
    ),
    "pool, several images a block": OddLayer(
        Conv2d(6, 8, 12, 9, 3, 3, padding=(1, 1, 1, 1), epilogue=(Clip(low=0.0), MaxPool())),
        Tiling("conv2d", 12, 8, 1, 9, 3, 2, images=2),
    ),
    "wide pool, a window beside the map at each side": OddLayer(
        Conv2d(5, 19, 23, 10, 3, 3, padding=(1, 1, 1, 1), epilogue=(LeakyRelu(0.1), MaxPool(3, (1, 1, 1, 1)))),
        Tiling("conv2d", 9, 7, 1, 5, 2, 3),
    ),
    "wide pool, several images a block": OddLayer(
        Conv2d(6, 8, 12, 9, 3, 3, padding=(1, 1, 1, 1), epilogue=(Clip(low=0.0), MaxPool(3, (1, 1, 1, 1)))),
        Tiling("conv2d", 13, 9, 1, 9, 3, 2, images=2),
    ),
    "wide pool, the first layer of a ResNet": OddLayer(
        Conv2d(3, 64, 64, 16, 7, 7, (2, 2), (3, 3, 3, 3), epilogue=(Clip(low=0.0), MaxPool(3, (1, 1, 1, 1)))),
        Tiling("conv2d", 17, 15, 1, 16, 2, 2),
    ),
    "pointwise, rows unaligned": OddLayer(Conv2d(16, 9, 11, 10, 1, 1), Tiling("conv2d", 32, 1, 1, 4, 4, 2)),
    "pointwise, 16 bytes a copy": OddLayer(POINTWISE, POINTWISE_TILING),
    "pointwise, without stages": OddLayer(
        replace(POINTWISE, epilogue=ADD_RELU), Tiling("direct_global", 32, 1, 1, 4, 8, 0)
    ),
    "pointwise, whole planes": OddLayer(Conv2d(16, 7, 7, 10, 1, 1), Tiling("conv2d", 49, 1, 1, 5, 8, 2)),
    "pointwise, bounded inputs": OddLayer(
        Conv2d(19, 9, 11, 10, 1, 1, epilogue=ADD_RELU, bounded=True), Tiling("conv2d", 32, 1, 1, 4, 8, 2)
    ),
    "pointwise, gates": OddLayer(replace(GATED, epilogue=ADD_RELU), Tiling("conv2d", 99, 1, 1, 4, 8, 2, images=2)),
    "pointwise, gates in groups": OddLayer(
        Conv2d(18, 8, 9, 12, 1, 1, groups=3, gated=True), Tiling("conv2d", 32, 1, 1, 2, 3, 2)
    ),
    "pointwise, strided, gates": OddLayer(
        Conv2d(18, 9, 11, 12, 1, 1, stride=(2, 3), gated=True), Tiling("conv2d", 4, 2, 2, 4, 8, 2)
    ),
    "pointwise in groups": OddLayer(Conv2d(16, 8, 12, 12, 1, 1, groups=2), Tiling("conv2d", 32, 1, 1, 6, 4, 2)),
    "pointwise, chunks that do not divide": OddLayer(Conv2d(9, 7, 7, 10, 1, 1), Tiling("conv2d", 32, 1, 1, 4, 4, 2)),
    "pointwise, strided": OddLayer(
        Conv2d(16, 9, 11, 10, 1, 1, (2, 3), (1, 2, 0, 1)), Tiling("conv2d", 4, 4, 2, 4, 8, 2)
    ),
    "transposed": OddLayer(replace(TRANSPOSED, epilogue=ADD_RELU), TRANSPOSED_TILING),
    "transposed in groups, dilated": OddLayer(
        ConvTranspose2d(6, 5, 6, 6, 4, 3, stride=(3, 2), padding=(0, 1, 2, 0), dilation=(2, 1), groups=2),
        Tiling("conv2d", 4, 4, 2, 3, 3, 2),
    ),
    "linear, 16 bytes a copy": OddLayer(Linear(40, 10), Tiling("linear", 32, 1, 1, 4, 8, 2), batch=40),
    "linear": OddLayer(LINEAR, LINEAR_TILING, batch=70),
    **{
        f"linear, copied in a loop, batch {batch}": OddLayer(
            Linear(300, 10, epilogue=ADD_RELU), Tiling("linear", 32, 1, 1, 4, 128, 2), batch
        )
        for batch in (1, 32, 70)
    },
    "linear, copied in a loop, 4 bytes a copy": OddLayer(
        Linear(301, 10), Tiling("linear", 32, 1, 2, 4, 64, 2), batch=100
    ),
    "whole rows": OddLayer(
        Conv2d(5, 9, 11, 7, 3, 3, padding=(1, 1, 1, 1), epilogue=ADD_RELU), Tiling("conv2d", 11, 4, 1, 4, 2, 2)
    ),
    "whole rows, 16 bytes a copy": OddLayer(
        Conv2d(4, 9, 12, 7, 3, 3, padding=(1, 1, 1, 1)), Tiling("conv2d", 12, 3, 2, 4, 4, 3)
    ),
    "whole rows, 8 bytes a copy": OddLayer(
        Conv2d(5, 10, 14, 7, 3, 5, padding=(1, 2, 1, 2)), Tiling("conv2d", 14, 10, 1, 4, 2, 2)
    ),
    "whole rows, strides": OddLayer(
        Conv2d(5, 11, 21, 7, 3, 5, (2, 3), (1, 0, 2, 1)), Tiling("conv2d", 6, 3, 2, 3, 2, 2)
    ),
    "tiles, 16 bytes a copy": OddLayer(
        Conv2d(5, 9, 24, 7, 3, 3, padding=(1, 1, 1, 1)), Tiling("conv2d", 8, 4, 1, 4, 2, 4)
    ),
    "several images": OddLayer(
        Conv2d(8, 7, 7, 7, 3, 3, padding=(1, 1, 1, 1)), Tiling("conv2d", 7, 7, 1, 4, 4, 3, images=2), batch=5
    ),
    "several images, pointwise": OddLayer(
        Conv2d(16, 7, 7, 10, 1, 1, epilogue=ADD_RELU), Tiling("conv2d", 49, 1, 1, 5, 8, 2, images=2), batch=5
    ),
    "several images, in tiles": OddLayer(CONV, Tiling("conv2d", 8, 4, 1, 4, 2, 2, images=3), batch=5),
    "SiLU": OddLayer(replace(CONV, epilogue=(Swish(),)), CONV_TILING),
    "GELU, a residual, GELU by tanh": OddLayer(
        replace(POINTWISE, epilogue=(Gelu(), AddResidual(), Gelu("tanh"))), POINTWISE_TILING
    ),
    "sigmoid, hard sigmoid, hard swish": OddLayer(
        replace(CONV, epilogue=(HardSwish(1 / 6, 0.5), HardSigmoid(0.2, 0.5), Sigmoid())), CONV_TILING
    ),
    "Mish and tanh": OddLayer(replace(TRANSPOSED, epilogue=(Mish(), Tanh())), TRANSPOSED_TILING),
    "linear, GELU": OddLayer(replace(LINEAR, epilogue=(Gelu(), AddResidual())), LINEAR_TILING, batch=70),
    "full": OddLayer(
        Conv2d(3, 9, 11, 5, 3, 2, stride=(1, 2), padding=(1, 1, 0, 0), epilogue=ADD_RELU),
        Tiling("conv2d", 5, 4, 2, 3, 2, 2, form="full"),
    ),
    **{
        f"float16 {name}, sums in {accumulate}": replace(
            odd, spec=replace(odd.spec, data_type="float16"), tiling=replace(odd.tiling, accumulate=accumulate)
        )
        for name, odd in HALF_LAYERS.items()
        for accumulate in ("float32", "float16")
    },
    **{
        f"float16, two images in a lane, {name}, batch {batch}": replace(
            odd, spec=replace(odd.spec, data_type="float16"), batch=batch
        )
        for name, odd in IMAGE_PAIRS.items()
        for batch in (1, 3, 4)
    },
    **{
        f"bfloat16 {name}": replace(odd, spec=replace(odd.spec, data_type="bfloat16"))
        for name, odd in HALF_LAYERS.items()
    },
}


@dataclass(frozen=True)
class NetworkLayer:
    """A layer as it is after folding; its tiling and parts are chosen."""

    spec: LayerSpec
    batch: int
    sparsity: float = 0.9


PATCHES = Conv2d(3, 224, 224, 768, 16, 16, stride=(16, 16))

NETWORK_LAYERS = {
    "resnet50 conv1": NetworkLayer(replace(square_conv(3, 224, 64, 7, 2), epilogue=RELU), 4),
    "resnet50 layer1 conv3": NetworkLayer(replace(square_conv(64, 56, 256, 1), epilogue=ADD_RELU), 8),
    "resnet50 layer2 downsample": NetworkLayer(square_conv(256, 56, 512, 1, 2), 4),
    "resnet50 layer3 conv2": NetworkLayer(replace(square_conv(256, 14, 256, 3), epilogue=RELU), 16),
    "resnet50 layer4 conv1": NetworkLayer(replace(square_conv(2048, 7, 512, 1), epilogue=RELU), 16),
    "resnet50 layer4 conv2": NetworkLayer(replace(square_conv(512, 7, 512, 3), epilogue=RELU), 16),
    "resnet50 layer4 conv2, one image": NetworkLayer(replace(square_conv(512, 7, 512, 3), epilogue=RELU), 1),
    "resnet50 fc, one row": NetworkLayer(Linear(2048, 1000), 1),
    "resnet50 fc": NetworkLayer(Linear(2048, 1000), 64),
    "resnet50 fc, 300 rows": NetworkLayer(Linear(2048, 1000), 300),
    "mobilenet_v2 stage 2 depthwise": NetworkLayer(
        replace(square_conv(96, 112, 96, 3, 2, groups=96), epilogue=RELU6), 8, 0.5
    ),
    "mobilenet_v2 stage 6 depthwise": NetworkLayer(
        replace(square_conv(960, 7, 960, 3, groups=960), epilogue=RELU6), 8, 0.5
    ),
    "mobilenet_v2 stage 6 project": NetworkLayer(
        replace(square_conv(960, 7, 160, 1), epilogue=(AddResidual(),)), 8, 0.8
    ),
    "efficientnet_b0 stage 2 expand": NetworkLayer(replace(square_conv(16, 112, 96, 1), epilogue=(Swish(),)), 8, 0.8),
    "mobilenet_v3 stage 4 depthwise": NetworkLayer(
        replace(square_conv(240, 28, 240, 3, 2, groups=240), epilogue=(HardSwish(1 / 6, 0.5),)), 8, 0.5
    ),
    "vit_b feed-forward": NetworkLayer(Linear(768, 3072, epilogue=(Gelu(),)), 197, 0.95),
    "unet down1 conv1": NetworkLayer(replace(square_conv(3, 128, 32, 3), epilogue=(LeakyRelu(0.1),)), 4),
    "unet up4": NetworkLayer(ConvTranspose2d(512, 8, 8, 256, 2, 2, (2, 2)), 8),
    "unet up1": NetworkLayer(ConvTranspose2d(64, 64, 64, 32, 2, 2, (2, 2)), 4),
    "unet classes": NetworkLayer(square_conv(32, 128, 2, 1), 4, 0.5),
    "vit_b16 patches": NetworkLayer(PATCHES, 8),
    "vit_h14 patches": NetworkLayer(Conv2d(3, 224, 224, 1280, 14, 14, stride=(14, 14)), 4),
    "float16 vit_b16 patches": NetworkLayer(replace(PATCHES, data_type="float16"), 8),
    "tcn 1-D": NetworkLayer(Conv2d(64, 1, 1000, 64, 1, 9, padding=(0, 4, 0, 4), epilogue=RELU), 8),
    "vgg16 conv3_2": NetworkLayer(replace(square_conv(256, 56, 256, 3), epilogue=RELU), 4),
    "vgg16 fc6": NetworkLayer(Linear(25088, 4096, epilogue=RELU), 8, 0.998),
    "vgg16 fc7, one row": NetworkLayer(Linear(4096, 4096, epilogue=RELU), 1, 0.98),
    "vgg16 fc8": NetworkLayer(Linear(4096, 1000), 100),
    "vgg16 fc7": NetworkLayer(Linear(4096, 4096, epilogue=RELU), 16, 0.99),
    "float16 resnet50 layer2 conv2": NetworkLayer(
        replace(square_conv(128, 28, 128, 3), epilogue=RELU, data_type="float16"), 16
    ),
    "float16 resnet50 layer2 conv3": NetworkLayer(
        replace(square_conv(128, 28, 512, 1), epilogue=ADD_RELU, data_type="float16"), 16
    ),
    "float16 mobilenet_v2 stage 3 depthwise": NetworkLayer(
        replace(square_conv(192, 28, 192, 3, groups=192), epilogue=RELU6, data_type="float16"), 8, 0.5
    ),
    "float16 unet up2": NetworkLayer(ConvTranspose2d(128, 32, 32, 64, 2, 2, (2, 2), data_type="float16"), 4),
    "float16 mobilenet_v2 classifier": NetworkLayer(Linear(1280, 1000, data_type="float16"), 64),
    "bfloat16 resnet50 layer2 conv2": NetworkLayer(
        replace(square_conv(128, 28, 128, 3), epilogue=RELU, data_type="bfloat16"), 16
    ),
    "bfloat16 mobilenet_v2 classifier": NetworkLayer(Linear(1280, 1000, data_type="bfloat16"), 64),
}


def weights_of(spec: LayerSpec, sparsity: float) -> Weights:
    """Random weights, pruned, rounded to values of the layer's data type."""
    weights = random_weights(spec, sparsity)

    def rounded(values: FloatArray) -> FloatArray:
        return to_float32(from_float32(values.astype(np.float32), spec.data_type), spec.data_type)

    return Weights(rounded(weights.kernel), rounded(weights.bias), weights.bounds)
