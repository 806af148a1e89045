"""Cubins of ptxas, read and written back."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.errors import MachineCodeError
from codegen.sass.cubin import CubinFile
from codegen.sass.isa.encoding import OPCODE
from codegen.sass.isa.opcodes import EXIT
from codegen.target.arch import supported_archs
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from tests.toolchain.machine_cubins import HALVES, PLAIN, cubin_for
from tests.toolchain.slow_sources import straight_line

ARCHS = supported_archs(find_toolchain())
ONE_FORM = [arch for arch in ARCHS if int(arch.strip("sm_af")) < 100]
"""Architectures whose cubins have their code once."""


def without_frame_hints(data: bytes) -> bytes:
    """Without how far into the kernel its stack is set up: `.debug_frame` says so, to a debugger."""
    frame = next(section for section in CubinFile.read(data).sections if section.name == ".debug_frame")
    blank = bytearray(data)
    hints = slice(frame.offset + 12 + 36 + 12 + 24, frame.end)
    blank[hints] = bytes(len(blank[hints]))
    return bytes(blank)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_cubin_written_back_is_byte_for_byte_what_it_was(arch: str) -> None:
    data = cubin_for(PLAIN, arch)
    cubin = CubinFile.read(data)
    assert cubin.kernel == "conv2d"
    assert cubin.capability == int(arch.strip("sm_af"))
    assert cubin.with_words(cubin.words) == data
    if arch in ONE_FORM:
        assert cubin.with_code(cubin.words, np.arange(len(cubin.words) + 1)) == data


@pytest.mark.parametrize("arch", ARCHS)
def test_the_register_count_is_that_of_ptxas_report(arch: str) -> None:
    made = assemble(straight_line(300), arch, find_toolchain())
    assert CubinFile.read(made.data).registers == made.registers


@pytest.mark.parametrize("arch", ONE_FORM)
def test_a_cubin_given_another_cubins_code_is_that_cubin(arch: str) -> None:
    """Sizes, symbols, segments, exits and registers of a kernel with fewer weights, put right in the larger one."""
    large, small = (CubinFile.read(cubin_for(PLAIN, arch, density)) for density in (0.5, 0.1))
    assert small.code.size < large.code.size
    moved = np.zeros(len(large.words) + 1, dtype=np.int64)
    moved[-1] = len(small.words)
    exits = [np.flatnonzero(OPCODE.get(each.words) == EXIT) for each in (large, small)]
    moved[exits[0]] = exits[1]
    made = large.with_code(small.words, moved, small.registers)
    assert without_frame_hints(made) == without_frame_hints(small.data)


def test_code_that_a_cubin_holds_in_a_second_form_is_not_replaced_by_code_of_another_length() -> None:
    cubin = CubinFile.read(cubin_for(PLAIN, "sm_100"))
    with pytest.raises(MachineCodeError, match="second form"):
        cubin.with_code(cubin.words, np.arange(len(cubin.words) + 1))


def test_a_file_that_is_no_cubin_or_a_part_of_one_is_refused() -> None:
    data = cubin_for(HALVES, "sm_90")
    for wrong in (b"", b"\x7fELF", data[:200], data[: len(data) // 2], bytes(len(data))):
        with pytest.raises(MachineCodeError, match="cubin"):
            CubinFile.read(wrong)


def test_instructions_of_another_number_do_not_fit_in_the_place_of_the_old() -> None:
    cubin = CubinFile.read(cubin_for(PLAIN, "sm_90"))
    with pytest.raises(MachineCodeError, match="in the place of"):
        cubin.with_words(cubin.words[1:])
