"""Cubins on the GPU here, against the float64 reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codegen.assemble import assemble, ptxas_options
from codegen.choice import choose_tiling
from codegen.device import Device
from codegen.errors import DeviceError
from codegen.layers import Weights
from codegen.networks import TEN_OPERATORS, random_weights
from codegen.rewrite import Kernel, rewrite
from codegen.spec import Conv2d
from codegen.template import make_template
from codegen.tiling import Tiling
from codegen.toolchain import Toolchain, ToolLimits
from codegen.verify import random_input, verify_output

LIMITS = ToolLimits(300)


def check(
    device: Device, toolchain: Toolchain, spec: Conv2d, tiling: Tiling, weights: Weights, batch: int, virtual_arch: str
) -> Kernel:
    kernel = rewrite(make_template(spec, tiling, virtual_arch, toolchain, LIMITS), weights)
    cubin = assemble(kernel.ptx, device.arch, toolchain, ptxas_options(3), LIMITS)
    x = random_input(spec, batch, seed=batch)
    output = device.run(cubin.data, kernel.launch, x, spec.output_shape)
    found = verify_output(spec, tiling, weights, x, output, kernel.launch.grid_at(batch))
    assert found.ok, found.message
    assert found.relative_error < 1e-6
    return kernel


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("name", TEN_OPERATORS)
def test_the_ten_operators_are_right_on_the_gpu(name: str, batch: int, device: Device, toolchain: Toolchain) -> None:
    spec = TEN_OPERATORS[name]
    weights = random_weights(spec, 0.9)
    check(
        device, toolchain, spec, choose_tiling(spec, batch, weights.nonzeros_per_kernel), weights, batch, "compute_80"
    )


LAYERS = {
    "channels and kernels that do not divide": (
        Conv2d(5, 9, 11, 7, 3, 3, padding=(1, 1, 1, 1)),
        Tiling(8, 4, 2, 4, 2, 2),
    ),
    "strides and uneven padding": (
        Conv2d(5, 19, 21, 7, 3, 5, stride=(2, 3), padding=(1, 0, 2, 1)),
        Tiling(5, 4, 2, 3, 2, 3),
    ),
    "stride 2": (Conv2d(6, 20, 21, 7, 3, 3, stride=(2, 2), padding=(1, 0, 1, 1)), Tiling(8, 4, 2, 4, 2, 2)),
    "1x1": (Conv2d(9, 7, 7, 10, 1, 1), Tiling(7, 5, 1, 4, 4, 2)),
    "full": (Conv2d(3, 9, 11, 5, 3, 2, stride=(1, 2), padding=(1, 1, 0, 0)), Tiling(5, 4, 2, 3, 2, 2, "full")),
}


@pytest.mark.parametrize("virtual_arch", ["compute_75", "compute_80"])
@pytest.mark.parametrize("sparsity", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("name", LAYERS)
def test_odd_layers_are_right_on_the_gpu(
    name: str, sparsity: float, virtual_arch: str, device: Device, toolchain: Toolchain
) -> None:
    spec, tiling = LAYERS[name]
    check(device, toolchain, spec, tiling, random_weights(spec, sparsity), 3, virtual_arch)


def test_a_wrong_weight_is_noticed(device: Device, toolchain: Toolchain) -> None:
    spec, tiling = LAYERS["1x1"]
    weights = random_weights(spec, 0.5)
    other = Weights(weights.kernel * np.float32(1.001), weights.bias)
    kernel = rewrite(make_template(spec, tiling, "compute_80", toolchain, LIMITS), other)
    cubin = assemble(kernel.ptx, device.arch, toolchain, ptxas_options(3), LIMITS)
    x = random_input(spec, 2, seed=0)
    output = device.run(cubin.data, kernel.launch, x, spec.output_shape)
    assert not verify_output(spec, tiling, weights, x, output, kernel.launch.grid_at(2)).ok


def test_outputs_that_no_block_writes_are_noticed(device: Device, toolchain: Toolchain) -> None:
    spec, tiling = LAYERS["1x1"]
    weights = random_weights(spec, 0.5)
    kernel = rewrite(make_template(spec, tiling, "compute_80", toolchain, LIMITS), weights)
    cubin = assemble(kernel.ptx, device.arch, toolchain, ptxas_options(3), LIMITS)
    x = random_input(spec, 2, seed=0)
    one_image = replace(
        kernel.launch, grid=(kernel.launch.grid[0], replace(kernel.launch.grid[1], images=2), kernel.launch.grid[2])
    )
    output = device.run(cubin.data, one_image, x, spec.output_shape)
    assert "not written" in verify_output(spec, tiling, weights, x, output, kernel.launch.grid_at(2)).message


def test_a_cubin_for_another_gpu_is_an_error_in_words(device: Device, toolchain: Toolchain) -> None:
    spec, tiling = LAYERS["1x1"]
    kernel = rewrite(make_template(spec, tiling, "compute_80", toolchain, LIMITS), random_weights(spec, 0.5))
    other = "sm_120" if device.arch != "sm_120" else "sm_90"
    cubin = assemble(kernel.ptx, other, toolchain, ptxas_options(3), LIMITS)
    with pytest.raises(DeviceError, match="does not load"):
        device.load(cubin.data, kernel.launch)
