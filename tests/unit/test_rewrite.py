"""The rewriter against hand-checked PTX and against a naive one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from codegen.errors import TemplateError
from codegen.ir.checkpoint import Weights
from codegen.ir.tiling import Part
from codegen.kernels import tiled
from codegen.kernels.placeholders import FIRST_BIAS, FIRST_WEIGHT, immediate
from codegen.kernels.weight_stream import full_placeholders, slots
from codegen.ptx.full_form import substitute
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template

GOLDEN = Path(__file__).parent.parent / "golden"
ROLLED = (GOLDEN / "rolled_template.ptx").read_text()
FULL = (GOLDEN / "full_template.ptx").read_text()
SHAPE = (3, 3, 2, 1)

GOLDEN_WEIGHTS = Weights(
    np.array(
        [
            [[[0.5], [0]], [[0], [-2]], [[0], [0]]],
            [[[0], [0]], [[0], [0]], [[0], [0]]],
            [[[1], [-0.0]], [[3], [0]], [[0], [1e-40]]],
        ],
        dtype=np.float32,
    ),
    np.array([0, 0.25, -1], dtype=np.float32),
)

weight_values = st.one_of(
    st.sampled_from([0.0, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0**-149, float(np.finfo(np.float32).max)]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)
any_weights = st.builds(
    Weights,
    hnp.arrays(np.float32, SHAPE, elements=weight_values),
    hnp.arrays(np.float32, SHAPE[0], elements=weight_values),
)


def bits(value: np.float32) -> str:
    return immediate(int(np.asarray(value, dtype=np.float32).view(np.uint32)))


def naive_streams(template: Template, weights: Weights) -> list[str]:
    """Every K group's instructions, one line at a time, as Algorithm 2 of Dong et al. says it."""
    lines = template.ptx.splitlines()
    label = next(i for i, line in enumerate(lines) if line.startswith("$L"))
    branch = next(i for i, line in enumerate(lines) if " bra" in line)
    turn = [line for line in lines[label + 1 : branch] if not line.startswith(".pragma")]
    tail = lines[branch + 1 : lines.index("ret;") + 1]
    group_outputs, chunk_channels = template.tiling.group_outputs, template.tiling.chunk_channels
    taps = [(0, [0]), (1, [1, 0]), (2, [1])]  # input row: kernel rows of output rows 0 and 1 that use it
    slots = [
        (k, c, r)
        for c in range(chunk_channels)
        for _, kernel_rows in taps
        for k in range(group_outputs)
        for r in kernel_rows
    ]

    def weight(slot: int, group: int, chunk: int) -> np.float32:
        k, c, r = slots[slot]
        k, c = k + group * group_outputs, c + chunk * chunk_channels
        return weights.kernel[k, c, r, 0] if k < SHAPE[0] and c < SHAPE[1] else np.float32(0)

    streams = []
    for group in range(2):
        out: list[str] = []
        for chunk in range(2):
            values = {immediate(FIRST_WEIGHT + slot): weight(slot, group, chunk) for slot in range(len(slots))}
            copy = []
            for line in turn:
                placeholder = next((p for p in re.findall(r"0f\w{8}", line) if p in values and "fma" in line), None)
                if placeholder is None:
                    copy.append(line)
                elif values[placeholder] != 0:
                    copy.append(line.replace(placeholder, bits(values[placeholder])))
            used = " ".join(line.split(",")[1] + "," for line in copy if line.startswith("fma"))
            for line in copy:
                load = re.match(r"ld\.shared\.f32\s+(%f\d+),", line)
                if load is None or f"{load[1]}," in used:
                    out.append(line)
        for line in tail:
            kernel = re.search(r"// farm\.(?:bias|store) (\d+)", line)
            if kernel is None:
                out.append(line)
                continue
            k = group * group_outputs + int(kernel[1])
            if k < SHAPE[0] and ("farm.store" in line or weights.bias[k] != 0):
                out.append(line.replace(immediate(FIRST_BIAS + int(kernel[1])), bits(weights.bias[k])))
        streams.append("\n".join(out))
    return streams


def test_the_rolled_kernel_is_the_one_checked_by_hand() -> None:
    assert rewrite(Template.from_ptx(ROLLED), GOLDEN_WEIGHTS).ptx.decode() == (GOLDEN / "rolled_kernel.ptx").read_text()


