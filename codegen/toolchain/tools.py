"""CUDA tools: location, versions, and runs within limits of time, memory and CPU slots."""

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

from codegen.errors import ToolCancelled, ToolchainError, ToolCrashed, ToolError, ToolOutOfMemory, ToolTimeout
from codegen.toolchain import compiler_files
from codegen.toolchain.cpu_slots import cpu_slot
from codegen.toolchain.temp_folders import lock_of

_WHEEL_FILES = {
    "bin/nvcc": "nvidia-cuda-nvcc",
    "bin/ptxas": "nvidia-cuda-nvcc",
    "nvvm/bin/cicc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
}
_OUTPUT_BYTES = 2**20
"""Most bytes kept of a tool's stdout or stderr, from the beginning, where compilers name the cause."""
_POLL_SECONDS = 0.1
"""Interval between checks for a cancelled tool."""

# Two shells make sure that a tool leaves no process behind, however this process ends. Linux kills the outer shell when
# its parent dies, and signals the inner one when the outer dies. The inner shell then kills its process group, which
# contains the tool and its children (nvcc has some). One shell is not enough: Ray kills a worker's children and only
# them. The shells cost 3 ms and, unlike a function between fork and exec, are safe in a program with threads. Each
# shell checks that its parent had not died before the death signal was set. The tool's arguments are never parsed.
#
# The inner shell and the tool get only PATH and LD_LIBRARY_PATH from our environment. nvcc takes flags from
# NVCC_PREPEND_FLAGS, NVCC_APPEND_FLAGS, NVCC_CCBIN, INCLUDES, SYSTEM_INCLUDES and NVVM_FLAGS, g++ from CPATH and
# others, and no cache key would contain their effect.
_OUTER = """
[ "$PPID" = "$1" ] || exit
inner=$2
shift 2
setpriv --pdeathsig TERM env -i LC_ALL=C PATH="$PATH" ${LD_LIBRARY_PATH:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} \\
    sh -c "$inner" sh $$ "$@"
exit $?
"""
_INNER = """
parent=$1 folder=$4 lock=$5
# Twice, since a child may just add a file. The lock goes last: a folder that still has one is removed later.
trap 'kill -KILL $!; { rm -rf "$folder" || rm -rf "$folder"; } && rm -f "$lock"; kill -KILL 0' TERM
[ "$PPID" = "$parent" ] || exit
ulimit -v "$2"
ulimit -f "$3"
[ -z "$folder" ] || export TMPDIR="$folder"
shift 5
"$@" &
wait $!
"""
_OUT_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|memory allocation failure|cannot allocate memory|failed to map segment", re.IGNORECASE
)


@dataclass(frozen=True)
class ToolLimits:
    """Limits of one run of a tool."""

    seconds: float = 600.0
    memory_bytes: int = 8 * 2**30
    """Address space of each of its processes."""
    cpu_slots: Path | None = None
    """Folder of CPU slots, one of which the tool waits for; None to run at once."""
    file_bytes: int = 2**28
    """Largest file that it may write."""


DEFAULT_LIMITS = ToolLimits()


@dataclass(frozen=True)
class Completed:
    """Output of a tool that succeeded."""

    stdout: str
    stderr: str
    seconds: float


@dataclass
class ToolClock:
    """The run time of tools that succeeded."""

    seconds: float = 0.0


_CANCELLED: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)
_CLOCK: ContextVar[ToolClock | None] = ContextVar("clock", default=None)


@contextmanager
def cancel_tools_on(event: threading.Event) -> Iterator[None]:
    """Kills the tools that this thread runs within the `with` block as soon as another thread sets the event."""
    token = _CANCELLED.set(event)
    try:
        yield
    finally:
        _CANCELLED.reset(token)


@contextmanager
def tool_clock() -> Iterator[ToolClock]:
    """Adds up the time of the tools that this thread runs within the `with` block, without their waits for a core."""
    clock = ToolClock()
    token = _CLOCK.set(clock)
    try:
        yield clock
    finally:
        _CLOCK.reset(token)


