"""The ten convolutions of the SparseRT paper's table."""

from __future__ import annotations

from codegen.ir.layer_spec import Conv2d

TEN_OPERATORS: dict[str, Conv2d] = {
    "lenet-conv1": Conv2d(1, 28, 28, 20, 5, 5),
    "lenet-conv2": Conv2d(20, 12, 12, 50, 5, 5),
    "alexnet-conv1": Conv2d(3, 32, 32, 32, 5, 5, padding=(2, 2, 2, 2)),
    "alexnet-conv2": Conv2d(32, 16, 16, 32, 5, 5, padding=(2, 2, 2, 2)),
    "alexnet-conv3": Conv2d(32, 8, 8, 64, 5, 5, padding=(2, 2, 2, 2)),
    "resnet-conv1": Conv2d(64, 56, 56, 64, 3, 3, padding=(1, 1, 1, 1)),
    "resnet-conv2": Conv2d(128, 28, 28, 128, 3, 3, padding=(1, 1, 1, 1)),
    "vgg-conv1": Conv2d(3, 224, 224, 64, 3, 3, padding=(1, 1, 1, 1)),
    "vgg-conv2": Conv2d(64, 224, 224, 64, 3, 3, padding=(1, 1, 1, 1)),
    "vgg-conv3": Conv2d(64, 112, 112, 128, 3, 3, padding=(1, 1, 1, 1)),
}
"""The operators of Dong et al. (2020), table 2, by the paper's names."""
