"""Reserved accumulators: kernels whose accumulators have registers beyond those of ptxas."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate as ptx
from codegen.emulator.sass import emulate
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import stream_count
from codegen.model_zoo import random_weights
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template, make_template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.opcodes import PREDICATES
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton.marker_ptx import MarkerPtx
from codegen.sass.skeleton.reader import Skeleton
from codegen.target.arch import virtual_arch
from codegen.toolchain.tools import find_toolchain
from codegen.verification.compare import poisoned, random_input, random_residual
from tests.toolchain.machine_cubins import LIMITS
from tests.toolchain.operator_case import PAD

ARCH = "sm_90"
RELU = (AddResidual(), Clip(low=0.0))
CROWDED = {
    "sums of two kinds, 784 threads": (
        Conv2d(8, 14, 14, 20, 3, 3, padding=PAD, data_type="float16"),
        Tiling("conv2d", 14, 14, 1, 16, 4, 2, images=8),
    ),
    "sums of two kinds, 392 threads": (
        Conv2d(16, 14, 14, 32, 3, 3, padding=PAD, data_type="float16"),
        Tiling("conv2d", 14, 14, 1, 32, 8, 2, images=4),
    ),
    "sums in float16": (
        Conv2d(8, 14, 14, 48, 3, 3, padding=PAD, data_type="float16"),
        Tiling("conv2d", 14, 14, 1, 48, 4, 2, "float16", images=8),
    ),
    "a cluster": (
        Conv2d(16, 14, 14, 44, 3, 3, padding=PAD, epilogue=RELU, data_type="float16"),
        Tiling("conv2d", 14, 14, 1, 44, 4, 2, images=8, cluster=2),
    ),
}
"""Layers that the assembler cannot do while ptxas allocates the accumulators."""


@cache
def template_of(spec: Conv2d, tiling: Tiling) -> Template:
    return make_template(spec, tiling, virtual_arch(ARCH, clusters=tiling.cluster > 1), find_toolchain(), LIMITS)


@cache
def skeleton_of(spec: Conv2d, tiling: Tiling) -> bytes:
    return make_skeleton(template_of(spec, tiling), ARCH, find_toolchain()).data


def assembled(spec: Conv2d, tiling: Tiling, weights: Weights) -> CubinFile:
    template = template_of(spec, tiling)
    assembler = DirectAssembler.of(template, skeleton_of(spec, tiling), ARCH)
    return CubinFile.read(assembler.assemble(weights, Part(0, stream_count(spec, tiling))).data)


def outputs(spec: Conv2d, tiling: Tiling, weights: Weights, cubin: CubinFile) -> list[NDArray[Any]]:
    """Outputs of the machine code, and of the rewritten PTX."""
    kernel = rewrite(template_of(spec, tiling), weights)
    found = []
    for code in (cubin, kernel.ptx):
        output = poisoned(spec, tiling.images)
        named: dict[str, Any] = {"input": random_input(spec, tiling.images, seed=1), "output": output}
        named |= {"residual": random_residual(spec, tiling.images, seed=0), "images": tiling.images}
        named["output_step"] = prod(spec.output_shape)
        launch, given = kernel.launch, [named[each] for each in kernel.launch.arguments]
        grid = launch.grid_at(tiling.images)
        if isinstance(code, CubinFile):
            emulate.run(code, grid, launch.block, launch.shared_bytes, given)
        else:
            ptx.run(code, grid, launch.block, launch.shared_bytes, given)
        found.append(output.view(f"u{output.itemsize}"))
    return found


@pytest.mark.parametrize("name", CROWDED)
def test_accumulators_without_room_among_ptxas_registers_are_reserved(name: str) -> None:
    spec, tiling = CROWDED[name]
    data = skeleton_of(spec, tiling)
    form = Skeleton.read(data, MarkerPtx.of(template_of(spec, tiling), SM_90))
    registers = operands(form.words, SM_90).writes.resource
    own = int(registers[registers < PREDICATES].max())
    sums = np.concatenate([form.accumulators, form.wide.ravel()])
    assert sorted(sums.tolist()) == list(range(own + 1, own + 1 + len(sums)))
    threads = rewrite(template_of(spec, tiling), random_weights(spec, 0.9, 0)).launch.block[0]
    warps = -(-threads // 128) * 4
    assert warps * 32 * (-(-form.registers // 8) * 8) <= 2**16


@pytest.mark.parametrize("name", CROWDED)
@pytest.mark.parametrize("sparsity", [0.5, 0.98])
def test_reserved_accumulators_compute_what_the_rewritten_ptx_does(name: str, sparsity: float) -> None:
    spec, tiling = CROWDED[name]
    weights = random_weights(spec, sparsity, 3)
    words, expected = outputs(spec, tiling, weights, assembled(spec, tiling, weights))
    assert np.array_equal(words, expected)


def test_a_skeleton_that_spills_the_result_of_a_copy_is_refused() -> None:
    # ptxas waits for the copies of a chunk before its multiply-adds there, to move them; no word of it did.
    spec = Conv2d(320, 7, 7, 96, 1, 1, epilogue=(Clip(0.0, 6.0),), data_type="float16")
    tiling = Tiling("conv2d", 49, 1, 1, 96, 16, 2, "float16", images=4, cluster=4)
    weights = random_weights(spec, 0.9, 3)
    words, expected = outputs(spec, tiling, weights, assembled(spec, tiling, weights))
    assert np.array_equal(words, expected)
