"""Cubins of ptxas run word by word: bit for bit what their PTX computes."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate as ptx
from codegen.emulator.sass import emulate
from codegen.errors import EmulationError
from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Conv2d, DataType, Linear
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import stream_count
from codegen.model_zoo import random_weights
from codegen.ptx.rewrite import Kernel, rewrite
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.architectures import ARCHITECTURES, architecture_named
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.encoding import ALWAYS, IMMEDIATE, NEGATED_PREDICATE, OPCODE, PREDICATE, Words
from codegen.sass.isa.opcodes import BAR, FFMA_IMMEDIATE, SECOND_PREDICATE
from codegen.sass.isa.operands import operands
from codegen.selection.choose import choose_tiling
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from codegen.verification.compare import poisoned, random_input, random_residual
from tests.templates import shared_cubin, shared_template, verify_random_run
from tests.toolchain.machine_cubins import HALVES, PLAIN, cubin_for, drawn_weights, template_for
from tests.toolchain.operator_cases import CASES
from tests.toolchain.test_sass_assembler import ASSEMBLED, skeleton_of
from tests.toolchain.test_sass_assembler import HALVES as ASSEMBLED_HALVES

KINDS = (
    PLAIN,
    HALVES,
    "one output",
    "patches of 6 x 6, rows left over, in tiles, two rows a thread",
    "whole rows copied by fours",
    "whole rows, bfloat16",
    "several images a block, a 1x1 kernel",
    "depthwise with two kernels a channel, stride 2",
    "transposed, dilation, groups, uneven strides",
    "linear, copied by fours",
    "linear, more outputs of a group than lanes of a warp",
    "float16 linear, more outputs of a group than lanes of a warp",
    "float16, several rows a thread, added up in float32",
    "float16 linear, a hard sigmoid",
)

OF_EACH_ARCHITECTURE = (PLAIN, HALVES, "float16 linear, a hard sigmoid", "wide pool")


def kernel_for(name: str, virtual: str = "compute_80") -> Kernel:
    return rewrite(template_for(name, virtual), drawn_weights(name, 0.5, 0))


def arguments(name: str, launch: Launch) -> tuple[NDArray[Any], list[NDArray[Any] | int]]:
    """The output, and all arguments with it."""
    case = CASES[name]
    output = poisoned(case.spec, case.batch)
    named: dict[str, Any] = {"input": random_input(case.spec, case.batch, seed=1), "output": output}
    named |= {"residual": random_residual(case.spec, case.batch, seed=0), "images": case.batch}
    named["output_step"] = prod(case.spec.output_shape)
    return output, [named[each] for each in launch.arguments]


def computed(
    name: str, cubin: CubinFile, blocks: list[tuple[int, int, int]] | None = None, virtual: str = "compute_80"
) -> NDArray[Any]:
    launch, batch = kernel_for(name, virtual).launch, CASES[name].batch
    output, given = arguments(name, launch)
    emulate.run(cubin, launch.grid_at(batch), launch.block, launch.shared_bytes, given, blocks)
    return output


def bits(values: NDArray[Any]) -> NDArray[Any]:
    return values.view(f"u{values.dtype.itemsize}")


@pytest.fixture(scope="module")
def cubin() -> CubinFile:
    return CubinFile.read(cubin_for(PLAIN, "sm_90"))


def with_words(cubin: CubinFile, words: Words) -> CubinFile:
    return CubinFile.read(cubin.with_words(words))


@cache
def computed_by_ptx(name: str, virtual: str = "compute_80") -> NDArray[Any]:
    kernel, batch = kernel_for(name, virtual), CASES[name].batch
    expected, given = arguments(name, kernel.launch)
    ptx.run(kernel.ptx, kernel.launch.grid_at(batch), kernel.launch.block, kernel.launch.shared_bytes, given)
    return bits(expected)


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        *product(["sm_90"], KINDS),
        *product([each.name for each in ARCHITECTURES.values() if each != SM_90], OF_EACH_ARCHITECTURE),
    ],
)
def test_machine_code_computes_bit_for_bit_what_its_ptx_does(arch: str, name: str) -> None:
    virtual = virtual_arch(arch)
    output = computed(name, CubinFile.read(cubin_for(name, arch)), virtual=virtual)
    np.testing.assert_array_equal(bits(output), computed_by_ptx(name, virtual))


def test_one_changed_immediate_changes_the_output(cubin: CubinFile) -> None:
    words = cubin.words
    place = int(np.flatnonzero(OPCODE.get(words) == FFMA_IMMEDIATE)[20])
    IMMEDIATE.put(words[place : place + 1], IMMEDIATE.get(words)[place] ^ 1)
    changed = computed(PLAIN, with_words(cubin, words))
    assert (bits(changed) != bits(computed(PLAIN, cubin))).any()


def test_verification_of_machine_code_finds_one_wrong_weight(cubin: CubinFile) -> None:
    case, weights = CASES[PLAIN], drawn_weights(PLAIN, 0.5, 0)
    template, part = template_for(PLAIN, "compute_80"), Part(0, stream_count(case.spec, case.tiling))
    assert verify_random_run(template, weights, [part], cubins=[cubin.data]).ok
    words = cubin.words
    place = int(np.flatnonzero(OPCODE.get(words) == FFMA_IMMEDIATE)[20])
    IMMEDIATE.put(words[place : place + 1], np.float32(7).view(np.uint32))
    assert not verify_random_run(template, weights, [part], cubins=[cubin.with_words(words)]).ok


def test_only_the_chosen_blocks_run(cubin: CubinFile) -> None:
    whole, one = computed(PLAIN, cubin), computed(PLAIN, cubin, [(0, 0, 0)])
    written = bits(one) != bits(poisoned(CASES[PLAIN].spec, CASES[PLAIN].batch))
    assert 0 < np.count_nonzero(written) < written.size
    np.testing.assert_array_equal(one[written], whole[written])


def test_an_instruction_that_is_not_known_is_named_and_refused(cubin: CubinFile) -> None:
    words = cubin.words
    OPCODE.put(words[3:4], 0x7AB)
    with pytest.raises(EmulationError, match=r"word 3 \(opcode 0x7ab\).*does not know"):
        computed(PLAIN, with_words(cubin, words))


def test_a_bit_that_is_not_known_is_refused(cubin: CubinFile) -> None:
    words = cubin.words
    place = int(np.flatnonzero(operands(words, SM_90).named("FFMA"))[0])
    words[place, 1] |= np.uint64(1 << (80 - 64))  # flushes subnormal numbers
    with pytest.raises(EmulationError, match=rf"word {place} .*bits of the instruction"):
        computed(PLAIN, with_words(cubin, words))


def test_a_load_beyond_its_array_names_the_word_and_the_thread(cubin: CubinFile) -> None:
    kernel, case = kernel_for(PLAIN), CASES[PLAIN]
    _, (x, *given) = arguments(PLAIN, kernel.launch)
    assert isinstance(x, np.ndarray)
    launch = kernel.launch
    with pytest.raises(EmulationError, match=r"word \d+ \(opcode 0xfae\): thread .* of block .*outside"):
        emulate.run(cubin, launch.grid_at(case.batch), launch.block, launch.shared_bytes, [x[:1, :1].copy(), *given])


def test_shared_memory_read_without_a_barrier_is_found(cubin: CubinFile) -> None:
    words = cubin.words
    barriers = np.flatnonzero(OPCODE.get(words) == BAR)
    words[barriers] = words[int(np.flatnonzero(operands(words, SM_90).named("NOP"))[-1])]
    with pytest.raises(EmulationError, match="written by another thread"):
        computed(PLAIN, with_words(cubin, words))


def test_a_barrier_that_a_part_of_the_block_does_not_reach_is_found(cubin: CubinFile) -> None:
    words = cubin.words
    barrier = int(np.flatnonzero(OPCODE.get(words) == BAR)[0])
    copies = np.flatnonzero(operands(words, SM_90).named("LDGSTS") & (PREDICATE.get(words) != 7))
    guard = PREDICATE.get(words)[copies[copies < barrier][-1]]
    PREDICATE.put(words[barrier : barrier + 1], guard)
    with pytest.raises(EmulationError, match=r"thread .* (waits here|shared memory)"):
        computed(PLAIN, with_words(cubin, words))


GUARDED = (
    "whole rows",
    "whole rows without cp.async",
    "linear, copied in a loop, word by word, two blocks of rows",
    "linear, weights in a table, chunks that do not divide, two rows",
)
"""Cases with barriers that only keep a buffer from being overwritten before all warps have read it."""
TOO_EARLY = "was read by another warp since the last barrier, and is overwritten"
UNORDERED = rf"{TOO_EARLY}|written by another thread since the last barrier|never written"


@pytest.mark.parametrize("name", GUARDED)
def test_every_barrier_that_is_taken_away_from_ptx_is_missed(name: str) -> None:
    kernel, batch, reasons = kernel_for(name), CASES[name].batch, []
    barriers = [each.span() for each in re.finditer(rb"bar\.sync[^;]*;", kernel.ptx)]
    for begin, end in barriers:
        without = kernel.ptx[:begin] + kernel.ptx[end:]
        _, given = arguments(name, kernel.launch)
        with pytest.raises(EmulationError, match=UNORDERED) as error:
            ptx.run(without, kernel.launch.grid_at(batch), kernel.launch.block, kernel.launch.shared_bytes, given)
        reasons.append(TOO_EARLY in str(error.value))
    assert any(reasons)


@pytest.mark.parametrize("name", GUARDED[:2])  # the others have words that the emulator does not know
def test_every_barrier_that_is_taken_away_from_machine_code_is_missed(name: str) -> None:
    cubin, reasons = CubinFile.read(cubin_for(name, "sm_90")), []
    for place in np.flatnonzero(OPCODE.get(cubin.words) == BAR).tolist():
        words = cubin.words
        NEGATED_PREDICATE.put(words[place : place + 1], 1)
        with pytest.raises(EmulationError, match=UNORDERED) as error:
            computed(name, with_words(cubin, words))
        reasons.append(TOO_EARLY in str(error.value))
    assert any(reasons)


def test_architectures_that_are_not_known_are_refused() -> None:
    with pytest.raises(EmulationError, match="sm_88"):
        computed(PLAIN, CubinFile.read(cubin_for(PLAIN, "sm_88")))


@pytest.mark.parametrize(
    ("name", "density"),
    [*product(ASSEMBLED, (0.0, 0.1, 0.5, 1.0)), *product(ASSEMBLED_HALVES, (0.1, 1.0)), (ASSEMBLED_HALVES[0], 0.0)],
)
def test_machine_code_made_without_ptxas_computes_bit_for_bit_what_the_ptx_does(name: str, density: float) -> None:
    template, weights, case = template_for(name, "compute_80"), drawn_weights(name, density, 1), CASES[name]
    kernel = rewrite(template, weights)
    expected, given = arguments(name, kernel.launch)
    ptx.run(kernel.ptx, kernel.launch.grid_at(case.batch), kernel.launch.block, kernel.launch.shared_bytes, given)
    whole = Part(0, stream_count(case.spec, case.tiling))
    made = DirectAssembler.of(template, skeleton_of(name).data, "sm_90").assemble(weights, whole)
    np.testing.assert_array_equal(bits(computed(name, CubinFile.read(made.data))), bits(expected))


def test_rows_of_a_length_that_is_divided_by_as_a_product_are_known_too() -> None:
    """The address of a thread's inputs takes a division by 30 here: IMAD.HI."""
    spec, tiling = Linear(30, 6, data_type="float16"), Tiling("linear", 32, 1, 1, 2, 30, 2, "float16")
    template = shared_template(spec, tiling)
    rng = np.random.default_rng(1)
    kernel = from_float32(rng.standard_normal(spec.weights_shape).astype(np.float32), "float16").astype(np.float32)
    weights, whole = Weights(kernel, np.ones(6, np.float32)), Part(0, 3)
    cubin = assemble(rewrite(template, weights).ptx, "sm_90", find_toolchain()).data
    assert operands(CubinFile.read(cubin).words, SM_90).named("IMAD.HI").any()
    skeleton = make_skeleton(template, "sm_90", find_toolchain())
    direct = DirectAssembler.of(template, skeleton.data, "sm_90").assemble(weights, whole).data
    for code in (cubin, direct):
        assert verify_random_run(template, weights, [whole], cubins=[code]).ok


