"""The CUDA tools: where they are, which versions, and how they are run."""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import re
import resource
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from codegen.errors import ToolchainError, ToolCrashed, ToolError, ToolOutOfMemory, ToolStopped, ToolTimeout
from codegen.toolchain.cpu_slots import core_of
from codegen.toolchain.temp_folders import lock_of

_WHEEL_FILES = {
    "bin/nvcc": "nvidia-cuda-nvcc",
    "bin/ptxas": "nvidia-cuda-nvcc",
    "bin/fatbinary": "nvidia-cuda-nvcc",
    "nvvm/bin/cicc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
}
_OUTPUT_BYTES = 2**20
"""How much of a tool's stdout or stderr is kept, from the beginning: compilers name the cause first."""
_FILE_BYTES = 2**28
"""No file that a tool writes grows beyond this."""
_LOOK_SECONDS = 0.1
"""How often somebody who waits for a tool looks whether its output is still wanted."""

# Two shells see to it that nothing is left of a tool, whatever ends this process. The kernel kills the outer shell when
# its parent is gone, and tells the inner one when the outer is gone; the inner ends its process group, in which the
# tool and its children are (nvcc has some). One shell is not enough: Ray kills the children of a worker, and only them.
# It costs 3 ms and, unlike a function run between fork and exec, is safe in a program with threads. Each shell asks
# whether its parent was gone before the kernel promised to tell. The tool's arguments are never parsed.
#
# Of our environment the inner shell, and with it the tool, has only where programs and their libraries lie. nvcc takes
# flags from NVCC_PREPEND_FLAGS, NVCC_APPEND_FLAGS, NVCC_CCBIN, INCLUDES, SYSTEM_INCLUDES and NVVM_FLAGS, g++ from CPATH
# and others: what they change would be in no cache key.
_OUTER = """
[ "$PPID" = "$1" ] || exit
inner=$2
shift 2
setpriv --pdeathsig TERM env -i LC_ALL=C PATH="$PATH" ${LD_LIBRARY_PATH:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} \\
    sh -c "$inner" sh $$ "$@"
exit $?
"""
_INNER = """
parent=$1 scratch=$4 lock=$5
# Twice: a child may just add a file. The lock goes last: what still has one is removed another time.
trap 'kill -KILL $!; { rm -rf "$scratch" || rm -rf "$scratch"; } && rm -f "$lock"; kill -KILL 0' TERM
[ "$PPID" = "$parent" ] || exit
ulimit -v "$2"
ulimit -f "$3"
[ -z "$scratch" ] || export TMPDIR="$scratch"
shift 5
"$@" &
wait $!
"""
_OUT_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|memory allocation failure|cannot allocate memory|failed to map segment", re.IGNORECASE
)


@dataclass(frozen=True)
class ToolLimits:
    """What one run of a tool may take; the memory limit is on the address space of each of its processes."""

    seconds: float = 600.0
    memory_bytes: int = 8 * 2**30
    cores: Path | None = None
    """A folder that says which cores are in use: the tool waits until one is free. None: it does not."""


DEFAULT_LIMITS = ToolLimits()


@dataclass(frozen=True)
class Completed:
    """What a tool that succeeded said."""

    stdout: str
    stderr: str
    seconds: float


_UNWANTED: ContextVar[threading.Event | None] = ContextVar("unwanted", default=None)


@contextmanager
def tools_end_with(unwanted: threading.Event) -> Iterator[None]:
    """Within the `with` block, tools that this thread runs are killed once another thread sets the event."""
    token = _UNWANTED.set(unwanted)
    try:
        yield
    finally:
        _UNWANTED.reset(token)


