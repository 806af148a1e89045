"""NVIDIA's disassembler reads the words as this program does: those of ptxas, and those made without it."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from codegen.ir.tiling import Part
from codegen.kernels import stream_count
from codegen.sass.assemble.assembler import DirectAssembler
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.architectures import architecture_of
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.encoding import DESTINATION, IMMEDIATE, OPCODE, SOURCE_A, SOURCE_C
from codegen.sass.isa.opcodes import (
    FFMA_IMMEDIATE,
    HFMA2_IMMEDIATE,
    HFMA2_MMA_IMMEDIATE,
    PREDICATES,
    UNIFORM_PREDICATES,
    UNIFORM_REGISTERS,
)
from codegen.sass.isa.operands import Accesses, operands
from codegen.target.arch import supported_archs
from codegen.toolchain.tools import find_toolchain
from tests.toolchain.machine_cubins import HALVES, PLAIN, cubin_for, drawn_weights, template_for
from tests.toolchain.operator_cases import CASES
from tests.toolchain.test_sass_assembler import ASSEMBLED, skeleton_of
from tests.toolchain.test_sass_assembler import HALVES as ASSEMBLED_HALVES

NVDISASM = find_toolchain().ptxas.parent / "nvdisasm"
"""The wheel puts it beside ptxas."""
ARCHS = [arch for arch in supported_archs(find_toolchain()) if arch[-1].isdigit()]
SPLIT = ("a cluster of two, kernels that do not divide", "a cluster, two rows a thread, strides and uneven padding")
KINDS = (
    *(PLAIN, HALVES, SPLIT[0]),
    *("whole rows copied by fours", "whole rows, bfloat16", "float16 linear, a hard sigmoid"),
)
_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s+/\* 0x([0-9a-f]{16}) \*/$")
_SECOND = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/$")
_STARTS = {"R": 0, "P": PREDICATES, "UR": UNIFORM_REGISTERS, "UP": UNIFORM_PREDICATES}
_HFMA2 = re.compile(
    r"HFMA2(\.MMA)? R(\d+), R(\d+)(?:\.reuse)?, (-?[\d.e+-]+), (-?[\d.e+-]+), R(?:(\d+)|Z(?:\.H0_H0)?)$"
)
_FFMA = re.compile(r"FFMA R(\d+), R(\d+)(?:\.reuse)?, (-?[\d.e+-]+), R(\d+|Z)")

pytestmark = pytest.mark.skipif(not NVDISASM.is_file(), reason="nvdisasm comes with the development tools")


@pytest.mark.parametrize("name", KINDS)
def test_words_of_an_opcode_have_the_same_operands_be_they_few_or_many(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = CubinFile.read(cubin_for(name, "sm_90")).words
    found = []
    for many in (0, len(words)):
        monkeypatch.setattr("codegen.sass.isa.operands.MANY", many)
        found.append(operands(words, SM_90))
    for few, each in ((found[1].reads, found[0].reads), (found[1].writes, found[0].writes)):
        assert np.array_equal(few.keys, each.keys)


def disassembled(data: bytes, folder: Path) -> tuple[list[str], list[tuple[int, int]]]:
    """The text of each instruction, and its two halves."""
    (folder / "kernel.cubin").write_bytes(data)
    command = [NVDISASM, "-c", "-hex", folder / "kernel.cubin"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    texts, words = [], []
    for first, second in pairwise(lines):
        if (low := _LINE.match(first)) and (high := _SECOND.match(second)):
            texts.append(low[2])
            words.append((int(low[3], 16), int(high[1], 16)))
    return texts, words


def directly(name: str) -> bytes:
    whole = Part(0, stream_count(CASES[name].spec, CASES[name].tiling))
    template, weights = template_for(name, CASES[name].virtual_arch), drawn_weights(name, 0.3, 1)
    return DirectAssembler.of(template, skeleton_of(name).data, "sm_90").assemble(weights, whole).data


def named(text: str) -> set[int]:
    """The registers in an instruction's text; of several consecutive ones it names the first."""
    found = {_STARTS[kind] + int(number) for kind, number in re.findall(r"\b(UR|UP|R|P)(\d+)\b", text)}
    if match := re.search(r"\bP2R .*0x([0-9a-f]+)$", text):
        found |= {PREDICATES + i for i in range(7) if int(match[1], 16) >> i & 1}
    return found