def test_the_full_kernel_is_the_one_checked_by_hand() -> None:
    assert rewrite(Template.from_ptx(FULL), GOLDEN_WEIGHTS).ptx.decode() == (GOLDEN / "full_kernel.ptx").read_text()


@given(any_weights)
def test_the_vectorised_rewriter_agrees_with_a_naive_one(weights: Weights) -> None:
    template = Template.from_ptx(ROLLED)
    kernel = rewrite(template, weights).ptx.decode()
    first, second = naive_streams(template, weights)
    assert kernel.count(first) == 1
    assert kernel.endswith(f"$from1:\n{second}\n}}\n")
    head = ROLLED[: ROLLED.index("$L__BB0_1")].replace("0; // farm.first_group", "0;")
    assert kernel.startswith(head)
    assert len(kernel) - len(head) - len(first) - len(second) < 150  # nothing but the branch between the groups


@given(any_weights, st.sampled_from([ROLLED, FULL]))
def test_kept_and_deleted_multiply_adds_add_up_and_match_the_text(weights: Weights, text: str) -> None:
    template = Template.from_ptx(text)
    kernel = rewrite(template, weights)
    assert kernel.ptx.decode().count("fma.rn.f32") == kernel.fmas_kept
    assert kernel.fmas_kept == template.tiling.rows * weights.nonzeros
    assert kernel.fmas_kept + kernel.fmas_deleted == template.tiling.rows * weights.kernel.size


def test_placeholders_put_back_for_themselves_keep_every_instruction() -> None:
    template = Template.from_ptx(FULL)
    kernel_bits, bias_bits = full_placeholders(template.spec)
    identity = Weights(kernel_bits.view(np.float32), bias_bits.view(np.float32))
    kernel = rewrite(template, identity)
    assert kernel.fmas_deleted == 0
    # Constants go from registers of their own back into the instructions; nothing else changes.
    without_constants = [line for line in FULL.splitlines() if not re.match(r"mov\.f32\s+%f\d+, 0f3F", line)]
    assert len(kernel.ptx.decode().splitlines()) == len(without_constants)


def test_a_rolled_template_rewritten_with_its_own_placeholders_repeats_its_loop_unchanged() -> None:
    template = Template.from_ptx(ROLLED)
    indices = slots(tiled(template.spec, template.tiling)).weights
    once = np.zeros((template.tiling.group_outputs, template.tiling.chunk_channels, 2, 1), dtype=np.uint32)
    # A weight that several rows of a thread use has as many placeholders: the last of them stands for all.
    once.reshape(-1)[indices] = FIRST_WEIGHT + np.arange(len(indices))
    kernel = np.zeros(SHAPE, dtype=np.float32)
    kernel[: once.shape[0], : once.shape[1]] = once.view(np.float32)
    text = rewrite(template, Weights(kernel, np.zeros(3, dtype=np.float32))).ptx.decode()
    loop = ROLLED[ROLLED.index("// farm.body.begin") : ROLLED.index("// farm.body.end")]
    same_weight = once.reshape(-1)[indices]

    def for_all(match: re.Match[str]) -> str:
        return immediate(int(same_weight[int(match[1], 16) - FIRST_WEIGHT]))

    unchanged = re.sub(r"0f(3F8\w{5})", for_all, loop)
    assert text.count(unchanged) == 1


@given(any_weights)
def test_the_parts_of_a_layer_hold_the_streams_of_the_whole(weights: Weights) -> None:
    template = Template.from_ptx(ROLLED)
    whole = rewrite(template, weights)
    streams = naive_streams(template, weights)
    head = ROLLED[: ROLLED.index("$L__BB0_1")]
    kernels = [rewrite(template, weights, Part(group, group + 1)) for group in range(2)]
    for group, kernel in enumerate(kernels):
        own = head.replace("0; // farm.first_group", f"{group};")
        assert kernel.ptx.decode() == f"{own}{streams[group]}\n}}\n"
        assert kernel.launch.grid_at(5) == (*whole.launch.grid_at(5)[:2], 1)
    assert sum(kernel.fmas_kept for kernel in kernels) == whole.fmas_kept
    assert sum(kernel.fmas_deleted for kernel in kernels) == whole.fmas_deleted
    assert rewrite(template, weights, Part(0, 2)).ptx == whole.ptx


