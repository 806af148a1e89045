"""Cubins of ptxas, read and written back."""

from __future__ import annotations

import struct

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
SECOND_FORM = (".nv.capmerc.", ".nv.merc.")


def without_frame_hints(data: bytes) -> bytes:
    """Without how far into the kernel its stack is set up: `.debug_frame` says so, to a debugger."""
    frame = next(section for section in CubinFile.read(data).sections if section.name == ".debug_frame")
    blank = bytearray(data)
    hints = slice(frame.offset + 12 + 36 + 12 + 24, frame.end)
    blank[hints] = bytes(len(blank[hints]))
    return bytes(blank)


def program_headers(data: bytes) -> list[tuple[int, ...]]:
    (first,), (count,) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<H", data, 56)
    return [struct.unpack_from("<IIQQQQQQ", data, first + 56 * i) for i in range(count)]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_cubin_written_back_is_byte_for_byte_what_it_was(arch: str) -> None:
    data = cubin_for(PLAIN, arch)
    cubin = CubinFile.read(data)
    assert cubin.kernel == "conv2d"
    assert cubin.capability == int(arch.strip("sm_af"))
    assert cubin.with_words(cubin.words) == data
    once = cubin if int(arch.strip("sm_af")) < 100 else cubin.without_second_form
    assert cubin.with_code(cubin.words, np.arange(len(cubin.words) + 1)) == once.data


@pytest.mark.parametrize("arch", ARCHS)
def test_the_register_count_is_that_of_ptxas_report(arch: str) -> None:
    made = assemble(straight_line(300), arch, find_toolchain())
    assert CubinFile.read(made.data).registers == made.registers


@pytest.mark.parametrize("arch", ARCHS)
def test_a_cubin_given_another_cubins_code_is_that_cubin(arch: str) -> None:
    """Sizes, symbols, segments, exits and registers of a kernel with fewer weights, put right in the larger one."""
    large, small = (CubinFile.read(cubin_for(PLAIN, arch, density)) for density in (0.5, 0.1))
    assert small.code.size < large.code.size
    moved = np.zeros(len(large.words) + 1, dtype=np.int64)
    moved[-1] = len(small.words)
    exits = [np.flatnonzero(OPCODE.get(each.words) == EXIT) for each in (large, small)]
    moved[exits[0]] = exits[1]
    made = large.with_code(small.words, moved, small.registers)
    expected = small.with_code(small.words, np.arange(len(small.words) + 1))
    assert without_frame_hints(made) == without_frame_hints(expected)


@pytest.mark.parametrize("arch", ["sm_100", "sm_103", "sm_120"])
def test_code_of_another_length_takes_nothing_of_the_second_form_along(arch: str) -> None:
    """All other sections, the symbols and the segments stay as they are."""
    cubin = CubinFile.read(cubin_for(PLAIN, arch))
    once = cubin.without_second_form
    kept = [each for each in cubin.sections if not each.name.startswith(SECOND_FORM)]
    assert list(once.sections) == kept
    assert len(kept) < len(cubin.sections)
    for each in kept:
        assert once.data[each.offset : each.end] == cubin.data[each.offset : each.end]
    loaded, of_whole = (program_headers(each.data) for each in (once, cubin))
    assert [each[:2] for each in loaded] == [each[:2] for each in of_whole]
    assert loaded[2:] == of_whole[2:]  # the first two are the table itself
    assert {offset for _, _, offset, *_ in loaded[:2]} == {struct.unpack_from("<Q", once.data, 32)[0]}


def test_a_second_form_that_does_not_come_last_is_refused() -> None:
    data = bytearray(cubin_for(PLAIN, "sm_100"))
    names = next(each for each in CubinFile.read(bytes(data)).sections if each.name == ".shstrtab")
    place = data.index(b".nv.merc.symtab", names.offset)
    data[place : place + 9] = b".nv.other"
    with pytest.raises(MachineCodeError, match="second form"):
        _ = CubinFile.read(bytes(data)).without_second_form


def test_a_file_that_is_no_cubin_or_a_part_of_one_is_refused() -> None:
    data = cubin_for(HALVES, "sm_90")
    for wrong in (b"", b"\x7fELF", data[:200], data[: len(data) // 2], bytes(len(data))):
        with pytest.raises(MachineCodeError, match="cubin"):
            CubinFile.read(wrong)


def test_instructions_of_another_number_do_not_fit_in_the_place_of_the_old() -> None:
    cubin = CubinFile.read(cubin_for(PLAIN, "sm_90"))
    with pytest.raises(MachineCodeError, match="in the place of"):
        cubin.with_words(cubin.words[1:])