def run_tool(argv: Sequence[str | Path], *, limits: ToolLimits, temp_folder: Path | None = None) -> Completed:
    """Runs a tool within limits, and leaves no process behind however the tool or this process ends.

    `temp_folder` is the path of a TempFolder: the tool runs in it and keeps its temporary files there, and it is
    removed if this process is killed.

    Raises ToolTimeout, ToolOutOfMemory, ToolCrashed (a signal) or ToolError (an exit code), each with the command and
    the tool's output; ToolchainError if the tool cannot be started; ToolCancelled after `cancel_tools_on`'s event.
    """
    command = [str(part) for part in argv]
    memory_kib = _allowed(resource.RLIMIT_AS, limits.memory_bytes) // 1024
    file_blocks = _allowed(resource.RLIMIT_FSIZE, limits.file_bytes) // 512
    outer = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _OUTER, "sh", str(os.getpid())]
    paths = ["", ""] if temp_folder is None else [str(temp_folder), str(lock_of(temp_folder))]
    inner = [_INNER, str(memory_kib), str(file_blocks), *paths]
    with ExitStack() as stack:
        slot = None if limits.cpu_slots is None else stack.enter_context(cpu_slot(limits.cpu_slots, _is_cancelled))
        stdout, stderr = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        start = time.monotonic()
        try:
            process = subprocess.Popen(
                [*outer, *inner, *command],
                cwd=temp_folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=() if slot is None else (slot,),
            )
        except OSError as error:
            raise ToolchainError(f"no tool can be run ({error}): install util-linux, which has setpriv") from None
        try:
            ended = _wait(process.pid, limits.seconds)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group's id is not reused
            process.wait()
        seconds = time.monotonic() - start
        out, err = _beginning(stdout), _beginning(stderr)
    if not ended and _is_cancelled():
        raise ToolCancelled(f"{Path(command[0]).name} was cancelled after {seconds:.1f} s")
    if not ended:
        raise ToolTimeout(
            f"{Path(command[0]).name} ran into its time limit of {limits.seconds:g} s",
            command=shlex.join(command),
            stderr=err,
        )
    if process.returncode:
        raise _failure(command, process.returncode, err or out, limits)
    if (clock := _CLOCK.get()) is not None:
        clock.seconds += seconds
    return Completed(out, err, seconds)


def _allowed(kind: int, wanted: int) -> int:
    """The wanted limit, or this process's own if that is lower, since limits cannot be raised."""
    _, most = resource.getrlimit(kind)
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most)


def _is_cancelled() -> bool:
    event = _CANCELLED.get()
    return event is not None and event.is_set()


def _wait(pid: int, seconds: float) -> bool:
    """Whether the child ended by itself, before the time limit and a cancellation; it is not reaped."""
    end = time.monotonic() + seconds
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not _is_cancelled():
            left = end - time.monotonic()
            if poll.poll(max(0.0, min(left, _POLL_SECONDS)) * 1000):
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
    if code in (126, 127) and not _OUT_OF_MEMORY.search(said):  # the shell could not start it
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
    lines = said.splitlines() or [f"exit code {code} without any output"]
    first = next((line for line in lines if re.search("error|fatal", line, re.IGNORECASE)), lines[0])
    return ToolError(f"{name} failed: {first}", command=again, stderr=said)


@dataclass(frozen=True)
class ToolFacts:
    """Versions of the tools, and the architectures they know."""

    nvcc_version: str
    ptxas_version: str
    archs: tuple[str, ...]
    cuda_root: Path
    """Folder of the toolkit that nvcc belongs to."""
    compiler_digest: str
    """Digest of cicc, libdevice and the CUDA headers."""


@dataclass(frozen=True)
class Toolchain:
    """The tools of one CUDA version; their facts are queried once, or `known` from an earlier time."""

    nvcc: Path
    ptxas: Path
    known: ToolFacts | None = None

    @cached_property
    def nvcc_version(self) -> str:
        """Version of nvcc, such as 13.0.88."""
        return self.known.nvcc_version if self.known else _version(self.nvcc)

    @cached_property
    def ptxas_version(self) -> str:
        """Version of ptxas, such as 13.0.88."""
        return self.known.ptxas_version if self.known else _version(self.ptxas)

    @cached_property
    def archs(self) -> tuple[str, ...]:
        """The real architectures that ptxas assembles for, oldest first."""
        return self.known.archs if self.known else _archs(self.ptxas)

    @cached_property
    def cuda_root(self) -> Path:
        """Folder of the toolkit that nvcc belongs to; a script in nvcc's place is asked."""
        if self.known:
            return self.known.cuda_root
        return compiler_files.root_beside(self.nvcc) or compiler_files.root_in_dry_run(_dry_run(self.nvcc))

    @cached_property
    def compiler_digest(self) -> str:
        """Digest of cicc, libdevice and the CUDA headers, which come in wheels of their own."""
        return self.known.compiler_digest if self.known else compiler_files.digest_of(self.cuda_root)

    @property
    def facts(self) -> ToolFacts:
        """The facts to store for later."""
        return ToolFacts(self.nvcc_version, self.ptxas_version, self.archs, self.cuda_root, self.compiler_digest)

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex over the tools' paths, sizes and times.

        Facts stored under an equal fingerprint still hold if the stamp of their `cuda_root` is unchanged too.
        """
        files = [(str(tool), tool.stat().st_size, tool.stat().st_mtime_ns) for tool in (self.nvcc, self.ptxas)]
        return hashlib.sha256(repr(files).encode()).hexdigest()

    def facts_in_files(self) -> ToolFacts | None:
        """The facts found in the tools' files without running them; None if not found, as for wrapper scripts."""
        versions = [re.search(rb"release \d+\.\d+, V(\d+\.\d+\.\d+)", _bytes(tool)) for tool in (self.nvcc, self.ptxas)]
        # A literal prefix is searched at memory speed, so the lookbehind comes after it.
        archs = set(re.findall(rb"sm_(?<!\wsm_)\d+[a-z]?(?!\w)", _bytes(self.ptxas)))
        nvcc, ptxas = (found and found[1].decode() for found in versions)
        root = compiler_files.root_beside(self.nvcc)
        if not (nvcc and ptxas and archs and root):
            return None
        digest = compiler_files.digest_of(root)
        return ToolFacts(nvcc, ptxas, _in_order(arch.decode() for arch in archs), root, digest)