def test_pairs_of_columns_may_reach_beyond_the_map() -> None:
    spec = Conv2d(8, 14, 14, 12, 3, 3, padding=(1, 1, 1, 1), data_type="float16")
    template = shared_template(spec, Tiling("conv2d", 14, 7, 1, 4, 4, 2, "float16"))
    rng = np.random.default_rng(1)
    kernel = from_float32(rng.standard_normal(spec.weights_shape).astype(np.float32), "float16").astype(np.float32)
    weights, whole = Weights(kernel, np.arange(12, dtype=np.float32)), Part(0, 3)
    skeleton = make_skeleton(template, "sm_90", find_toolchain())
    direct = DirectAssembler.of(template, skeleton.data, "sm_90").assemble(weights, whole).data
    assert verify_random_run(template, weights, [whole], cubins=[direct]).ok


@pytest.mark.parametrize("channels", [50, 33])
def test_channels_that_fill_no_vector_of_a_load_are_no_fault(channels: int) -> None:
    spec, toolchain = Conv2d(channels, 1, 1, 24, 1, 1), find_toolchain()
    weights = random_weights(spec, 0.4)
    tiling = choose_tiling(spec, 8, weights.nonzeros_per_output)
    template, whole = shared_template(spec, tiling), Part(0, stream_count(spec, tiling))
    assert verify_random_run(template, weights, [whole]).ok
    cubin = shared_cubin(rewrite(template, weights).ptx, "sm_90", toolchain)
    assert verify_random_run(template, weights, [whole], cubins=[cubin]).ok


