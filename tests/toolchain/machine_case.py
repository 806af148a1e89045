"""Small layers assembled without ptxas for sm_90, run in the emulators beside what they are made of."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate as ptx
from codegen.emulator.sass import emulate
from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.tiling import Part
from codegen.kernels import needs_clusters, stream_count
from codegen.model_zoo.pruning import random_bounds
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.encoding import Field
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import skeleton_options
from codegen.toolchain.tools import find_toolchain
from codegen.verification.compare import poisoned, random_gate, random_input, random_residual
from tests.templates import shared_template
from tests.toolchain.operator_case import Case

ARCH = "sm_90"
MASKS = ("no weight", "one weight", "one channel of four", "one chunk empty", "no zero")


def template_of(case: Case, arch: str = ARCH) -> Template:
    return shared_template(case.spec, case.tiling, virtual_arch(arch, clusters=needs_clusters(case.tiling)))


@cache
def skeleton_of(case: Case) -> bytes:
    options = skeleton_options(("-O3",), clusters=case.tiling.cluster > 1)
    return make_skeleton(template_of(case), ARCH, find_toolchain(), options).data


def whole_layer(case: Case) -> Part:
    return Part(0, stream_count(case.spec, case.tiling))


def weights_of(case: Case, density: float, mask: str = "no zero") -> Weights:
    """Normal weights at this density, among those that the mask leaves."""
    spec, rng = case.spec, np.random.default_rng(3)
    kernel = rng.standard_normal(spec.weights_shape, dtype=np.float32)
    kept = rng.random(spec.weights_shape) < density
    channels = np.arange(spec.weights_shape[1])
    match mask:
        case "no weight":
            kept[:] = False
        case "one weight":
            kept[:] = False
            kept[1, 2] = True
        case "one channel of four":
            kept[:, channels % 4 != 1] = False
        case "one chunk empty":
            chunk = case.tiling.chunk_channels
            kept[:, (channels >= chunk) & (channels < 2 * chunk)] = False
    bias = rng.standard_normal(spec.output_channels, dtype=np.float32)
    return Weights(np.where(kept, kernel, np.float32(0)), bias, random_bounds(spec))


def directly(case: Case, weights: Weights) -> CubinFile:
    made = DirectAssembler.of(template_of(case), skeleton_of(case), ARCH).assemble(weights, whole_layer(case))
    return CubinFile.read(made.data)


def with_field(made: CubinFile, field: Field, place: int, value: int) -> CubinFile:
    """The cubin with one field of one word changed."""
    words = made.words
    field.put(words[place : place + 1], value)
    return CubinFile.read(made.with_words(words))


def computed(case: Case, weights: Weights, cubin: CubinFile, x: NDArray[Any] | None = None) -> NDArray[Any]:
    """The bits that a cubin of the layer computes."""
    launch = rewrite(template_of(case, f"sm_{cubin.capability}"), weights).launch
    output, given = _arguments(case, launch, x)
    emulate.run(cubin, launch.grid_at(case.batch), launch.block, launch.shared_bytes, given)
    return output.view(f"u{output.dtype.itemsize}")


def expected(case: Case, weights: Weights, x: NDArray[Any] | None = None, arch: str = ARCH) -> NDArray[Any]:
    """The outputs of the rewritten PTX for an architecture."""
    kernel = rewrite(template_of(case, arch), weights)
    launch = kernel.launch
    output, given = _arguments(case, launch, x)
    ptx.run(kernel.ptx, launch.grid_at(case.batch), launch.block, launch.shared_bytes, given)
    return output.view(f"u{output.dtype.itemsize}")


def _arguments(case: Case, launch: Launch, x: NDArray[Any] | None) -> tuple[NDArray[Any], list[NDArray[Any] | int]]:
    output = poisoned(case.spec, case.batch)
    x = random_input(case.spec, case.batch, seed=1) if x is None else x
    named: dict[str, Any] = {"input": x, "output": output}
    named |= {"residual": random_residual(case.spec, case.batch, seed=0)}
    named |= {"gate": random_gate(case.spec, case.batch, seed=0), **launch.numbers(case.batch)}
    return output, [named[each] for each in launch.arguments]
