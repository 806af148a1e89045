"""The toolchain: finding the tools, their versions, and runs that leave no process behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from codegen.errors import ToolCancelled, ToolchainError, ToolCrashed, ToolError, ToolOutOfMemory, ToolTimeout
from codegen.toolchain.tools import Toolchain, ToolLimits, cancel_tools_on, find_toolchain, run_tool
from tests.toolchain.slow_sources import straight_line, straight_line_cuda

LIMITS = ToolLimits(60)
NOT_OF_NVCC = {
    "nvvm/bin/cicc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
}
PYTHON = [sys.executable, "-ISE", "-c"]


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain()


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def processes_in(folder: Path) -> dict[int, str]:
    """Names of processes by id whose working directory is or was inside a folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str((entry / "cwd").readlink()).startswith(str(folder)):
                found[int(entry.name)] = (entry / "comm").read_text().strip()
        except OSError:  # it has ended meanwhile
            continue
    return found


# Finding


def test_the_wheels_are_found_and_say_the_pinned_versions(toolchain: Toolchain) -> None:
    assert toolchain.nvcc_version == toolchain.ptxas_version == "13.0.88"


def test_the_toolkit_of_a_wrapper_script_is_the_one_behind_it(toolchain: Toolchain, tmp_path: Path) -> None:
    script = tmp_path / "nvcc"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(str(toolchain.nvcc))} "$@"\n')
    script.chmod(0o755)
    wrapped = find_toolchain(script, toolchain.ptxas)
    assert (wrapped.cuda_root, wrapped.compiler_digest) == (toolchain.cuda_root, toolchain.compiler_digest)


def test_the_wheels_are_found_though_the_path_has_other_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvcc", "ptxas"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_toolchain().ptxas_version == "13.0.88"


def test_archs_go_from_turing_on_in_natural_order(toolchain: Toolchain) -> None:
    archs = toolchain.archs
    assert archs[:2] == ("sm_75", "sm_80")
    assert archs.index("sm_90") < archs.index("sm_90a") < archs.index("sm_100") < archs.index("sm_121")
    assert not [arch for arch in archs if not arch.startswith("sm_")]


def test_a_named_nvcc_brings_the_ptxas_beside_it(toolchain: Toolchain, tmp_path: Path) -> None:
    for name in ("nvcc", "ptxas"):
        (tmp_path / name).symlink_to(getattr(toolchain, name))
    found = find_toolchain(nvcc=tmp_path / "nvcc")
    assert (found.nvcc, found.ptxas) == (tmp_path / "nvcc", tmp_path / "ptxas")


def test_a_named_ptxas_replaces_only_that(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "ptxas").symlink_to(toolchain.ptxas)
    assert find_toolchain(ptxas=tmp_path / "ptxas") == Toolchain(toolchain.nvcc, tmp_path / "ptxas")


def test_a_named_tool_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=f"no such program {tmp_path}/nvcc: correct"):
        find_toolchain(nvcc=tmp_path / "nvcc")
    with pytest.raises(ToolchainError, match=r"no such program .*: correct FARM_PTXAS"):
        find_toolchain(ptxas=tmp_path / ("a" * 300))


def test_a_tool_that_is_not_executable_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    for name in ("nvcc", "ptxas"):
        (tmp_path / name).write_text("")
    with pytest.raises(ToolchainError, match=f"{tmp_path}/nvcc is not executable: chmod"):
        find_toolchain(nvcc=tmp_path / "nvcc")


def test_a_host_without_a_compiler_is_told_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"g\+\+ .* install"):
        find_toolchain()


@pytest.mark.parametrize(("lost", "wheel"), NOT_OF_NVCC.items())
def test_a_missing_wheel_is_an_error_that_names_it(
    lost: str, wheel: str, toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = toolchain.nvcc.parent.parent
    for name in ("bin/nvcc", "bin/ptxas", *NOT_OF_NVCC):
        link = tmp_path / "nvidia" / "cu13" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if name != lost:
            link.symlink_to(real / name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ToolchainError, match=f"incomplete, {wheel} missing"):
        find_toolchain()


# What a run gives


def test_output_comes_back_and_the_run_is_timed() -> None:
    done = run_tool([*PYTHON, "import sys; print('out'); print('err', file=sys.stderr)"], limits=LIMITS)
    assert (done.stdout, done.stderr) == ("out", "err")
    assert 0 < done.seconds < 10


def test_a_tool_gets_only_the_paths_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-O0")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/some where/lib")
    seen = dict(
        line.split("=", 1) for line in run_tool(["env"], limits=LIMITS, temp_folder=tmp_path).stdout.splitlines()
    )
    expected = {
        "LC_ALL": "C",
        "LD_LIBRARY_PATH": "/opt/some where/lib",
        "PATH": os.environ["PATH"],
        "TMPDIR": str(tmp_path),
    }
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert {name: value for name, value in seen.items() if name not in of_the_shell} == expected


def test_arguments_reach_the_tool_as_they_are() -> None:
    nasty = ["a b", "$HOME", "'", '"', "; exit 7", "*", "", "--", "\\n"]
    done = run_tool([*PYTHON, "import sys; print(sys.argv[1:])", *nasty], limits=LIMITS)
    assert done.stdout == str(nasty)


def test_an_error_carries_the_output_and_a_command_that_fails_equally() -> None:
    with pytest.raises(ToolError, match="failed: an error: it's bad") as caught:
        run_tool([*PYTHON, 'import sys; print("info"); sys.exit("info\\nan error: it\'s bad")'], limits=LIMITS)
    assert caught.value.stderr == "info\nan error: it's bad"
    again = subprocess.run(caught.value.command, shell=True, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr.strip()) == (1, caught.value.stderr)


