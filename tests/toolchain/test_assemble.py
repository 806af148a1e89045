"""Assembly of PTX by the real ptxas: its report, and every way it can fail."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from codegen.errors import ToolCrashed, ToolError, ToolOutOfMemory, ToolTimeout
from codegen.toolchain.ptxas import assemble, ptxas_options
from codegen.toolchain.tools import Toolchain, ToolLimits, find_toolchain
from tests.toolchain.slow_sources import straight_line
from tests.toolchain.test_toolchain import processes_in, wait_until

PTX = straight_line(256)
LIMITS = ToolLimits(60)
ELF_FLAGS_OFFSET = 48


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain()


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for each test's temporary files, which must be empty at its end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize(("arch", "code"), [("sm_75", 75), ("sm_80", 80), ("sm_90a", 90), ("sm_120", 120)])
def test_a_cubin_is_an_elf_file_for_its_architecture(arch: str, code: int, toolchain: Toolchain) -> None:
    cubin = assemble(PTX, arch, toolchain, limits=LIMITS)
    assert cubin.arch == arch
    assert cubin.data.startswith(b"\x7fELF")
    flags = cubin.data[ELF_FLAGS_OFFSET : ELF_FLAGS_OFFSET + 4]
    assert code in flags


def test_ptxas_is_deterministic(toolchain: Toolchain) -> None:
    first, again = (assemble(straight_line(500), "sm_90", toolchain).data for _ in range(2))
    assert first == again
    assert first != assemble(straight_line(501), "sm_90", toolchain).data


def test_registers_spills_and_time_are_those_of_ptxas_report(toolchain: Toolchain) -> None:
    roomy = assemble(straight_line(8_000), "sm_90", toolchain)
    tight = assemble(straight_line(8_000), "sm_90", toolchain, ("-O3", "-maxrregcount=64"))
    assert roomy.registers > 128
    assert roomy.spill_bytes == 0
    assert tight.registers == 64
    assert tight.spill_bytes > 0
    assert tight.seconds > 0.01


def test_options_reach_ptxas(toolchain: Toolchain) -> None:
    assert assemble(PTX, "sm_90", toolchain, ptxas_options(0)).data != assemble(PTX, "sm_90", toolchain).data


def test_an_error_in_the_ptx_names_its_line_and_the_command(
    toolchain: Toolchain, tmp_path: Path, temporary_folder: Path
) -> None:
    lines = PTX.decode().splitlines()
    lines.insert(20, "frobnicate.f32 %f1;")
    ptx = "\n".join(lines).encode()
    with pytest.raises(ToolError, match=r"kernel.ptx, line 21; error .*'frobnicate'") as caught:
        assemble(ptx, "sm_90", toolchain)
    (tmp_path / "kernel.ptx").write_bytes(ptx)
    again = subprocess.run(caught.value.command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 255
    assert again.stderr.strip() == caught.value.stderr
    assert not any(temporary_folder.iterdir())


def test_ptx_too_new_for_its_architecture_is_an_input_error(toolchain: Toolchain) -> None:
    with pytest.raises(ToolError, match="is higher than default SM version"):
        assemble(PTX.replace(b".target sm_75", b".target sm_80"), "sm_75", toolchain)


def test_ptx_without_a_kernel_is_a_fault_of_the_input(toolchain: Toolchain) -> None:
    with pytest.raises(ToolError, match=r"no kernel: the PTX has no \.entry"):
        assemble(b".version 8.0\n.target sm_75\n.address_size 64\n", "sm_90", toolchain)


def test_ptx_beyond_the_size_limit_is_refused_before_ptxas_runs(tmp_path: Path) -> None:
    nothing = Toolchain(tmp_path / "nvcc", tmp_path / "ptxas")
    with pytest.raises(ToolError, match=r"has 1[0-9],[0-9]{3} bytes, more than the 10,000"):
        assemble(straight_line(100), "sm_90", nothing, size_limit_bytes=10_000)


def test_ptxas_is_ended_at_the_time_limit_and_leaves_nothing(toolchain: Toolchain, temporary_folder: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ToolTimeout, match=r"ptxas ran into its time limit of 0\.3 s"):
        assemble(straight_line(80_000), "sm_90", toolchain, limits=ToolLimits(0.3))
    assert time.monotonic() - start < 3
    wait_until(lambda: not processes_in(temporary_folder), seconds=5)
    assert not any(temporary_folder.iterdir())


@pytest.mark.parametrize("megabytes", [50, 150])
def test_the_memory_limit_is_told_apart_from_a_fault_of_the_input(
    megabytes: int, toolchain: Toolchain, temporary_folder: Path
) -> None:
    with pytest.raises(ToolOutOfMemory, match=f"ptxas needs more than its limit of {megabytes} MiB"):
        assemble(straight_line(40_000), "sm_90", toolchain, limits=ToolLimits(60, megabytes * 2**20))
    assert not any(temporary_folder.iterdir())


def test_a_cubin_truncated_by_a_full_disk_is_rejected(tmp_path: Path) -> None:
    """A stub for ptxas on a full disk, where the real one succeeds too."""
    ptxas = tmp_path / "ptxas"
    real = find_toolchain().ptxas
    ptxas.write_text(f'#!/bin/sh\n{real} "$@" && truncate -s -1 kernel.cubin\n')
    ptxas.chmod(0o755)
    with pytest.raises(ToolCrashed, match="an incomplete cubin: is the disk full"):
        assemble(PTX, "sm_90", Toolchain(tmp_path / "nvcc", ptxas))


PARENT = """
import os, sys, tempfile
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
tempfile.tempdir = sys.argv[1]
assemble(sys.stdin.buffer.read(), "sm_90", find_toolchain())
"""


def test_a_killed_worker_leaves_no_ptxas_and_no_ptx(temporary_folder: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, temporary_folder], stdin=subprocess.PIPE)
    assert parent.stdin is not None
    parent.stdin.write(straight_line(80_000))
    parent.stdin.close()
    try:
        wait_until(lambda: "ptxas" in processes_in(temporary_folder).values())
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not processes_in(temporary_folder), seconds=5)
    wait_until(lambda: not any(temporary_folder.iterdir()), seconds=5)