def by_word(accesses: Accesses, count: int) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(count)]
    for word, resource in zip(accesses.word.tolist(), accesses.resource.tolist(), strict=True):
        found[word].add(resource)
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_the_words_of_a_cubin_are_those_that_nvdisasm_finds(arch: str, tmp_path: Path) -> None:
    data = cubin_for(PLAIN, arch)
    _, words = disassembled(data, tmp_path)
    np.testing.assert_array_equal(CubinFile.read(data).words, np.array(words, dtype=np.uint64))


@pytest.mark.slow
@pytest.mark.parametrize("data", [*KINDS, *(f"directly: {name}" for name in ASSEMBLED + ASSEMBLED_HALVES + SPLIT)])
def test_the_registers_of_every_word_are_those_that_nvdisasm_names(data: str, tmp_path: Path) -> None:
    direct = data.removeprefix("directly: ")
    check_registers(cubin_for(data, "sm_90") if direct == data else directly(direct), tmp_path)


def check_registers(code: bytes, folder: Path) -> None:
    """Asserts that nvdisasm finds the words of a cubin, and the registers of each."""
    texts, _ = disassembled(code, folder)
    cubin = CubinFile.read(code)
    words = cubin.words
    assert len(texts) == len(words)
    used = operands(words, architecture_of(cubin.capability))
    ours = [a | b for a, b in zip(*(by_word(each, len(words)) for each in (used.reads, used.writes)), strict=True)]
    for text, resources in zip(texts, ours, strict=True):
        theirs = named(text)
        assert theirs <= resources, text
        several = re.search(r"\.64|\.128|WIDE|IMAD\.HI|\b(LD|LDG|STG)\.E|desc|CS2R", text)
        assert several or resources == theirs, text


@pytest.mark.parametrize("name", ASSEMBLED + SPLIT)
def test_multiply_adds_made_without_ptxas_read_as_they_were_meant(name: str, tmp_path: Path) -> None:
    data = directly(name)
    texts, _ = disassembled(data, tmp_path)
    words = CubinFile.read(data).words
    adds = np.flatnonzero(OPCODE.get(words) == FFMA_IMMEDIATE)
    assert len(adds)
    for place in adds.tolist():
        word = words[place : place + 1]
        if int(SOURCE_A.get(word)[0]) == 255:
            assert texts[place].startswith("FFMA R")
            continue
        match = _FFMA.search(texts[place])
        assert match, texts[place]
        assert int(match[1]) == DESTINATION.get(word)[0]
        assert int(match[2]) == SOURCE_A.get(word)[0]
        assert np.float32(match[3]) == IMMEDIATE.get(word).astype(np.uint32).view(np.float32)[0]
        assert (255 if match[4] == "Z" else int(match[4])) == SOURCE_C.get(word)[0]


@pytest.mark.parametrize("name", ["float16, added up in float32", "float16, transposed, added up in float16"])
def test_packed_multiply_adds_made_without_ptxas_read_as_they_were_meant(name: str, tmp_path: Path) -> None:
    data = directly(name)
    texts, _ = disassembled(data, tmp_path)
    words = CubinFile.read(data).words
    opcodes = OPCODE.get(words)
    adds = np.flatnonzero(np.isin(opcodes, (HFMA2_IMMEDIATE, HFMA2_MMA_IMMEDIATE)) & (SOURCE_A.get(words) != 255))
    assert len(adds)
    for place in adds.tolist():
        word = words[place : place + 1]
        match = _HFMA2.search(texts[place])
        assert match, texts[place]
        assert bool(match[1]) == (opcodes[place] == HFMA2_MMA_IMMEDIATE)
        assert int(match[2]) == DESTINATION.get(word)[0]
        assert int(match[3]) == SOURCE_A.get(word)[0]
        upper, lower = (int(IMMEDIATE.get(word)[0]) >> shift & 0xFFFF for shift in (16, 0))
        assert [np.float16(match[4]), np.float16(match[5])] == [
            np.uint16(each).view(np.float16) for each in (upper, lower)
        ]
        assert int(match[6] or 255) == SOURCE_C.get(word)[0]


def test_float32_sums_of_packed_ones_read_as_they_were_meant(tmp_path: Path) -> None:
    texts, _ = disassembled(directly("float16, long sums of groups"), tmp_path)
    halves = [text for text in texts if re.fullmatch(r"HADD2\.F32 R\d+, -RZ, R\d+\.H([01])_H\1", text)]
    sums = [text for text in texts if re.fullmatch(r"FADD R(\d+), R(\1|Z), R\d+", text)]
    assert len(halves) == len(sums) > 0