PAIRS = """.version 8.8
.target sm_120
.address_size 64
.visible .entry pairs(.param .u64 given, .param .u64 made, .param .u32 which) {
    .reg .b64 %given, %made, %v, %w, %x; .reg .pred %p; .reg .b32 %which;
    ld.param.u64 %given, [given]; ld.param.u64 %made, [made]; ld.param.u32 %which, [which];
    cvta.to.global.u64 %given, %given; cvta.to.global.u64 %made, %made;
    setp.eq.u32 %p, %which, 3;
    ld.global.nc.u64 %v, [%given]; ld.global.nc.u64 %w, [%given+8];
"""
"""PTX that reads two numbers of 64 bits; a predicate, which is false, chooses the second."""
RESULTS = (
    ("add.s64 %x, %v, %w;", lambda v, w: v + w),
    ("add.s64 %x, %v, -5;", lambda v, w: v - 5),
    ("add.s64 %x, %v, 0xfffffffa;", lambda v, w: v + 0xFFFFFFFA),
    ("add.s64 %x, %v, 0x123456789a;", lambda v, w: v + 0x123456789A),
    ("selp.b64 %x, %v, %w, %p;", lambda v, w: w),
    ("selp.b64 %x, %v, -7, %p;", lambda v, w: -7),
    ("selp.b64 %x, %v, 0xfffffff0, %p;", lambda v, w: 0xFFFFFFF0),
    ("selp.b64 %x, %v, 0x1fffffff0, %p;", lambda v, w: 0x1FFFFFFF0),
    ("mov.u64 %x, -3;", lambda v, w: -3),
    ("mov.u64 %x, 0x123456789abcdef0;", lambda v, w: 0x123456789ABCDEF0),
)