def test_a_full_template_is_one_kernel_and_refuses_a_part() -> None:
    template = Template.from_ptx(FULL)
    assert rewrite(template, GOLDEN_WEIGHTS, Part(0, 2)).ptx == rewrite(template, GOLDEN_WEIGHTS).ptx
    with pytest.raises(ValueError, match="leave out the part"):
        rewrite(template, GOLDEN_WEIGHTS, Part(0, 1))


def test_weights_of_another_shape_are_refused() -> None:
    other = Weights(np.zeros((3, 3, 2, 2), dtype=np.float32), np.zeros(3, dtype=np.float32))
    with pytest.raises(ValueError, match="for a template of"):
        rewrite(Template.from_ptx(ROLLED), other)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.split("\n", 1)[1], "not a template"),
        (lambda text: text.replace("ret;", "bra $L__BB0_1;\nret;"), "one loop and one group"),
        (lambda text: text.replace("// farm.body.begin\n", ""), "body markers"),
        (lambda text: re.sub(r"fma\.rn\.f32 .*3F800003.*\n", "", text), "not consecutive"),
        (lambda text: re.sub(r"(fma\.rn\.f32 .*3F800003.*\n)", r"\1\1", text), "stands twice"),
        (lambda text: re.sub(r"\{.*// farm\.store 1\n", "", text, count=1), "not stored once"),
        (lambda text: re.sub(r"(fma\.rn\.f32 )(%f\d+)(.*3F800003)", r"\1%f0\3", text), "not in place"),
        (lambda text: text.replace("// farm.bias 1", "// farm.bias 0"), "another output channel's line"),
        (lambda text: text.replace(" // farm.first_group", ""), "exactly one farm.first_group"),
        (lambda text: re.sub(r"ld\.shared\.f32", "ld.global.f32", text, count=1), "not loaded from shared"),
    ],
)
def test_a_template_without_the_form_the_rewriter_needs_is_refused(damage: Callable[[str], str], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        Template.from_ptx(damage(ROLLED))


def other_stream(text: str) -> str:
    """A full template whose placeholders another generator has drawn."""
    return re.sub(r"0f3F(\w{6})", lambda match: immediate(0x3F800000 + (int(match[1], 16) + 0x123457) % 2**23), text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (other_stream, "21 of 21 placeholders are not used 2 times"),
        (lambda text: re.sub(r"fma\.rn\.f32 \t%f9,.*\n", "", text), "1 of 21 placeholders"),
        (lambda text: re.sub(r"(fma\.rn\.f32 \t)%f9(,.*\n)", r"\1%f9\2\1%f9999\2", text), "1 of 21 placeholders"),
        (
            lambda text: text.replace("fma.rn.f32 \t%f9,", "@%p3 fma.rn.f32 \t%f9,"),
            "where none can be put in: @%p3 fma",
        ),
        (lambda text: text.replace("mov.f32 \t%f8,", "@%p3 mov.f32 \t%f8,"), "where none can be put in: @%p3 mov"),
        (lambda text: text.replace("mov.f32 v,%f1;", "mov.f32 v,%f8;"), "where none can be put in: {"),
    ],
)
def test_a_full_template_without_every_placeholder_in_its_place_is_refused(
    damage: Callable[[str], str], message: str
) -> None:
    assert damage(FULL) != FULL
    with pytest.raises(TemplateError, match=message):
        Template.from_ptx(damage(FULL))


@pytest.mark.parametrize(
    "first_line", [f"// farm.template {text}" for text in ("{", "{}", "[]", '{"spec": {"operator": "x"}}')]
)
def test_a_template_that_does_not_say_what_it_was_made_for_is_refused(first_line: str) -> None:
    with pytest.raises(TemplateError, match="not a template of this version"):
        Template.from_ptx(f"{first_line}\n{ROLLED.partition(chr(10))[2]}")


ONE = 0x3F800001
OTHER = 0x3F800002


