"""The value patch: a cubin of a mask with values written in, byte for byte what ptxas makes of the rewritten PTX."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from codegen.errors import MachineCodeError
from codegen.ir.checkpoint import Weights
from codegen.ir.tiling import Part
from codegen.kernels import stream_count
from codegen.ptx.rewrite import rewrite
from codegen.sass.value_patch import PatchTemplate, apply, check_values, make_patch_template
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from tests.templates import shared_template
from tests.toolchain.machine_cubins import HALVES, LIMITS, PLAIN, drawn_weights, template_for
from tests.toolchain.operator_cases import CASES
from tests.toolchain.operator_run import rounded

ENCODINGS = ("sm_75", "sm_80", "sm_90", "sm_120")
"""One architecture of each encoding family."""
BFLOATS = "whole rows, bfloat16"
KINDS = (
    "strides, a rectangular kernel, uneven padding",
    "a residual and a Relu",
    "groups that chunks and streams do not divide",
    "transposed, dilation, groups, uneven strides",
    "several images a block, a 1x1 kernel",
    "gates and a residual, several images a block",
    "float16 gates, column pairs, added up in float32",
    "linear, copied by fours",
    "float16, several rows a thread, added up in float32",
    "float16 linear, a hard sigmoid",
)


def weights_of(name: str, seed: int, density: float = 0.5) -> Weights:
    drawn, data_type = drawn_weights(name, density, seed), CASES[name].spec.data_type
    return Weights(rounded(drawn.kernel, data_type), rounded(drawn.bias, data_type))


def whole(name: str) -> Part:
    return Part(0, stream_count(CASES[name].spec, CASES[name].tiling))


@cache
def patch_template_of(name: str, arch: str) -> PatchTemplate:
    template = template_for(name, virtual_arch(arch))
    return make_patch_template(template, weights_of(name, 0), whole(name), arch, find_toolchain(), limits=LIMITS)


def by_ptxas(name: str, arch: str, weights: Weights, part: Part | None = None) -> bytes:
    kernel = rewrite(template_for(name, virtual_arch(arch)), weights, part)
    return assemble(kernel.ptx, arch, find_toolchain()).data


def is_what_ptxas_makes(name: str, arch: str, weights: Weights) -> bool:
    patched = apply(patch_template_of(name, arch), template_for(name, virtual_arch(arch)), weights, whole(name))
    return patched.data == by_ptxas(name, arch, weights)


@pytest.mark.parametrize("arch", ENCODINGS)
@pytest.mark.parametrize("name", [PLAIN, HALVES, BFLOATS])
def test_a_patched_cubin_is_byte_for_byte_what_ptxas_makes_in_every_encoding(name: str, arch: str) -> None:
    assert is_what_ptxas_makes(name, arch, weights_of(name, 1))


@pytest.mark.parametrize("name", KINDS)
def test_a_patched_cubin_is_what_ptxas_makes_of_every_kind_of_layer(name: str) -> None:
    assert is_what_ptxas_makes(name, "sm_90", weights_of(name, 1))


def special_values(data_type: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Powers of two, subnormal numbers and the largest ones, without float16's 1.0, which is refused."""
    least, most = (-24, 15) if data_type == "float16" else (-149, 127)
    powers = np.ldexp(np.float64(1), np.arange(least, most + 1))
    powers = powers[powers != 1] if data_type == "float16" else powers
    largest = 65504.0 if data_type == "float16" else float(np.finfo(np.float32).max)
    return np.concatenate([powers, -powers, [-1.0, 3.0, -0.1, largest, -largest]]).astype(np.float32)


@pytest.mark.parametrize("arch", ENCODINGS)
@pytest.mark.parametrize("name", [PLAIN, HALVES])
def test_no_value_is_special(name: str, arch: str) -> None:
    """Every special value as some weight; biases such as 1, -1 and 0.5."""
    drawn = weights_of(name, 1)
    there = drawn.kernel != 0
    special = rounded(special_values(CASES[name].spec.data_type), CASES[name].spec.data_type)
    per_layer = np.count_nonzero(there)
    for start in range(0, len(special), per_layer):
        kernel = drawn.kernel.copy()
        kernel[there] = np.resize(special[start : start + per_layer], per_layer)
        bias = np.resize(np.array([1, -1, 0.5, 2, -2, 3], dtype=np.float32), len(drawn.bias))
        assert is_what_ptxas_makes(name, arch, Weights(kernel, bias))


def of_few_values(name: str, seed: int, count: int) -> Weights:
    """Weights with at most `count` distinct values, as quantised ones have."""
    drawn, rng = weights_of(name, 1), np.random.default_rng(seed)
    levels = np.linspace(-1.5, 1.75, count, dtype=np.float32)
    kernel = np.where(drawn.kernel != 0, rng.choice(levels[levels != 0], drawn.kernel.shape), np.float32(0))
    return Weights(rounded(kernel, CASES[name].spec.data_type), drawn.bias)


