"""Kernel + architecture -> cubin, by ptxas; and several cubins -> one fat binary."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codegen.errors import ToolError
from codegen.toolchain import Toolchain, ToolLimits, run_tool

PTX_LIMIT_BYTES = 64 * 2**20
"""ptxas never finished a PTX of 361 MB (measurements.md); what is larger than this is not even tried."""


@dataclass(frozen=True, eq=False)
class Cubin:
    """Machine code for one architecture, with what ptxas reports of it."""

    data: bytes
    arch: str
    registers: int
    """Per thread."""
    spill_bytes: int
    """Stores and loads together."""
    seconds: float
    """What ptxas took."""


def ptxas_options(optimisation: int) -> tuple[str, ...]:
    """The options at an optimisation level, 0 to 3."""
    return (f"-O{optimisation}",)


def assemble(
    ptx: bytes, arch: str, toolchain: Toolchain, options: tuple[str, ...], limits: ToolLimits
) -> Cubin:
    """Assembles PTX. Raises ToolError (the PTX is at fault), ToolTimeout, ToolOutOfMemory or ToolCrashed.

    The command that such an error carries reads `kernel.ptx`, which is gone by then: the caller says how to get it.
    """
    command = f"{toolchain.ptxas} -arch={arch} {' '.join(options)} -v -o kernel.cubin kernel.ptx"
    if len(ptx) > PTX_LIMIT_BYTES:
        raise ToolError(
            f"the kernel's PTX has {len(ptx) / 2**20:.0f} MiB and ptxas is given at most {PTX_LIMIT_BYTES // 2**20}: "
            "prune the layer further or leave it out",
            command=command,
        )
    with tempfile.TemporaryDirectory(prefix="farm-assemble-") as name:
        folder = Path(name)
        (folder / "kernel.ptx").write_bytes(ptx)
        argv = [toolchain.ptxas, f"-arch={arch}", *options, "-v", "-o", "kernel.cubin", "kernel.ptx"]
        done = run_tool(argv, limits=limits, cwd=folder)
        data = (folder / "kernel.cubin").read_bytes()
    registers = re.search(r"Used (\d+) registers", done.stderr)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)
    return Cubin(data, arch, int(registers[1]) if registers else 0, sum(map(int, spills)), done.seconds)


def fat_binary(cubins: Mapping[str, bytes], toolchain: Toolchain, limits: ToolLimits) -> bytes:
    """One file that holds the cubins of several architectures; the driver picks."""
    with tempfile.TemporaryDirectory(prefix="farm-fatbinary-") as name:
        folder = Path(name)
        images = []
        for arch, data in cubins.items():
            (folder / f"{arch}.cubin").write_bytes(data)
            images.append(f"--image3=kind=elf,sm={arch.removeprefix('sm_')},file={arch}.cubin")
        run_tool([toolchain.fatbinary, "-64", "--create=all.fatbin", *images], limits=limits, cwd=folder)
        return (folder / "all.fatbin").read_bytes()
