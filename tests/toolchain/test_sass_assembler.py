"""The direct assembler: the cubin computes what the rewritten PTX does, and passes the hazard checker."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from codegen.errors import MachineCodeError
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, DataType, MaxPool
from codegen.ir.tiling import Accumulator, Part, Tiling
from codegen.kernels import stream_count, tiled
from codegen.kernels.weight_stream import slots
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template, make_template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.cubin import CubinFile
from codegen.sass.isa import encoding
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.opcodes import (
    BAR,
    EXIT,
    FFMA_IMMEDIATE,
    HFMA2_IMMEDIATE,
    HFMA2_MMA_IMMEDIATE,
    LDS,
    STG,
    are_of_kind,
)
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton import marker_ptx
from codegen.sass.skeleton.marker_ptx import MarkerPtx
from codegen.sass.skeleton.reader import Skeleton
from codegen.sass.verify.hazards import check_cubin
from codegen.toolchain.ptxas import Cubin
from codegen.toolchain.tools import find_toolchain
from tests.templates import shared_template
from tests.toolchain.gate_cases import GATE_CASES
from tests.toolchain.machine_cubins import LIMITS, drawn_weights, template_for
from tests.toolchain.operator_cases import CASES

ARCH = "sm_90"
ASSEMBLED = (
    "channels and kernels that do not divide",
    "several rows a thread, three stages",
    "strides, a rectangular kernel, uneven padding",
    "stride 2, where loads come in pairs",
    "patches of 8 x 8",
    "a residual and a Relu",
    "whole rows copied by fours",
    "several images a block, a 1x1 kernel",
    "whole maps of an odd size, in one piece",
    "linear, copied by fours",
)
HALVES = (
    "float16, added up in float32",
    "float16, several rows a thread, added up in float16",
    "float16, groups, added up in float32",
    "float16, transposed, added up in float16",
    "float16, linear, added up in float16",
    "float16, linear, copied in a loop, some without an upper row",
    "image pairs, a 1x1 kernel with a stride, copied by fours",
    "column pairs, a 1x1 kernel with padding and a stride, copied by twos",
    "float16, long sums of groups",
    "float16 GELU by tanh, a tanh, sums in float32",
    "image pairs, the last alone, whole rows",
    "image pairs, two in a block, whole maps",
    "image pairs, chunks added up together, the last alone",
    "image pairs, a 1x1 kernel in one piece",
    "neighbouring columns, whole maps of several images, the last block with one",
    "neighbouring columns, a K group with fewer kernels, a residual",
    "column pairs copied by fours",
    "bfloat16",
    "bfloat16 copied by fours, whole rows",
    "bfloat16, linear",
)
Product = tuple[int, int, int, int]
"""Chunk, pointer, bytes from it, bits of the weight."""


@cache
def skeleton_of(name: str) -> Cubin:
    return make_skeleton(template_for(name, CASES[name].virtual_arch), ARCH, find_toolchain())


def products_in_ptx(template: Template, weights: Weights, part: Part) -> list[list[list[Product]]]:
    """[groups][sums]: what the rewritten PTX adds up, in order."""
    form, layer = template.rolled, tiled(template.spec, template.tiling)
    turn = form.turn.strings
    loads = [turn[line] for line in form.load_lines]
    pointers = list(dict.fromkeys(re.search(r"\[(%\w+)", line)[1] for line in loads))
    sum_of = {
        re.search(r"%f\d+", turn[line])[0]: int(number)
        for line, number in zip(form.weight_line, slots(layer).sums, strict=True)
    }
    numbers = sorted(set(sum_of.values()))
    groups, chunk = [], -1
    found: dict[int, list[Product]] = defaultdict(list)
    inputs: dict[str, tuple[int, int]] = {}
    for line in rewrite(template, weights, part).ptx.decode().splitlines():
        if line.startswith("// farm.body.begin"):
            chunk += 1
        elif match := re.match(r"ld\.shared(?!::)\S*\s+(.*),\s*\[(%\w+)(?:\+(-?\d+))?\];", line):
            for i, register in enumerate(re.findall(r"%[fr]\d+", match[1])):
                inputs[register] = pointers.index(match[2]), int(match[3] or 0) + 4 * i
        elif match := re.match(r"fma\.rn\.f32 (%f\d+),(%f\d+),0f([0-9A-F]{8}),\1;", line):
            found[sum_of[match[1]]].append((chunk, *inputs[match[2]], int(match[3], 16)))
        elif line == "ret;":
            groups.append([found[number] for number in numbers])
            found, chunk = defaultdict(list), -1
    return groups


def products_in_words(cubin: CubinFile, form: Skeleton) -> list[list[list[Product]]]:
    """[groups][sums]: what the machine code adds up, in order."""
    words = cubin.words
    opcodes, immediates = encoding.OPCODE.get(words), encoding.IMMEDIATE.get(words)
    bodies = np.flatnonzero((opcodes == 0x80C) & (immediates == marker_ptx.NO_GROUP))[1:]
    numbers = {register: i for i, register in enumerate(form.accumulators.tolist())}
    groups = []
    for begin, end in zip(bodies.tolist(), [*bodies.tolist()[1:], len(words)], strict=True):
        chunk, inputs = -1, dict[int, tuple[int, int, int]]()
        sums: list[list[Product]] = [[] for _ in numbers]
        for place in range(begin, end):
            one = words[place]
            target, a, c = (int(f.get(one)) for f in (encoding.DESTINATION, encoding.SOURCE_A, encoding.SOURCE_C))
            if opcodes[place] == BAR:
                chunk += 1
            elif opcodes[place] == LDS and encoding.PREDICATE.get(one) == encoding.ALWAYS and target != 255:
                if encoding.NEGATED_PREDICATE.get(one):
                    continue
                pointer = form.pointers[chunk].tolist().index(a)
                offset = (int(encoding.OFFSET.get(one)) + 2**23) % 2**24 - 2**23 - int(form.offsets[chunk, pointer])
                for i in range(encoding.ACCESS_SIZES[int(encoding.SIZE.get(one))].bytes // 4):
                    inputs[target + i] = chunk, pointer, offset + 4 * i
            elif opcodes[place] == FFMA_IMMEDIATE and target in numbers:
                products = sums[numbers[target]]
                if a == 255:
                    assert (c, int(immediates[place]), products) == (255, 0, [])
                    continue
                assert c == (target if products else 255)
                products.append((*inputs[a], int(immediates[place])))
        groups.append(sums)
    return groups


@pytest.mark.parametrize("name", ASSEMBLED)
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_every_accumulator_has_the_products_of_the_rewritten_ptx_in_their_order(name: str, density: float) -> None:
    template, weights = template_for(name, "compute_80"), drawn_weights(name, density, seed=1)
    whole = Part(0, stream_count(template.spec, template.tiling))
    skeleton = skeleton_of(name)
    cubin = CubinFile.read(DirectAssembler.of(template, skeleton.data, ARCH).assemble(weights, whole).data)
    form = Skeleton.read(skeleton.data, MarkerPtx.of(template, SM_90))
    assert products_in_words(cubin, form) == products_in_ptx(template, weights, whole)


@pytest.mark.parametrize(
    "name", ["dilation, a leaky Relu, a Clip", "linear, inputs that do not divide", "linear, GELU"]
)
def test_weight_code_may_wait_for_what_the_word_before_it_sets(name: str) -> None:
    """Between two chunks without weights there is nothing but the body, whose words stall no longer than they need."""
    template = template_for(name, "compute_80")
    made = DirectAssembler.of(template, skeleton_of(name).data, ARCH)
    check_cubin(
        CubinFile.read(
            made.assemble(drawn_weights(name, 0.03, 1), Part(0, stream_count(template.spec, template.tiling))).data
        )
    )


def test_neighbouring_words_come_with_one_load_where_another_load_says_how_they_are_aligned() -> None:
    """Columns of stride 2: the compiler loads two in one of the rows, in the others each on its own."""
    template = shared_template(
        Conv2d(16, 14, 14, 32, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1)),
        Tiling("conv2d", 7, 7, 1, 32, 2, 3, images=8),
        "compute_80",
    )
    found = MarkerPtx.of(template, SM_90)
    lines = [line for line in template.rolled.turn.strings if line.startswith("ld.shared.v2")]
    pairs = np.unique(found.slot_load[found.load_words[found.slot_load] == 2])
    assert 0 < len(lines) < len(pairs)
    assert (found.load_offset[pairs] % 8 == found.load_offset[pairs[0]] % 8).all()


def test_a_part_has_the_products_of_its_own_k_groups() -> None:
    name = "several rows a thread, three stages"
    template, weights, part = template_for(name, "compute_80"), drawn_weights(name, 0.5, seed=1), Part(1, 2)
    skeleton = skeleton_of(name)
    cubin = CubinFile.read(DirectAssembler.of(template, skeleton.data, ARCH).assemble(weights, part).data)
    form = Skeleton.read(skeleton.data, MarkerPtx.of(template, SM_90))
    assert products_in_words(cubin, form) == products_in_ptx(template, weights, part)


def test_sixteen_times_as_many_k_groups_are_checked_in_hardly_more_steps() -> None:
    """Calls, in which NumPy goes over all words at once: what is done for each K group or branch would show."""
    case = CASES["channels and kernels that do not divide"]
    spec = replace(case.spec, output_channels=32 * case.tiling.group_outputs)
    template = make_template(spec, case.tiling, "compute_80", find_toolchain(), LIMITS)
    rng = np.random.default_rng(1)
    kernel = (rng.standard_normal(spec.weights_shape) * (rng.random(spec.weights_shape) < 0.5)).astype(np.float32)
    weights = Weights(kernel, rng.standard_normal(spec.output_channels).astype(np.float32))
    assembler = DirectAssembler.of(template, make_skeleton(template, ARCH, find_toolchain()).data, ARCH)
    few, many = (CubinFile.read(assembler.assemble(weights, Part(0, count)).data) for count in (2, 32))
    assert calls_of(lambda: check_cubin(many)) < 2 * calls_of(lambda: check_cubin(few))


def calls_of(work: Callable[[], None]) -> int:
    """Number of function calls."""
    calls = Counter[str]()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


@pytest.mark.parametrize("name", ["image pairs, a 1x1 kernel in one piece", "float16, added up in float16"])
def test_inputs_that_pass_through_registers_are_loaded_before_the_multiply_adds_and_not_waited_for(name: str) -> None:
    template, weights = template_for(name, "compute_80"), drawn_weights(name, 1.0, seed=1)
    whole = Part(0, stream_count(template.spec, template.tiling))
    made = DirectAssembler.of(template, skeleton_of(name).data, ARCH).assemble(weights, whole)
    words = CubinFile.read(made.data).words
    used, waits = operands(words, SM_90), encoding.WAIT.get(words)
    loads = np.flatnonzero(used.named("LDG"))
    products, barriers = np.flatnonzero(used.named("HFMA2", "HFMA2.MMA")), np.flatnonzero(used.named("BAR"))
    checked = 0
    for barrier in barriers.tolist():
        end = min([each for each in barriers.tolist() if each > barrier], default=len(words))
        inside = products[(products > barrier) & (products < end)]
        copies = loads[(loads > barrier) & (loads < end) & (encoding.WRITE_SCOREBOARD.get(words)[loads] == 0)]
        if len(copies) and len(inside):
            assert copies[-1] < inside[0]
            assert not (waits[copies[-1] + 1 : inside[-1]] & 1).any()
            checked += 1
    assert checked


def test_half_of_many_packed_products_go_to_the_tensor_cores_unit() -> None:
    name = "image pairs, registers bounded"
    template, weights = template_for(name, "compute_80"), drawn_weights(name, 1.0, seed=1)
    skeleton = make_skeleton(template, ARCH, find_toolchain())
    whole = Part(0, stream_count(template.spec, template.tiling))
    made = DirectAssembler.of(template, skeleton.data, ARCH).assemble(weights, whole)
    opcodes = encoding.OPCODE.get(CubinFile.read(made.data).words)
    matrix, half = ((opcodes == each).sum() for each in (HFMA2_MMA_IMMEDIATE, HFMA2_IMMEDIATE))
    assert 0.4 < matrix / (matrix + half) <= 0.55


def test_what_the_assembler_does_not_know_is_refused_with_the_reason() -> None:
    gated = GATE_CASES["float16 gates, image pairs, added up in float32"]
    with pytest.raises(MachineCodeError, match="does not support float16 channel gates"):
        make_skeleton(shared_template(gated.spec, gated.tiling), ARCH, find_toolchain())
    plain = template_for(ASSEMBLED[0], "compute_80")
    with pytest.raises(MachineCodeError, match=r"the direct assembler supports .*, not sm_88"):
        make_skeleton(plain, "sm_88", find_toolchain())


@pytest.mark.parametrize("density", [0.1, 0.3, 1.0])
def test_an_input_is_kept_only_for_the_next_product_of_the_same_unit_with_it(density: float) -> None:
    name = "float16, several rows a thread, added up in float16"
    template, weights = template_for(name, "compute_80"), drawn_weights(name, density, seed=1)
    whole = Part(0, stream_count(template.spec, template.tiling))
    words = CubinFile.read(
        DirectAssembler.of(template, skeleton_of(name).data, ARCH).assemble(weights, whole).data
    ).words
    opcodes, inputs, kept = encoding.OPCODE.get(words), encoding.SOURCE_A.get(words), encoding.REUSE.get(words)
    flags = 0
    for unit in (HFMA2_IMMEDIATE, HFMA2_MMA_IMMEDIATE):
        places = np.flatnonzero((opcodes == unit) & (inputs != encoding.ZERO_REGISTER))
        for here, following in pairwise(places.tolist()):
            if kept[here]:
                flags += 1
                assert inputs[here] == inputs[following]
                between = encoding.DESTINATION.get(words[here:following])[opcodes[here:following] == LDS]
                assert inputs[here] not in between
    assert flags


def test_a_residual_leaves_as_many_blocks_on_a_multiprocessor() -> None:
    # Left to itself ptxas loads residuals early, into 94 registers instead of 71: one block of 448 threads, not two.
    spec = Conv2d(256, 14, 14, 32, 3, 3, padding=(1, 1, 1, 1), epilogue=(AddResidual(), Clip(0.0)))
    tiling = Tiling("conv2d", 14, 16, 1, 32, 8, 2, images=2)
    template = make_template(spec, tiling, "compute_80", find_toolchain(), LIMITS)
    skeleton = make_skeleton(template, "sm_90", find_toolchain())
    assert 2 * 448 * (-(-skeleton.registers // 8) * 8) <= 65536


@pytest.mark.parametrize(
    ("spec", "tiling"),
    [
        (
            Conv2d(64, 14, 14, 172, 1, 1, epilogue=(AddResidual(), Clip(0.0))),
            Tiling("conv2d", 196, 1, 1, 86, 16, 3, order="place"),
        ),
        (
            Conv2d(
                *(3, 64, 64, 64, 7, 7),
                (2, 2),
                (3, 3, 3, 3),
                epilogue=(Clip(0.0), MaxPool(3, (1, 1, 1, 1))),
                data_type="float16",
            ),
            Tiling("conv2d", 17, 9, 1, 64, 1, 4, accumulate="float16", images=2),
        ),
    ],
    ids=["whole maps, K groups that begin side by side", "a float16 max pool"],
)
def test_layers_of_residual_networks_have_skeletons(spec: Conv2d, tiling: Tiling) -> None:
    template = make_template(spec, tiling, "compute_80", find_toolchain(), LIMITS)
    assert make_skeleton(template, "sm_90", find_toolchain()).registers <= 128


def test_two_float16_outputs_with_a_residual_take_thirteen_words_behind_the_last_multiply_add() -> None:
    epilogue = (AddResidual(), Clip(0.0))
    spec = Conv2d(32, 14, 14, 32, 1, 1, epilogue=epilogue, data_type="float16")
    skeleton = _skeleton_of(spec, Tiling("conv2d", 98, 1, 1, 32, 16, 3, accumulate="float16", images=2))
    behind = encoding.OPCODE.get(skeleton.words[skeleton.splices[-1] :])
    ends = np.flatnonzero(behind == EXIT)
    assert ends[0] <= 13 * 32 + 16
    assert np.count_nonzero(are_of_kind(behind[ends[0] : ends[1]], STG)) == 32  # behind the end: they never run


@pytest.mark.parametrize(
    ("data_type", "accumulate", "upper"),
    [
        ("float16", "float16", None),
        ("float16", "float32", 6.0),
        ("bfloat16", "float32", None),
        ("bfloat16", "float32", 6.0),
    ],
)
def test_the_conversion_of_16_bit_outputs_applies_their_relu(
    data_type: DataType, accumulate: Accumulator, upper: float | None
) -> None:
    spec = Conv2d(32, 14, 14, 32, 1, 1, epilogue=(Clip(0.0, upper),), data_type=data_type)
    skeleton = _skeleton_of(spec, Tiling("conv2d", 98, 1, 1, 32, 16, 3, accumulate=accumulate))
    conversions, bounds = (np.flatnonzero(operands(skeleton.words, SM_90).named(each)) for each in ("F2FP", "FMNMX"))
    assert encoding.Field(75, 1).get(skeleton.words)[conversions].all()
    assert len(conversions) >= 16
    assert len(bounds) == (0 if upper is None else 64 if data_type == "float16" else 32)


def test_eight_neighbouring_float16_inputs_of_a_stride_of_two_come_with_one_load() -> None:
    spec = Conv2d(16, 16, 16, 16, 1, 1, stride=(2, 2), data_type="float16")
    skeleton = _skeleton_of(spec, Tiling("conv2d", 8, 8, 1, 16, 8, 2, accumulate="float16", images=2))
    # Of the second chunk's eight channels every thread copies one word each, with halves of two images.
    assert len(skeleton.copies) == 2 * 8 // 4


def _skeleton_of(spec: Conv2d, tiling: Tiling) -> Skeleton:
    template = make_template(spec, tiling, "compute_80", find_toolchain(), LIMITS)
    return Skeleton.read(make_skeleton(template, "sm_90", find_toolchain()).data, MarkerPtx.of(template, SM_90))


def test_what_is_added_to_outputs_is_loaded_before_the_last_chunk_where_shared_memory_leaves_registers() -> None:
    # 49,152 bytes a block: four blocks, though the template asks for five.
    spec, tiling = (
        Conv2d(128, 28, 28, 512, 1, 1, epilogue=(AddResidual(), Clip(0.0))),
        Tiling("conv2d", 256, 1, 1, 16, 16, 3),
    )
    template = make_template(spec, tiling, "compute_80", find_toolchain(), LIMITS)
    skeleton = Skeleton.read(make_skeleton(template, "sm_90", find_toolchain()).data, MarkerPtx.of(template, SM_90))
    assert 4 * 256 * (-(-skeleton.registers // 8) * 8) <= 65536
    assert (skeleton.residuals < skeleton.splices[-1]).all()


def test_a_result_before_the_only_chunk_may_be_needed_behind_it_though_no_multiply_add_comes_between() -> None:
    # Whether a thread stores anything is known only before the first chunk; a K group without weights stores at once.
    spec, tiling = Conv2d(12, 7, 14, 8, 1, 3), Tiling("conv2d", 6, 7, 1, 1, 12, 2)
    template = shared_template(spec, tiling, "compute_80")
    made = DirectAssembler.of(template, make_skeleton(template, "sm_90", find_toolchain()).data, ARCH)
    kernel = np.zeros(spec.weights_shape, dtype=np.float32)
    kernel[0] = 1.0
    check_cubin(CubinFile.read(made.assemble(Weights(kernel, np.ones(8, dtype=np.float32)), Part(0, 8)).data))
