"""A cubin that is to know where its code lies keeps all that it had, and has a variable that becomes the address."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from codegen.sass.cubin import CubinFile
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import Toolchain, ToolLimits, find_toolchain
from farm.cuda.code_address import VARIABLE, with_address

PTX = """.version 8.8
.target {target}
.address_size 64
.visible .entry {name}(.param .u64 given) {{
    .reg .b64 %at; .reg .f32 %x;
    ld.param.u64 %at, [given]; ld.global.f32 %x, [%at]; add.f32 %x, %x, 0f3F800000; st.global.f32 [%at], %x; ret;
}}
"""
OTHER = ".visible .global .align 8 .u64 there = 7;\n"


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain()


@pytest.fixture
def cubin(toolchain: Toolchain, request: pytest.FixtureRequest) -> bytes:
    """A cubin for the architecture that the test names."""
    return made(PTX.format(target=request.param, name="conv2d"), request.param, toolchain)


def made(ptx: str, arch: str, toolchain: Toolchain) -> bytes:
    return assemble(ptx.encode(), arch, toolchain, (), ToolLimits(60)).data


@pytest.mark.parametrize("cubin", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"], indirect=True)
def test_the_code_is_as_it_was_and_so_is_all_that_is_said_of_it(
    cubin: bytes, toolchain: Toolchain, tmp_path: Path
) -> None:
    found = with_address(cubin)
    assert found is not None
    before, after = CubinFile.read(cubin), CubinFile.read(found[0])
    assert found[1] == before.code.size
    assert (after.words == before.words).all()
    assert after.attributes == before.attributes
    assert after.code == before.code
    old = {each.name: cubin[each.offset : each.end] for each in before.sections}
    new = {each.name: found[0][each.offset : each.end] for each in after.sections}
    assert set(new) - set(old) == {".nv.global.init", ".rela.nv.global.init"}
    for name, content in old.items():
        assert new[name].startswith(content)
        assert new[name] == content or name in (".symtab", ".strtab", ".shstrtab")


@pytest.mark.parametrize("cubin", ["sm_90"], indirect=True)
def test_the_variable_is_relocated_to_the_kernel(cubin: bytes) -> None:
    found = with_address(cubin)
    assert found is not None
    file = CubinFile.read(found[0])
    sections = {each.name: each for each in file.sections}

    def content(name: str) -> bytes:
        return file.data[sections[name].offset : sections[name].end]

    def name(symbol: int) -> str:
        (start,) = struct.unpack_from("<I", content(".symtab"), 24 * symbol)
        return content(".strtab")[start:].split(b"\0")[0].decode()

    place, what, addend = struct.unpack("<QQq", content(".rela.nv.global.init"))
    assert (place, addend, what & 0xFFFFFFFF) == (0, 0, 2)
    assert name(what >> 32) == "conv2d"
    variable = len(content(".symtab")) // 24 - 1
    assert name(variable) == VARIABLE
    _, kind, _, section, value, size = struct.unpack_from("<IBBHQQ", content(".symtab"), 24 * variable)
    assert (kind, value, size) == (0x11, 0, 8)
    assert section == sections[".nv.global.init"].index
    assert sections[".rela.nv.global.init"].info == section
    assert content(".nv.global.init") == bytes(8)


@pytest.mark.parametrize("cubin", ["sm_90"], indirect=True)
def test_nvidias_disassembler_reads_it_as_before(cubin: bytes, toolchain: Toolchain, tmp_path: Path) -> None:
    found = with_address(cubin)
    assert found is not None
    nvdisasm = toolchain.ptxas.with_name("nvdisasm")
    if not nvdisasm.exists():
        pytest.skip("needs nvdisasm")
    texts = []
    for name, data in (("before", cubin), ("after", found[0])):
        (tmp_path / name).write_bytes(data)
        done = subprocess.run([nvdisasm, "-c", tmp_path / name], capture_output=True, text=True, check=True)
        texts.append(done.stdout)
    assert texts[1].startswith(texts[0].split("//--------------------- SYMBOLS")[0].rstrip())


def test_what_is_not_a_cubin_of_one_kernel_without_variables_is_left_alone(toolchain: Toolchain) -> None:
    text = PTX.format(target="sm_90", name="one")
    head, entry = text.split(".visible", 1)
    two = made(text + ".visible" + entry.replace("one", "two"), "sm_90", toolchain)
    own = made(head + OTHER + ".visible" + entry, "sm_90", toolchain)
    whole = made(text, "sm_90", toolchain)
    assert with_address(whole)
    for data in (
        two,
        own,
        text.encode(),
        b"",
        b"\x7fELF",
        *(whole[:size] for size in (63, 64, 1000, len(whole) - 900)),
    ):
        assert with_address(data) is None