@pytest.mark.parametrize("weight", [0, 0x3F000000])
@pytest.mark.parametrize(
    "ptx",
    [
        "@%p1 fma.rn.f32 %f2, %f3, 0f3F800001, %f1;",
        "@!%p1 add.f32 %f2, %f1, 0f3F800001;",
        "@%p1 mov.f32 %f2, 0f3F800001;\nfma.rn.f32 %f4, %f3, %f2, %f1;",
        "fma.rn.f32 %f2, %f3, %f4, 0f3F800001;",
        "fma.rn.f32 %f2, %f3, 0f3F800001, 0f3F800001;",
        "st.global.f32 [%rd1], 0f3F800001;",
        "setp.lt.f32 %p1, %f1, 0f3F800001;",
        "mov.f32 %f2, 0f3F800001;\nmov.f32 %f2, 0f00000000;\nfma.rn.f32 %f4, %f3, %f2, %f1;",
        "mov.f32 %f2, 0f3F800001;\n{ st.global.f32 [%rd1],%f2; }",
    ],
)
def test_a_weight_in_any_other_place_than_a_multiply_add_or_sum_is_refused(ptx: str, weight: int) -> None:
    with pytest.raises(TemplateError, match="where none can be put in"):
        substitute(f"{ptx}\n", {ONE: weight})


@pytest.mark.parametrize("uses", [1, 3])
def test_a_placeholder_that_is_used_more_or_less_often_than_it_should_be_is_refused(uses: int) -> None:
    twice = "fma.rn.f32 %f2, %f3, 0f3F800001, %f1;\nfma.rn.f32 %f4, %f3, 0f3F800001, %f2;\n"
    assert substitute(twice, {ONE: 0}, 2)[1:] == (0, 2)
    with pytest.raises(TemplateError, match=f"1 of 1 placeholders are not used {uses} times"):
        substitute(twice, {ONE: 0}, uses)


def test_no_weights_are_found_in_no_placeholders_only() -> None:
    ptx = "fma.rn.f32 %f2, %f3, 0f3F800007, %f1;\n"
    with pytest.raises(TemplateError, match="2 of 2 placeholders"):
        substitute(ptx, {ONE: 0, OTHER: 0})


def test_a_result_that_is_also_assigned_elsewhere_is_copied_not_renamed() -> None:
    branch = "@%p1 bra $L1;\nfma.rn.f32 %f2, %f3, 0f3F800001, %f1;\nbra.uni $L2;\n$L1:\nmov.f32 %f2, %f9;\n$L2:\n"
    text, _, deleted = substitute(f"{branch}st.global.f32 [%rd1], %f2;\n", {ONE: 0})
    assert deleted == 1
    assert "mov.f32 %f2,%f1;" in text.splitlines()
    assert text.endswith("st.global.f32 [%rd1], %f2;\n")


def test_an_addend_assigned_twice_is_copied_not_renamed() -> None:
    ptx = "mov.f32 %f1, %f9;\nmov.f32 %f1, %f8;\nfma.rn.f32 %f2, %f3, 0f3F800001, %f1;\nst.global.f32 [%rd1], %f2;\n"
    text, kept, deleted = substitute(ptx, {0x3F800001: 0})
    assert (kept, deleted) == (0, 1)
    assert text == "mov.f32 %f1, %f9;\nmov.f32 %f1, %f8;\nmov.f32 %f2,%f1;\nst.global.f32 [%rd1], %f2;\n"


def test_a_chain_of_deleted_multiply_adds_leaves_its_first_addend() -> None:
    lines = [f"fma.rn.f32 %f{i + 1}, %f9, 0f{0x3F800001 + i:08X}, %f{i};" for i in range(1, 5)]
    ptx = "\n".join([*lines, "st.global.f32 [%rd1], %f5;"]) + "\n"
    values = {0x3F800001 + i: 0 for i in range(1, 5)}
    assert substitute(ptx, values)[0] == "st.global.f32 [%rd1], %f1;\n"


def test_the_rewriter_runs_as_a_command(tmp_path: Path) -> None:
    np.save(tmp_path / "weights.npy", GOLDEN_WEIGHTS.kernel)
    np.save(tmp_path / "bias.npy", GOLDEN_WEIGHTS.bias)
    command = [sys.executable, "-m", "codegen.ptx.rewrite", GOLDEN / "rolled_template.ptx"]
    files = [tmp_path / "weights.npy", tmp_path / "bias.npy"]
    done = subprocess.run([*command, *files], capture_output=True, check=True)
    assert done.stdout == (GOLDEN / "rolled_kernel.ptx").read_bytes()
    assert b"10 multiply-adds kept, 26 deleted" in done.stderr
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
