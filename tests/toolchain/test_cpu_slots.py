"""CPU slots are shared by independent processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from codegen.errors import ToolCancelled, ToolchainError
from codegen.toolchain.cpu_slots import cpu_slot
from codegen.toolchain.tools import ToolLimits, cancel_tools_on, run_tool
from tests.command import ROOT
from tests.toolchain.test_toolchain import wait_until

RUN = """
import sys
from pathlib import Path
from codegen.toolchain.tools import ToolLimits, run_tool
run_tool(sys.argv[2:], limits=ToolLimits(60, cpu_slots=Path(sys.argv[1])))
"""


def starts(cores: Path, *tool: str, cpu: int) -> subprocess.Popen[bytes]:
    """A process that runs a tool and may use this core only."""
    command = ["taskset", "-c", str(cpu), sys.executable, "-c", RUN, str(cores), *tool]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


@pytest.fixture
def cpu() -> int:
    return min(os.sched_getaffinity(0))


def test_a_tool_waits_for_the_slot_of_another_process(tmp_path: Path, cpu: int) -> None:
    cores = tmp_path / "cores"
    until = f"touch {tmp_path}/first; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; touch {tmp_path}/done"
    with starts(cores, "sh", "-c", until, cpu=cpu) as first:
        wait_until((tmp_path / "first").exists)
        with starts(cores, "sh", "-c", f"[ -e {tmp_path}/done ]", cpu=cpu) as second:
            (tmp_path / "go").touch()
            assert (first.wait(30), second.wait(30)) == (0, 0)


def test_the_slot_of_a_killed_process_is_freed_with_its_tool(tmp_path: Path, cpu: int) -> None:
    cores = tmp_path / "cores"
    with starts(cores, "sh", "-c", f"touch {tmp_path}/first; exec sleep 60", cpu=cpu) as first:
        wait_until((tmp_path / "first").exists)
        first.kill()
    with starts(cores, "true", cpu=cpu) as second:
        assert second.wait(30) == 0


def test_there_is_one_slot_per_core_of_the_process(tmp_path: Path) -> None:
    held = [cpu_slot(tmp_path, lambda: True) for _ in os.sched_getaffinity(0)]
    locks = [each.__enter__() for each in held]
    assert None not in locks
    with cpu_slot(tmp_path, lambda: True) as none:
        assert none is None
    held[0].__exit__(None, None, None)
    with cpu_slot(tmp_path, lambda: True) as one:
        assert one is not None
    for each in held[1:]:
        each.__exit__(None, None, None)


def test_a_cancelled_tool_does_not_wait_for_a_slot(tmp_path: Path) -> None:
    held = [cpu_slot(tmp_path, lambda: True) for _ in os.sched_getaffinity(0)]
    for each in held:
        each.__enter__()
    unwanted = threading.Event()
    threading.Timer(0.1, unwanted.set).start()
    with cancel_tools_on(unwanted), pytest.raises(ToolCancelled):
        run_tool(["true"], limits=ToolLimits(60, cpu_slots=tmp_path))
    for each in held:
        each.__exit__(None, None, None)


def test_a_folder_that_cannot_be_used_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ToolchainError, match=r"file.*FARM_RUNTIME_DIR"):
        run_tool(["true"], limits=ToolLimits(60, cpu_slots=tmp_path / "file"))
