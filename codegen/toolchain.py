"""The CUDA tools: where they are, which versions, and how they are run. The only importer of subprocess."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from codegen.errors import ToolchainError, ToolCrashed, ToolError, ToolOutOfMemory, ToolTimeout

WHEELS = "nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt and nvidia-cuda-runtime"
ERROR_BYTES = 16_384
"""Of a failed tool's output, its end: more helps nobody."""

# The tool gets a process group of its own, a memory limit, and dies with whoever asked for it, its children (nvcc has
# some) too: the kernel ends the shell when the parent is gone, the shell ends the group. Arguments are never parsed.
_GUARD = 'ulimit -v "$1"; shift; trap "kill -KILL 0" TERM; "$@" & wait $!'
_OUT_OF_MEMORY = re.compile(r"out of memory|bad_alloc|memory allocation failure|cannot allocate memory", re.IGNORECASE)


@dataclass(frozen=True)
class ToolLimits:
    """What one run of a tool may take."""

    seconds: float = 600.0
    memory_bytes: int = 8 * 2**30


@dataclass(frozen=True)
class Completed:
    """What a tool that succeeded said."""

    stdout: str
    stderr: str
    seconds: float


def run_tool(argv: Sequence[str | Path], *, limits: ToolLimits, cwd: Path | None = None) -> Completed:
    """Runs a tool within limits; leaves no process behind, whatever ends it.

    Raises ToolTimeout, ToolOutOfMemory, ToolCrashed (a signal) or ToolError (it said no), each with the command to run
    again and what the tool wrote.
    """
    command = [str(part) for part in argv]
    guarded = ["setpriv", "--pdeathsig", "TERM", "sh", "-c", _GUARD, "sh", str(limits.memory_bytes // 1024), *command]
    name = Path(command[0]).name
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            guarded,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolchainError(f"{name} cannot be started ({error}): install util-linux, which holds setpriv") from None
    try:
        stdout_bytes, stderr_bytes = process.communicate(timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        raise ToolTimeout(
            f"{name} ran into its time limit of {limits.seconds:g} s", command=shlex.join(command)
        ) from None
    except BaseException:
        _end(process)
        raise
    seconds = time.monotonic() - start
    stdout, stderr = stdout_bytes.decode(errors="replace"), stderr_bytes.decode(errors="replace")
    if process.returncode:
        raise _failure(name, command, process.returncode, (stderr or stdout)[-ERROR_BYTES:].strip(), limits)
    return Completed(stdout, stderr, seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


def _failure(name: str, command: list[str], code: int, said: str, limits: ToolLimits) -> ToolError:
    again = shlex.join(command)
    if _OUT_OF_MEMORY.search(said):
        megabytes = limits.memory_bytes // 2**20
        return ToolOutOfMemory(f"{name} needs more than its limit of {megabytes} MiB", command=again, stderr=said)
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number in signal.valid_signals() and number:
        return ToolCrashed(f"{name} was ended by {signal.Signals(number).name}", command=again, stderr=said)
    last = said.splitlines()[0] if said else f"exit code {code} without a word"
    return ToolError(f"{name} failed: {last}", command=again, stderr=said)


@dataclass(frozen=True)
class Toolchain:
    """The tools of one CUDA version. Versions and architectures are asked of the tools themselves, once."""

    nvcc: Path
    ptxas: Path
    fatbinary: Path

    @cached_property
    def nvcc_version(self) -> str:
        """As in 13.0.88."""
        return _version(self.nvcc)

    @cached_property
    def ptxas_version(self) -> str:
        """As in 13.0.88."""
        return _version(self.ptxas)

    @cached_property
    def archs(self) -> tuple[str, ...]:
        """The real architectures that ptxas assembles for, oldest first, as its own help lists them."""
        text = run_tool([self.ptxas, "--help"], limits=ToolLimits(30)).stdout
        names = set(re.findall(r"'(sm_\d+[a-z]?)'", text))
        if not names:
            raise ToolchainError(f"{self.ptxas} --help lists no architecture: it is not the ptxas this program knows")
        return tuple(sorted(names, key=lambda name: (int(re.sub(r"\D", "", name)), name)))


def _version(tool: Path) -> str:
    text = run_tool([tool, "--version"], limits=ToolLimits(30)).stdout
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    if match is None:
        raise ToolchainError(f"{tool} --version gives no version: it is not the tool this program knows")
    return match[1]


def find_toolchain(nvcc: Path | None = None, ptxas: Path | None = None) -> Toolchain:
    """The tools of the pinned wheels, or the named ones (a system CUDA); never what happens to be on the path.

    Raises ToolchainError if one is missing, or the host compiler that nvcc needs.
    """
    if nvcc is None:
        folder = _wheels_folder()
        nvcc = folder / "nvcc"
    folder = nvcc.parent
    tools = Toolchain(nvcc, ptxas or folder / "ptxas", folder / "fatbinary")
    for tool in (tools.nvcc, tools.ptxas):
        if not os.access(tool, os.X_OK):
            raise ToolchainError(f"there is no program {tool}: correct [toolchain] in the configuration, or unset it")
    if shutil.which("g++") is None:
        raise ToolchainError("nvcc needs the host compiler g++ and it is not on the path: install g++")
    return tools


def _wheels_folder() -> Path:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(root, "cu13", "bin")
        if (folder / "nvcc").exists() and (folder / "ptxas").exists():
            return folder
    raise ToolchainError(f"the CUDA toolchain is not installed: pip install {WHEELS}, or name an nvcc in [toolchain]")
