"""Blocks of several K groups in the emulator: the PTX, ptxas's code and the assembler's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, DataType
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import tiled
from codegen.model_zoo.pruning import random_weights
from codegen.ptx.rewrite import rewrite
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import skeleton_options
from codegen.toolchain.tools import find_toolchain
from tests.templates import LIMITS, shared_cubin, shared_template, verify_random_run

POINTWISE = Conv2d(64, 14, 14, 40, 1, 1, epilogue=(AddResidual(), Clip(low=0.0)))
FILTER = Conv2d(16, 7, 7, 20, 3, 3, padding=(1, 1, 1, 1))
ARCH = "sm_90"


@pytest.mark.parametrize(
    ("spec", "tiling", "data_type"),
    [
        (POINTWISE, Tiling("conv2d", 98, 1, 1, 8, 16, 2, images=2, groups=2), "float16"),
        (POINTWISE, Tiling("conv2d", 98, 1, 1, 8, 16, 3, groups=4, order="place"), "float16"),
        (POINTWISE, Tiling("conv2d", 98, 1, 1, 16, 16, 2, images=2, groups=2, cluster=2), "float16"),
        (POINTWISE, Tiling("conv2d", 196, 1, 1, 8, 16, 2, groups=2), "float32"),
        (POINTWISE, Tiling("conv2d", 98, 1, 1, 12, 16, 2, groups=2), "bfloat16"),
        (FILTER, Tiling("conv2d", 7, 7, 1, 8, 4, 2, images=4, groups=2), "float16"),
        (FILTER, Tiling("conv2d", 7, 4, 1, 4, 4, 3, groups=2, cluster=2), "float32"),
    ],
)
def test_several_k_groups_share_a_blocks_input(spec: Conv2d, tiling: Tiling, data_type: DataType) -> None:
    spec = replace(spec, data_type=data_type)
    layer, clusters = tiled(spec, tiling), tiling.cluster > 1
    template = shared_template(spec, tiling, virtual_arch(ARCH, clusters=clusters))
    weights, part, tools = random_weights(spec, 0.8), Part(0, layer.streams.count), find_toolchain()
    skeleton = make_skeleton(template, ARCH, tools, skeleton_options(("-O3",), clusters=clusters), LIMITS)
    direct = DirectAssembler.of(template, skeleton.data, ARCH).assemble(weights, part)
    by_ptxas = shared_cubin(rewrite(template, weights, part).ptx, ARCH, tools)
    for cubins in (None, [by_ptxas], [direct.data]):
        found = verify_random_run(template, weights, (part,), cubins=cubins, batch=3)
        assert not found.message
        assert found.blocks_run == found.blocks_total


def test_a_part_of_the_k_groups_stores_its_outputs_only() -> None:
    spec, tiling = POINTWISE, Tiling("conv2d", 196, 1, 1, 8, 16, 2, groups=2)
    template = shared_template(spec, tiling)
    for parts in ((Part(0, 2), Part(2, 6)), (Part(2, 6),), (Part(0, 2),)):
        assert not verify_random_run(template, random_weights(spec, 0.8), parts, batch=2).message