def test_instructions_of_64_bits_compute_what_their_ptx_says() -> None:
    stores = "".join(f"{line} st.global.cs.u64 [%made+{8 * i}], %x;\n" for i, (line, _) in enumerate(RESULTS))
    cubin = CubinFile.read(assemble(f"{PAIRS}{stores}ret; }}".encode(), "sm_120", find_toolchain()).data)
    used = {each.name for each in operands(cubin.words, architecture_named("sm_120")).opcodes}
    assert {"IADD.64", "SEL.64", "MOV.64", "UMOV.64"} <= used
    v, w = 0xFEDCBA9876543210, 0x00000001FFFFFFFF
    made = np.zeros(len(RESULTS), dtype=np.uint64)
    emulate.run(cubin, (1, 1, 1), (1, 1, 1), 0, [np.array([v, w], dtype=np.uint64), made, 4])
    assert made.tolist() == [value(v, w) % 2**64 for _, value in RESULTS]


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_a_sum_of_three_numbers_carries_twice(arch: str) -> None:
    ptx = PAIRS.replace("sm_120", "sm_75").replace("setp.eq.u32", "mov.u32 %which, %tid.x; setp.eq.u32")
    sums = "add.s64 %x, %v, %w; cvt.u64.u32 %w, %which; add.s64 %x, %x, %v; add.s64 %x, %x, %w;"
    store = "shl.b64 %w, %w, 3; add.s64 %made, %made, %w; st.global.cs.u64 [%made], %x; ret; }"
    loads = "ld.global.nc.u64 %v, [%given]; ld.global.nc.u64 %w, [%given+8];"
    own = "{ .reg .b64 %own; mul.wide.u32 %own, %which, 8; add.s64 %given, %given, %own; }"
    source = ptx.replace(loads, f"{own} {loads}") + sums + store
    cubin = CubinFile.read(assemble(source.encode(), arch, find_toolchain()).data)
    assert (
        SECOND_PREDICATE.get(cubin.words[operands(cubin.words, architecture_named(arch)).named("IADD3")]) != ALWAYS
    ).any()
    given = np.array([2**33 - 1, 2**64 - 1, 5], dtype=np.uint64)
    made = np.zeros(2, dtype=np.uint64)
    emulate.run(cubin, (1, 1, 1), (2, 1, 1), 0, [given, made, 0])
    assert made.tolist() == [(2 * int(given[i]) + int(given[i + 1]) + i) % 2**64 for i in range(2)]