def test_a_tool_that_fails_silently_is_reported_with_its_exit_code() -> None:
    with pytest.raises(ToolError, match="exit code 3 without any output"):
        run_tool(["/bin/sh", "-c", "exit 3"], limits=LIMITS)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_tool_ended_by_a_signal_has_crashed(number: signal.Signals) -> None:
    with pytest.raises(ToolCrashed, match=f"was ended by {number.name}"):
        run_tool([*PYTHON, f"import os; os.kill(os.getpid(), {int(number)})"], limits=LIMITS)


def test_a_missing_tool_is_a_toolchain_error(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=f"{tmp_path}/ptxas cannot be run"):
        run_tool([tmp_path / "ptxas"], limits=LIMITS)


def test_a_tool_that_writes_without_end_is_stopped_and_its_beginning_kept() -> None:
    with pytest.raises(ToolCrashed, match="SIGXFSZ") as caught:
        run_tool(["sh", "-c", "yes error >&2"], limits=LIMITS)
    assert 2**19 < len(caught.value.stderr) <= 2**20


def test_memory_beyond_the_limit_is_reported_as_such(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(straight_line_cuda(10_000))
    argv = [toolchain.nvcc, "-ptx", "-o", "kernel.ptx", "kernel.cu"]
    with pytest.raises(ToolOutOfMemory, match="nvcc needs more than its limit of 100 MiB"):
        run_tool(argv, limits=ToolLimits(60, memory_bytes=100 * 2**20), temp_folder=tmp_path)


# What a run leaves


def test_a_tool_and_its_children_end_when_their_time_is_up(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(straight_line_cuda(10_000))
    start = time.monotonic()
    with pytest.raises(ToolTimeout, match=r"nvcc ran into its time limit of 1\.5 s") as caught:
        run_tool(
            [toolchain.nvcc, "-ptx", "-o", "kernel.ptx", "kernel.cu"], limits=ToolLimits(1.5), temp_folder=tmp_path
        )
    assert 1.5 <= time.monotonic() - start < 5
    assert shlex.split(caught.value.command)[0] == str(toolchain.nvcc)
    wait_until(lambda: not processes_in(tmp_path), seconds=5)


def test_a_cancellation_kills_the_tool_and_its_children_and_later_tools(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(straight_line_cuda(10_000))
    argv = [toolchain.nvcc, "-ptx", "-o", "kernel.ptx", "kernel.cu"]
    unwanted = threading.Event()

    def run() -> None:
        with cancel_tools_on(unwanted):
            run_tool(argv, limits=LIMITS, temp_folder=tmp_path)

    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(run)
        wait_until(lambda: "cicc" in processes_in(tmp_path).values())
        start = time.monotonic()
        unwanted.set()
        with pytest.raises(ToolCancelled, match=r"nvcc was cancelled after \d\.\d s"):
            stopped.result()
        assert time.monotonic() - start < 2
        wait_until(lambda: not processes_in(tmp_path), seconds=5)
        with pytest.raises(ToolCancelled):
            pool.submit(run).result()
    assert not (tmp_path / "kernel.ptx").exists()


def test_what_a_tool_left_running_ends_with_it(tmp_path: Path) -> None:
    run_tool(["sh", "-c", "sleep 60 & exit 0"], limits=LIMITS, temp_folder=tmp_path)
    wait_until(lambda: not processes_in(tmp_path), seconds=5)


def test_a_tool_keeps_its_temporary_files_in_the_scratch_folder(toolchain: Toolchain, tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text("__global__ void k() {}")
    said = run_tool([toolchain.nvcc, "-ptx", "--dryrun", "kernel.cu"], limits=LIMITS, temp_folder=tmp_path).stderr
    assert f"{tmp_path}/tmpxft" in said


PARENT = """
import sys
from pathlib import Path
from codegen.toolchain.tools import ToolLimits, run_tool
run_tool(sys.argv[2:], limits=ToolLimits(60), temp_folder=Path(sys.argv[1]))
"""


@pytest.mark.parametrize("tool", ["ptxas", "nvcc"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_parent_leaves_neither_the_tool_nor_its_children(
    tool: str, number: signal.Signals, toolchain: Toolchain, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    if tool == "ptxas":
        (scratch / "kernel.ptx").write_bytes(straight_line(80_000))
        argv, working = [str(toolchain.ptxas), "kernel.ptx"], "ptxas"
    else:
        (scratch / "kernel.cu").write_text(straight_line_cuda(10_000))
        argv, working = [str(toolchain.nvcc), "-ptx", "kernel.cu"], "cicc"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, scratch, *argv], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: working in processes_in(scratch).values())
    finally:
        parent.send_signal(number)
        parent.wait()
    wait_until(lambda: not processes_in(scratch), seconds=5)
    if number != signal.SIGINT:  # an interrupt is an exception in the parent, which removes its folders itself
        wait_until(lambda: not scratch.exists(), seconds=5)


def test_a_parent_killed_together_with_its_own_children_leaves_nothing(tmp_path: Path) -> None:
    """Ray kills a worker's children, but not their children, before the worker itself."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, scratch, "sleep", "60"])
    try:
        wait_until(lambda: "sleep" in processes_in(scratch).values())
        parent.send_signal(signal.SIGSTOP)
        for child in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not processes_in(scratch) and not scratch.exists(), seconds=5)


def test_a_tool_does_not_start_for_a_parent_that_is_already_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent may end between the fork and the death signal's setup: the tool then has another parent."""
    monkeypatch.setattr(os, "getpid", lambda: 2**22 - 1)
    with pytest.raises(ToolError):
        run_tool(["touch", "ran"], limits=LIMITS, temp_folder=tmp_path)
    assert not (tmp_path / "ran").exists()