def run_tool(argv: Sequence[str | Path], *, limits: ToolLimits, scratch: Path | None = None) -> Completed:
    """Runs a tool within limits; leaves no process behind, whatever ends the tool or this process.

    `scratch` is a temporary folder: the tool runs in it, keeps its own temporary files in it, and it is removed should
    this process be killed.

    Raises ToolTimeout, ToolOutOfMemory, ToolCrashed (a signal) or ToolError (it said no), each with the command to run
    again and what the tool wrote; ToolchainError if it cannot be started at all; ToolStopped (see `tools_end_with`).
    """
    command = [str(part) for part in argv]
    memory_kib = _allowed(resource.RLIMIT_AS, limits.memory_bytes) // 1024
    file_blocks = _allowed(resource.RLIMIT_FSIZE, _FILE_BYTES) // 512
    outer = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _OUTER, "sh", str(os.getpid())]
    places = ["", ""] if scratch is None else [str(scratch), str(lock_of(scratch))]
    inner = [_INNER, str(memory_kib), str(file_blocks), *places]
    with ExitStack() as stack:
        lock = None if limits.cores is None else stack.enter_context(core_of(limits.cores, _is_unwanted))
        stdout, stderr = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                [*outer, *inner, *command],
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=() if lock is None else (lock,),
            )
        except OSError as error:
            raise ToolchainError(f"no tool can be run ({error}): install util-linux, which holds setpriv") from None
        try:
            ended = _wait(process.pid, limits.seconds)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its leader is not reaped yet, so the group is still its own
            process.wait()
        seconds = time.monotonic() - start
        out, err = _beginning(stdout), _beginning(stderr)
    if not ended and _is_unwanted():
        raise ToolStopped(f"{Path(command[0]).name} was stopped after {seconds:.1f} s: its output is wanted no more")
    if not ended:
        raise ToolTimeout(
            f"{Path(command[0]).name} ran into its time limit of {limits.seconds:g} s",
            command=shlex.join(command),
            stderr=err,
        )
    if process.returncode:
        raise _failure(command, process.returncode, err or out, limits)
    return Completed(out, err, seconds)


def _allowed(kind: int, wanted: int) -> int:
    """A limit can be lowered, never raised."""
    _, most = resource.getrlimit(kind)
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most)


def _is_unwanted() -> bool:
    unwanted = _UNWANTED.get()
    return unwanted is not None and unwanted.is_set()


def _wait(pid: int, seconds: float) -> bool:
    """Whether the child ended by itself, in time and before its output was unwanted; it is not reaped."""
    end = time.monotonic() + seconds
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not _is_unwanted():
            left = end - time.monotonic()
            if poll.poll(max(0.0, min(left, _LOOK_SECONDS)) * 1000):
                return True
            if left <= 0:
                break
        return False
    finally:
        os.close(descriptor)


