"""ptxas: assembles the PTX of a kernel into a cubin for one architecture."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from codegen.errors import ToolCrashed, ToolError
from codegen.toolchain.temp_folders import TempFolder
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain, ToolLimits, run_tool

PTX_LIMIT_BYTES = 64 * 2**20
"""Largest PTX given to ptxas, which never finished one of 361 MB."""
_ELF_HEADER_BYTES = 64

MOST_LEVEL = 3
"""Highest optimisation level, ptxas's default."""
CLUSTERED_LEVEL = 1
"""Highest optimisation level of kernels split over clusters. Above it the time of ptxas grows with the square of the
number of instruction streams (64 streams of 680 instructions: 29 s at level 3, 4 s at level 1)."""


@dataclass(frozen=True, eq=False)
class Cubin:
    """Machine code of a kernel for one architecture, with ptxas's report."""

    data: bytes
    arch: str
    registers: int
    """Registers per thread."""
    spill_bytes: int
    """Bytes of spill stores and loads together."""
    seconds: float
    """Run time of ptxas."""


def ptxas_options(optimisation: int, *, clusters: bool = False) -> tuple[str, ...]:
    """The options of ptxas at an optimisation level from 0 to 3; `clusters` for kernels split over clusters."""
    return (f"-O{min(optimisation, CLUSTERED_LEVEL) if clusters else optimisation}",)


def skeleton_options(options: tuple[str, ...], *, clusters: bool = False) -> tuple[str, ...]:
    """The options for a skeleton of kernels with these options. It has one stream, so that any level is fast."""
    return ptxas_options(MOST_LEVEL) if clusters and level_of(options) == CLUSTERED_LEVEL else options


def level_of(options: tuple[str, ...]) -> int:
    """The optimisation level among options of ptxas, 3 by default."""
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

    Raises ToolError (invalid PTX, which would fail again), ToolTimeout, ToolOutOfMemory or ToolCrashed. Their command
    reads a file `kernel.ptx` with the given bytes.
    """
    from codegen.ptx.data_table import Tabled  # imports NumPy, which the option functions do not need

    argv = [str(toolchain.ptxas), f"-arch={arch}", *options, "-v", "-o", "kernel.cubin", "kernel.ptx"]
    command = shlex.join(argv)
    tabled = Tabled.of(ptx)
    if tabled is not None:
        ptx = tabled.ptx
    if len(ptx) > size_limit_bytes:
        raise ToolError(
            f"the kernel's PTX has {len(ptx):,} bytes, more than the {size_limit_bytes:,} that ptxas can assemble in "
            "reasonable time: prune the layer further or leave it out",
            command=command,
        )
    with TempFolder("assemble") as folder:
        (folder / "kernel.ptx").write_bytes(ptx)
        try:
            done = run_tool(argv, limits=limits, temp_folder=folder)
        except ToolError as error:
            error.command = command
            raise
        data = (folder / "kernel.cubin").read_bytes()
    if not _is_complete(data):
        raise ToolCrashed("ptxas wrote an incomplete cubin: is the disk full?", command=command, stderr=done.stderr)
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", done.stderr)]
    spills = [int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)]
    if not registers:
        raise ToolError("ptxas reports no kernel: the PTX has no .entry", command=command, stderr=done.stderr)
    if tabled is not None:
        data = tabled.filled(data)
    return Cubin(data, arch, max(registers), sum(spills), done.seconds)


def _is_complete(cubin: bytes) -> bool:
    """Whether the file has all headers that its ELF header announces; on a full disk ptxas succeeds with less."""
    if len(cubin) < _ELF_HEADER_BYTES or not cubin.startswith(b"\x7fELF"):
        return False

    def field(start: int, size: int) -> int:
        return int.from_bytes(cubin[start : start + size], "little")

    program_headers_end = field(32, 8) + field(54, 2) * field(56, 2)
    section_headers_end = field(40, 8) + field(58, 2) * field(60, 2)
    return len(cubin) >= max(program_headers_end, section_headers_end)
