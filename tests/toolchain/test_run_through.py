"""A convolution that is launched without images, to fetch its code, stays within one image of input and output."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.emulate import run
from codegen.networks import random_weights
from codegen.operators import tiled
from codegen.rewrite import rewrite
from codegen.spec import AddResidual, Conv2d
from codegen.template import make_template
from codegen.tiling import Tiling
from codegen.toolchain import find_toolchain
from tests.toolchain.machine_cubins import LIMITS

SPEC = Conv2d(8, 10, 10, 16, 3, 3, padding=(1, 1, 1, 1), epilogue=(AddResidual(),))
STRIDED = Conv2d(8, 11, 11, 16, 1, 1, stride=(2, 2))
UNTOUCHED = 7.0


@pytest.mark.parametrize(
    ("spec", "tiling"),
    [
        (SPEC, Tiling(10, 4, 1, 8, 4, 2)),
        (SPEC, Tiling(10, 10, 1, 8, 2, 3, images=4)),
        (STRIDED, Tiling(6, 2, 1, 16, 4, 2)),
    ],
)
def test_a_launch_without_images_stays_within_one(spec: Conv2d, tiling: Tiling) -> None:
    template = make_template(spec, tiling, "compute_80", find_toolchain(), LIMITS)
    kernel = rewrite(template, random_weights(spec, 0.5, 0))
    launch = tiled(spec, tiling).launch
    arrays = {
        "input": np.zeros(spec.input_shape, np.float32),
        "output": np.full(spec.output_shape, UNTOUCHED, np.float32),
        "residual": np.zeros(spec.output_shape, np.float32),
    }
    arguments = [arrays.get(name, launch.numbers(0).get(name)) for name in launch.arguments]
    groups = launch.grid_at(1)[2]
    run(kernel.ptx, (1, 1, groups), launch.block, launch.shared_bytes, arguments)  # type: ignore[arg-type]
    if tiling.images > 1:
        assert (arrays["output"] == UNTOUCHED).all()