HALVES_OF = """.version 8.8
.target sm_75
.address_size 64
.visible .entry halves(.param .u64 given, .param .u64 made, .param .u32 third) {
    .reg .b64 %given, %made, %own; .reg .b32 %v, %w, %u, %x; .reg .b16 %l, %h, %m, %n, %k; .reg .f32 %f;
    ld.param.u64 %given, [given]; ld.param.u64 %made, [made]; ld.param.u32 %u, [third];
    cvta.to.global.u64 %given, %given; cvta.to.global.u64 %made, %made;
    mov.u32 %x, %tid.x; mul.wide.u32 %own, %x, 8; add.s64 %given, %given, %own; add.s64 %made, %made, %own;
    ld.global.nc.u32 %v, [%given]; ld.global.nc.u32 %w, [%given+4];
    mov.b32 {%l, %h}, %v; mov.b32 {%m, %n}, %w;
"""
"""PTX that reads two pairs of float16, and has a third as an argument."""
PACKED_RESULTS = (
    ("add.rn.f16x2 %x, %v, %w;", lambda v, w, u: v + w),
    ("add.rn.f16x2 %x, %v, %u;", lambda v, w, u: v + u),
    ("neg.f16x2 %x, %v; add.rn.f16x2 %x, %x, %w;", lambda v, w, u: w - v),
    ("abs.f16x2 %x, %v; add.rn.f16x2 %x, %x, %w;", lambda v, w, u: abs(v) + w),
    ("mov.b32 %x, 0x3C004000; add.rn.f16x2 %x, %v, %x;", lambda v, w, u: v + np.array([2, 1], np.float16)),
    ("mov.b32 %x, 0x3C003800; mul.rn.f16x2 %x, %v, %x;", lambda v, w, u: v * np.array([0.5, 1], np.float16)),
    ("mul.rn.f16x2 %x, %v, %w;", lambda v, w, u: v * w),
    ("add.rn.f16 %k, %l, %n; mov.b32 %x, {%k, %h};", lambda v, w, u: np.array([v[0] + w[1], v[1]])),
    ("mul.rn.f16 %k, %h, %m; mov.b32 %x, {%k, %h};", lambda v, w, u: np.array([v[1] * w[0], v[1]])),
    (
        "mov.f32 %f, 0f3F8CCCCD; cvt.rn.f16.f32 %k, %f; mov.b32 %x, {%k, %h};",
        lambda v, w, u: np.array([np.float16(1.1), v[1]]),
    ),
)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_packed_additions_and_products_compute_what_their_ptx_says(arch: str) -> None:
    stores = "".join(f"{line} st.global.cs.u32 [%made+{4 * i}], %x;\n" for i, (line, _) in enumerate(PACKED_RESULTS))
    cubin = CubinFile.read(assemble(f"{HALVES_OF}{stores}ret; }}".encode(), arch, find_toolchain()).data)
    used = {each.name for each in operands(cubin.words, architecture_named(arch)).opcodes}
    assert {"HADD2", "HMUL2"} <= used
    v, w, u = (np.array(each, np.float16) for each in ([1.25, -3.5], [0.1, 700], [-0.0, 2**-20]))
    made = np.zeros((len(PACKED_RESULTS), 2), dtype=np.float16)
    third = int(u.view(np.uint32)[0])
    emulate.run(cubin, (1, 1, 1), (1, 1, 1), 0, [np.array([v, w]), made, third - (third >> 31 << 32)])
    np.testing.assert_array_equal(bits(made), bits(np.array([value(v, w, u) for _, value in PACKED_RESULTS])))