def _beginning(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read(_OUTPUT_BYTES).decode(errors="replace").strip()


def _failure(command: list[str], code: int, said: str, limits: ToolLimits) -> ToolError | ToolchainError:
    name, again = Path(command[0]).name, shlex.join(command)
    if code in (126, 127) and not _OUT_OF_MEMORY.search(said):  # of the shell
        return ToolchainError(f"{command[0]} cannot be run ({said}): install it again, or name another in [toolchain]")
    if _OUT_OF_MEMORY.search(said):
        megabytes = limits.memory_bytes // 2**20
        return ToolOutOfMemory(f"{name} needs more than its limit of {megabytes} MiB", command=again, stderr=said)
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        cause = signal.Signals(number).name
        if number == signal.SIGKILL:
            cause += ": most often the machine ran out of memory, so run fewer at once"
        return ToolCrashed(f"{name} was ended by {cause}", command=again, stderr=said)
    lines = said.splitlines() or [f"exit code {code} without a word"]
    first = next((line for line in lines if re.search("error|fatal", line, re.IGNORECASE)), lines[0])
    return ToolError(f"{name} failed: {first}", command=again, stderr=said)


@dataclass(frozen=True)
class ToolFacts:
    """What the tools say of themselves."""

    nvcc_version: str
    ptxas_version: str
    archs: tuple[str, ...]


@dataclass(frozen=True)
class Toolchain:
    """The tools of one CUDA version. What they say of themselves is asked once, or `known` from an earlier time."""

    nvcc: Path
    ptxas: Path
    fatbinary: Path | None = None
    known: ToolFacts | None = None

    @cached_property
    def nvcc_version(self) -> str:
        """As in 13.0.88."""
        return self.known.nvcc_version if self.known else _version(self.nvcc)

    @cached_property
    def ptxas_version(self) -> str:
        """As in 13.0.88."""
        return self.known.ptxas_version if self.known else _version(self.ptxas)

    @cached_property
    def archs(self) -> tuple[str, ...]:
        """The real architectures that ptxas assembles for, oldest first, as its own help lists them."""
        return self.known.archs if self.known else _archs(self.ptxas)

    @property
    def facts(self) -> ToolFacts:
        """All that is worth knowing the next time."""
        return ToolFacts(self.nvcc_version, self.ptxas_version, self.archs)

    @property
    def fingerprint(self) -> str:
        """Changes when a tool's file does: facts known under the same fingerprint still hold. SHA-256 in hex."""
        files = [(str(tool), tool.stat().st_size, tool.stat().st_mtime_ns) for tool in (self.nvcc, self.ptxas)]
        return hashlib.sha256(repr(files).encode()).hexdigest()

    def facts_in_files(self) -> ToolFacts | None:
        """The same, found in the tools' files without starting one; None if they do not hold it, as wrappers do not."""
        versions = [re.search(rb"release \d+\.\d+, V(\d+\.\d+\.\d+)", _bytes(tool)) for tool in (self.nvcc, self.ptxas)]
        # What a pattern begins with is searched for at the speed of memory, so the look behind comes after it.
        archs = set(re.findall(rb"sm_(?<!\wsm_)\d+[a-z]?(?!\w)", _bytes(self.ptxas)))
        nvcc, ptxas = (found and found[1].decode() for found in versions)
        return ToolFacts(nvcc, ptxas, _in_order(arch.decode() for arch in archs)) if nvcc and ptxas and archs else None


def _bytes(tool: Path) -> mmap.mmap:
    with tool.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _archs(ptxas: Path) -> tuple[str, ...]:
    text = run_tool([ptxas, "--help"], limits=ToolLimits(30)).stdout
    names = set(re.findall(r"'(sm_\d+[a-z]?)'", text))
    if not names:
        raise ToolchainError(f"{ptxas} --help lists no architecture: it is not the ptxas this program knows")
    return _in_order(names)


def _in_order(archs: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(archs, key=lambda name: (int(re.sub(r"\D", "", name)), name)))


def _version(tool: Path) -> str:
    text = run_tool([tool, "--version"], limits=ToolLimits(30)).stdout
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    if match is None:
        raise ToolchainError(f"{tool} --version gives no version: it is not the tool this program knows")
    return match[1]


def host_compiler() -> Path:
    """The g++ that nvcc will use. Raises ToolchainError if there is none."""
    found = shutil.which("g++")
    if found is None:
        raise ToolchainError("nvcc needs the host compiler g++ and it is not on the path: install the package g++")
    return Path(found)


def host_compiler_version() -> str:
    """Version of that g++, as in 12.2.0. Raises ToolchainError, ToolError."""
    return run_tool([host_compiler(), "-dumpfullversion"], limits=ToolLimits(30)).stdout


def find_toolchain(nvcc: Path | None = None, ptxas: Path | None = None) -> Toolchain:
    """The tools of the installed wheels, or the named ones (a system CUDA); never what happens to be on the path.

    A named nvcc brings the ptxas and the fatbinary beside it. Raises ToolchainError if a tool is missing, or the host
    compiler that nvcc needs.
    """
    if nvcc is None:
        folder = _wheels_folder() / "bin"
        nvcc = folder / "nvcc"
    else:
        nvcc = nvcc.expanduser().absolute()
        folder = nvcc.parent
    ptxas = folder / "ptxas" if ptxas is None else ptxas.expanduser().absolute()
    for name, tool in (("nvcc", nvcc), ("ptxas", ptxas)):
        if not tool.is_file():
            raise ToolchainError(
                f"there is no program {tool}: correct FARM_{name.upper()}, or [toolchain] in the configuration"
            )
        if not os.access(tool, os.X_OK):
            raise ToolchainError(f"{tool} is not executable: chmod +x it, or install it again")
    host_compiler()
    fatbinary = folder / "fatbinary"
    return Toolchain(nvcc, ptxas, fatbinary if fatbinary.is_file() else None)


def _wheels_folder() -> Path:
    """Where the CUDA wheels unpack themselves: they share the namespace package `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root, "cu13") for root in (spec.submodule_search_locations or [])] if spec else []
    root = next((root for root in roots if (root / "bin" / "nvcc").is_file()), Path("cu13"))
    missing = sorted({wheel for name, wheel in _WHEEL_FILES.items() if not (root / name).is_file()})
    if missing:
        raise ToolchainError(
            f"the CUDA toolchain is not complete, {', '.join(missing)} missing: install this program again with pip, "
            "or name a system's nvcc in [toolchain] of the configuration"
        )
    return root
