"""CPU slots are shared by independent processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from codegen.errors import ToolCancelled, ToolchainError
from codegen.toolchain.cpu_slots import SlotWait, cpu_slot, slot_wait
from codegen.toolchain.tools import ToolLimits, cancel_tools_on, run_tool, tool_clock
from tests.command import ROOT
from tests.toolchain.test_toolchain import wait_until

RUN = """
import sys
from pathlib import Path
from codegen.toolchain.tools import ToolLimits, run_tool
run_tool(sys.argv[2:], limits=ToolLimits(60, cpu_slots=Path(sys.argv[1])))
"""

OBSERVE = """
import os, sys, threading, time
from pathlib import Path
from codegen.toolchain.cpu_slots import slot_wait
from codegen.toolchain.tools import ToolLimits, run_tool
cores = Path(sys.argv[1])
limits = ToolLimits(60, cpu_slots=cores)
threading.Thread(target=run_tool, args=(["true"],), kwargs={"limits": limits}, daemon=True).start()
while (wait := slot_wait(cores)) is None:
    time.sleep(0.02)
print(*wait.holders, flush=True)
os._exit(0)
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


def test_a_process_whose_tool_waits_knows_who_holds_the_core(tmp_path: Path, cpu: int) -> None:
    cores = tmp_path / "cores"
    with starts(cores, "sh", "-c", f"touch {tmp_path}/first; exec sleep 60", cpu=cpu) as first:
        wait_until((tmp_path / "first").exists)
        command = ["taskset", "-c", str(cpu), sys.executable, "-c", OBSERVE, str(cores)]
        assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60).stdout.split() == [b"%d" % first.pid]
        assert slot_wait(cores) is None  # this process waits for nothing
        first.kill()


@pytest.mark.parametrize(
    ("holders", "text"),
    [
        ((), "waiting for a core held by another process"),
        ((12,), "waiting for a core held by process 12"),
        ((12, 34), "waiting for a core held by process 12 or 34"),
        ((1, 2, 3, 4, 5), "waiting for a core held by process 1, 2, 3 or 2 more"),
    ],
)
def test_a_wait_names_up_to_three_holders(holders: tuple[int, ...], text: str) -> None:
    assert SlotWait(holders).text == text


def test_the_clock_of_a_tool_starts_when_it_has_a_core(tmp_path: Path) -> None:
    held = [cpu_slot(tmp_path, lambda: True) for _ in os.sched_getaffinity(0)]
    for each in held:
        each.__enter__()
    began = time.monotonic()
    threading.Timer(0.5, lambda: [each.__exit__(None, None, None) for each in held]).start()
    with tool_clock() as clock:
        run_tool(["sleep", "0.1"], limits=ToolLimits(60, cpu_slots=tmp_path))
    assert 0.1 <= clock.seconds <= time.monotonic() - began - 0.5


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