@pytest.mark.parametrize("name", [PLAIN, HALVES])
def test_weights_among_few_values_are_put_where_each_belongs_or_refused(name: str) -> None:
    """The code of ptxas differs only where the reason is known."""
    refused, right = [], []
    for seed in range(12):
        try:
            right.append(is_what_ptxas_makes(name, "sm_90", of_few_values(name, seed, 24)))
        except MachineCodeError as error:
            refused.append(str(error))
    assert right
    assert all(right)
    assert all("begin with the same product" in reason for reason in refused)


def test_accumulators_that_begin_with_the_same_product_are_refused_as_ptxas_computes_it_once() -> None:
    drawn = weights_of(PLAIN, 1)
    same = Weights(np.where(drawn.kernel != 0, np.float32(0.25), np.float32(0)), drawn.bias)
    with pytest.raises(MachineCodeError, match="begin with the same product"):
        apply(patch_template_of(PLAIN, "sm_90"), template_for(PLAIN, "compute_80"), same, whole(PLAIN))


def test_a_part_of_a_layer_has_a_patch_template_of_its_own() -> None:
    template, part = template_for(PLAIN, "compute_80"), Part(1, 2)
    patch = make_patch_template(template, weights_of(PLAIN, 0), part, "sm_90", find_toolchain())
    weights = weights_of(PLAIN, 1)
    assert apply(patch, template, weights, part).data == by_ptxas(PLAIN, "sm_90", weights, part)


def test_a_float16_weight_of_one_is_refused_as_ptxas_has_another_instruction_for_it() -> None:
    weights = weights_of(HALVES, 1)
    kernel = weights.kernel.copy()
    kernel[tuple(np.argwhere(kernel != 0)[5])] = 1.0
    one = Weights(kernel, weights.bias)
    template = template_for(HALVES, "compute_80")
    with pytest.raises(MachineCodeError, match=r"float16 weight of 1\.0"):
        apply(patch_template_of(HALVES, "sm_90"), template, one, whole(HALVES))


def test_weights_or_biases_with_another_mask_are_refused() -> None:
    """Also a mask with equally many weights, for which every tag would be found."""
    weights, template = weights_of(PLAIN, 1), template_for(PLAIN, "compute_80")
    shifted = Weights(np.roll(weights.kernel, 1, axis=-1), weights.bias)
    without_bias = Weights(weights.kernel, np.where(np.arange(len(weights.bias)) == 2, 0, weights.bias))
    for other in (shifted, without_bias):
        with pytest.raises(MachineCodeError, match="another mask"):
            apply(patch_template_of(PLAIN, "sm_90"), template, other, whole(PLAIN))


def test_a_patch_template_that_lacks_a_tag_is_refused() -> None:
    patch, template = patch_template_of(PLAIN, "sm_90"), template_for(PLAIN, "compute_80")
    patched = apply(patch, template, weights_of(PLAIN, 1), whole(PLAIN))
    with pytest.raises(MachineCodeError, match="as often as"):
        apply(PatchTemplate(patched, patch.mask), template, weights_of(PLAIN, 1), whole(PLAIN))


def with_a_bias_alone(name: str, seed: int) -> Weights:
    drawn = weights_of(name, seed)
    kernel, bias = drawn.kernel.copy(), drawn.bias.copy()
    kernel[1], bias[1] = 0, seed + 1
    return Weights(kernel, bias)


@pytest.mark.parametrize("name", [PLAIN, "float16 linear, a hard sigmoid"])
def test_an_output_channel_with_a_bias_but_no_weight_is_refused_without_a_run_of_ptxas(name: str) -> None:
    template = template_for(name, "compute_80")
    with pytest.raises(MachineCodeError, match="a bias but no weight"):
        check_values(template, with_a_bias_alone(name, 0), whole(name))
    check_values(template, with_a_bias_alone(name, 0), Part(1, 2))  # of other output channels


def test_a_bias_alone_is_patched_if_a_residual_is_added_to_it() -> None:
    name, arch = "a residual and a Relu", "sm_80"
    template, toolchain = template_for(name, virtual_arch(arch)), find_toolchain()
    patch = make_patch_template(template, with_a_bias_alone(name, 0), whole(name), arch, toolchain, limits=LIMITS)
    other = with_a_bias_alone(name, 1)
    assert apply(patch, template, other, whole(name)).data == by_ptxas(name, arch, other)


def test_more_float16_weights_than_tags_are_refused_without_a_run_of_ptxas() -> None:
    case = CASES["float16 linear, a hard sigmoid"]
    spec = replace(case.spec, inputs=4096, outputs=16)
    kernel = np.random.default_rng(0).standard_normal(spec.weights_shape, dtype=np.float32)
    weights = Weights(rounded(kernel / 10, "float16"), np.zeros(16, dtype=np.float32))
    template = shared_template(spec, case.tiling, "compute_80")
    with pytest.raises(MachineCodeError, match="more weights than there are tags"):
        check_values(template, weights, Part(0, stream_count(spec, case.tiling)))
