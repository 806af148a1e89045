"""Kernel + architecture -> cubin, by ptxas; and several cubins -> one fat binary."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from codegen.errors import ToolchainError, ToolCrashed, ToolError
from codegen.toolchain.temp_folders import ScratchFolder
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain, ToolLimits, run_tool

PTX_LIMIT_BYTES = 64 * 2**20
"""ptxas never finished a PTX of 361 MB; what is larger than this is not even tried."""
_ELF_HEADER_BYTES = 64


MOST_LEVEL = 3
CLUSTERED_LEVEL = 1
"""At most, for kernels of many short streams: above it the time of ptxas grows with the square of their number, for
code of the same size (64 streams of 680 instructions: 29 s at level 3, 4 s at this one)."""


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


def ptxas_options(optimisation: int, *, clusters: bool = False) -> tuple[str, ...]:
    """The options at an optimisation level, 0 to 3, and of a kernel whose channels are split over clusters."""
    return (f"-O{min(optimisation, CLUSTERED_LEVEL) if clusters else optimisation}",)


def skeleton_options(options: tuple[str, ...], *, clusters: bool = False) -> tuple[str, ...]:
    """The options of a skeleton whose kernels have these: it has one stream, and ptxas is quick at any level."""
    return ptxas_options(MOST_LEVEL) if clusters and level_of(options) == CLUSTERED_LEVEL else options


def level_of(options: tuple[str, ...]) -> int:
    """The optimisation level among options of ptxas: without any it takes 3."""
    levels = [option for option in options if option.startswith("-O")]
    return int(levels[-1].removeprefix("-O")) if levels else MOST_LEVEL


def assemble(
    ptx: bytes,
    arch: str,
    toolchain: Toolchain,
    options: tuple[str, ...] = ("-O3",),
    limits: ToolLimits = DEFAULT_LIMITS,
    *,
    size_limit_bytes: int = PTX_LIMIT_BYTES,
) -> Cubin:
    """Assembles the PTX of one kernel for one real architecture.

    Raises ToolError (the PTX is at fault: it would fail again), ToolTimeout, ToolOutOfMemory or ToolCrashed. Their
    command reads `kernel.ptx`, a file with the bytes given here.
    """
    from codegen.ptx.data_table import Tabled  # with NumPy, which the options' names do without

    argv = [str(toolchain.ptxas), f"-arch={arch}", *options, "-v", "-o", "kernel.cubin", "kernel.ptx"]
    again = shlex.join(argv)
    tabled = Tabled.of(ptx)
    if tabled is not None:
        ptx = tabled.ptx
    if len(ptx) > size_limit_bytes:
        raise ToolError(
            f"the kernel's PTX has {len(ptx):,} bytes and ptxas is given at most {size_limit_bytes:,}, since its time "
            "grows faster than the size: prune the layer further or leave it out",
            command=again,
        )
    with ScratchFolder("assemble") as scratch:
        (scratch / "kernel.ptx").write_bytes(ptx)
        try:
            done = run_tool(argv, limits=limits, scratch=scratch)
        except ToolError as error:
            error.command = again
            raise
        data = (scratch / "kernel.cubin").read_bytes()
    if not _is_whole(data):
        raise ToolCrashed("ptxas wrote a part of the cubin only: is the disk full?", command=again, stderr=done.stderr)
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", done.stderr)]
    spills = [int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)]
    if not registers:
        raise ToolError("ptxas reports no kernel: the PTX has no .entry", command=again, stderr=done.stderr)
    if tabled is not None:
        data = tabled.filled(data)
    return Cubin(data, arch, max(registers), sum(spills), done.seconds)


def _is_whole(cubin: bytes) -> bool:
    """Whether all that the ELF header promises is there: on a full disk ptxas succeeds with a part of the file."""
    if len(cubin) < _ELF_HEADER_BYTES or not cubin.startswith(b"\x7fELF"):
        return False

    def field(start: int, size: int) -> int:
        return int.from_bytes(cubin[start : start + size], "little")

    program_headers_end = field(32, 8) + field(54, 2) * field(56, 2)
    section_headers_end = field(40, 8) + field(58, 2) * field(60, 2)
    return len(cubin) >= max(program_headers_end, section_headers_end)


def fat_binary(cubins: Mapping[str, bytes], toolchain: Toolchain, limits: ToolLimits = DEFAULT_LIMITS) -> bytes:
    """One file that holds the cubins of several architectures; the driver picks. Raises ToolError."""
    if toolchain.fatbinary is None:
        raise ToolchainError(f"there is no fatbinary beside {toolchain.nvcc}: name the nvcc of a whole CUDA toolkit")
    with ScratchFolder("fatbinary") as scratch:
        images = []
        for arch in sorted(cubins):
            (scratch / f"{arch}.cubin").write_bytes(cubins[arch])
            images.append(f"--image3=kind=elf,sm={arch.removeprefix('sm_')},file={arch}.cubin")
        run_tool([toolchain.fatbinary, "-64", "--create=all.fatbin", *images], limits=limits, scratch=scratch)
        return (scratch / "all.fatbin").read_bytes()