@pytest.mark.parametrize(("pair", "data_type"), [("f16x2", "float16"), ("bf16x2", "bfloat16")])
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_a_conversion_to_16_bits_may_apply_a_relu(arch: str, pair: str, data_type: DataType) -> None:
    text = (
        HALVES_OF.replace("sm_75", "sm_80")
        + f"""
        mov.b32 %f, %v; cvt.rn.relu.{pair}.f32 %x, 0f00000000, %f; st.global.cs.u32 [%made], %x;
        mov.b32 %f, %w; cvt.rn.{pair}.f32 %x, 0f00000000, %f; st.global.cs.u32 [%made+4], %x; ret; }}"""
    )
    cubin = CubinFile.read(assemble(text.encode(), arch, find_toolchain()).data)
    values = np.array([1.1, -1.1, 0.0, -0.0, 2.0**-149, -(2.0**-149), np.inf, -np.inf, np.nan], np.float32)
    made = np.zeros((len(values), 4), dtype=np.uint16)
    emulate.run(cubin, (1, 1, 1), (len(values), 1, 1), 0, [np.stack([values, values], axis=1), made, 0])
    expected = from_float32(np.stack([np.where(values <= 0, 0, values), values], axis=1), data_type)
    np.testing.assert_array_equal(bits(made[:-1, ::2]), bits(expected)[:-1])
    assert np.isnan(to_float32(made[-1:, ::2].view(expected.dtype), data_type)).all()
