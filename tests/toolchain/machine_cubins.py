"""Cubins of small layers, by ptxas, for the tests of what reads and checks machine code."""

from __future__ import annotations

from functools import cache

import numpy as np

from codegen.ir.checkpoint import Weights
from codegen.kernels import needs_clusters
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import ToolLimits, find_toolchain
from tests.templates import shared_template
from tests.toolchain.operator_cases import CASES

LIMITS = ToolLimits(300)
PLAIN = "channels and kernels that do not divide"
HALVES = "several images a block, float16"


def template_for(name: str, virtual: str) -> Template:
    case = CASES[name]
    return shared_template(case.spec, case.tiling, virtual)


def drawn_weights(name: str, density: float, seed: int) -> Weights:
    """Normal values where a mask of this density is not zero; the mask is that of the density alone."""
    spec = CASES[name].spec
    mask = np.random.default_rng(7).random(spec.weights_shape) < density
    rng = np.random.default_rng(seed)
    kernel = rng.standard_normal(spec.weights_shape, dtype=np.float32) * mask
    return Weights(kernel.astype(np.float32), rng.standard_normal(spec.output_channels, dtype=np.float32))


@cache
def cubin_for(name: str, arch: str, density: float = 0.5, seed: int = 0) -> bytes:
    """The cubin of one of the operators' cases, the whole layer in one kernel."""
    virtual = virtual_arch(arch, clusters=needs_clusters(CASES[name].tiling))
    kernel = rewrite(template_for(name, virtual), drawn_weights(name, density, seed))
    return assemble(kernel.ptx, arch, find_toolchain()).data
