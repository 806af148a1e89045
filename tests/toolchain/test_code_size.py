"""Code size of large layers by ptxas: bytes for each non-zero weight, as predicted and at most 24."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from codegen.ir.tiling import Part, Tiling
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import make_template
from codegen.selection.choose import choose_tiling
from codegen.selection.code_size import stream_instructions
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import ToolLimits, find_toolchain

MOST_BYTES = 24
LIMITS = ToolLimits(600)

LARGE: dict[str, LayerSpec] = {
    "vgg16 fc2": Linear(4096, 4096),
    "vit-b/16 patches": Conv2d(3, 224, 224, 768, 16, 16, stride=(16, 16)),
    "resnet-50 layer4 3x3": Conv2d(512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_k_group_of_a_large_layer_takes_as_much_code_as_predicted_and_24_bytes_a_nonzero(name: str) -> None:
    spec, rng = LARGE[name], np.random.default_rng(0)
    weights = rng.standard_normal(spec.weights_shape, dtype=np.float32) * (rng.random(spec.weights_shape) < 0.1)
    layer = Weights(weights.astype(np.float32), np.zeros(spec.output_channels, np.float32))
    tiling = choose_tiling(spec, 1, layer.nonzeros_per_output, code_limit_bytes=10**9, tables=False)
    toolchain = find_toolchain()
    template = make_template(spec, tiling, "compute_80", toolchain, LIMITS)
    cubin = assemble(rewrite(template, layer, Part(0, 1)).ptx, "sm_90", toolchain, limits=LIMITS)
    nonzeros = int(layer.nonzeros_per_output[: tiling.group_outputs].sum())
    predicted = 16 * float(stream_instructions(spec, tiling, layer.nonzeros_per_output)[0])
    assert cubin.spill_bytes == 0
    # A cubin is a little more than its code.
    assert 16 * nonzeros < len(cubin.data) <= MOST_BYTES * nonzeros + 10_000
    assert predicted == pytest.approx(len(cubin.data), rel=0.25)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_ptxas_keeps_the_loops_of_a_kernel_that_copies_in_loops(arch: str) -> None:
    spec = Linear(1024, 4096)
    weights = Weights(np.zeros(spec.weights_shape, np.float32), np.zeros(spec.output_channels, np.float32))
    weights.kernel[0, ::64] = 1
    sizes = {}
    for channels in (32, 128):
        template = make_template(
            spec, Tiling("linear", 32, 1, 1, 4, channels, 2), f"compute_{arch[3:]}", find_toolchain(), LIMITS
        )
        cubin = assemble(rewrite(template, weights, Part(0, 1)).ptx, arch, find_toolchain(), limits=LIMITS)
        sizes[channels] = len(cubin.data)
    assert sizes[128] < sizes[32] / 3