def _bytes(tool: Path) -> mmap.mmap:
    with tool.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _archs(ptxas: Path) -> tuple[str, ...]:
    text = run_tool([ptxas, "--help"], limits=ToolLimits(30)).stdout
    names = set(re.findall(r"'(sm_\d+[a-z]?)'", text))
    if not names:
        raise ToolchainError(f"{ptxas} --help lists no architecture: it is not a known version of ptxas")
    return _in_order(names)


def _in_order(archs: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(archs, key=lambda name: (int(re.sub(r"\D", "", name)), name)))


def _dry_run(nvcc: Path) -> str:
    """nvcc's folders and commands for an empty source, none of which it runs."""
    return run_tool(
        [nvcc, "--dryrun", "-ptx", "-x", "cu", "/dev/null", "-o", "/dev/null"], limits=ToolLimits(30)
    ).stderr


def _version(tool: Path) -> str:
    text = run_tool([tool, "--version"], limits=ToolLimits(30)).stdout
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    if match is None:
        raise ToolchainError(f"{tool} --version gives no version: it is not a known CUDA tool")
    return match[1]


def host_compiler() -> Path:
    """The g++ that nvcc uses. Raises ToolchainError if there is none."""
    found = shutil.which("g++")
    if found is None:
        raise ToolchainError("nvcc needs the host compiler g++ and it is not on PATH: install the package g++")
    return Path(found)


def host_compiler_version() -> str:
    """Version of the host compiler g++, such as 12.2.0. Raises ToolchainError, ToolError."""
    return run_tool([host_compiler(), "-dumpfullversion"], limits=ToolLimits(30)).stdout


def find_toolchain(nvcc: Path | None = None, ptxas: Path | None = None) -> Toolchain:
    """The tools of the installed wheels, or the named ones of a system CUDA; PATH is not searched.

    A named nvcc selects the ptxas beside it. Raises ToolchainError if a tool or the host compiler is missing.
    """
    if nvcc is None:
        folder = _wheels_folder() / "bin"
        nvcc = folder / "nvcc"
    else:
        nvcc = nvcc.expanduser().absolute()
        folder = nvcc.parent
    ptxas = folder / "ptxas" if ptxas is None else ptxas.expanduser().absolute()
    for name, tool in (("nvcc", nvcc), ("ptxas", ptxas)):
        if not os.access(tool, os.F_OK) or not tool.is_file():
            raise ToolchainError(
                f"no such program {tool}: correct FARM_{name.upper()}, or [toolchain] in the configuration"
            )
        if not os.access(tool, os.X_OK):
            raise ToolchainError(f"{tool} is not executable: chmod +x it, or install it again")
    host_compiler()
    return Toolchain(nvcc, ptxas)


def _wheels_folder() -> Path:
    """The installed folder of the CUDA wheels, which share the namespace package `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root, "cu13") for root in (spec.submodule_search_locations or [])] if spec else []
    root = next((root for root in roots if (root / "bin" / "nvcc").is_file()), Path("cu13"))
    missing = sorted({wheel for name, wheel in _WHEEL_FILES.items() if not (root / name).is_file()})
    if missing:
        raise ToolchainError(
            f"the CUDA toolchain is incomplete, {', '.join(missing)} missing: install this program again with pip, "
            "or name a system's nvcc in [toolchain] of the configuration"
        )
    return root
