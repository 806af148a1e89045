"""A farm whose cores another process holds says so, and does not count the wait as time of its tools."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.api import Farm
from farm.config.settings import Settings, cores_folder
from farm.jobs.model import BuildOptions, Status
from tests.command import ROOT, own_environment
from tests.samples import checkpoint, layer

HOLD = """
import os, sys
from contextlib import ExitStack
from pathlib import Path
from codegen.toolchain.cpu_slots import cpu_slot
with ExitStack() as stack:
    for _ in os.sched_getaffinity(0):
        stack.enter_context(cpu_slot(Path(sys.argv[1]), lambda: True))
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """A process that holds all cores until its standard input is closed."""
    command = [sys.executable, "-c", HOLD, str(cores_folder(settings))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


@contextmanager
def serving(settings: Settings, executor: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `farm serve --drain` with the settings, and kills it at the end if it still runs."""
    variables = {
        "FARM_STORE": settings.store_url,
        "FARM_DATABASE_URL": settings.database_url,
        "FARM_EXECUTOR": executor,
        "FARM_RUNTIME_DIR": str(cores_folder(settings)),
    }
    environment = {**own_environment(log.parent), **variables}
    command = [sys.executable, "-m", "cli.main", "serve", "--drain"]
    with log.open("wb") as lines, subprocess.Popen(command, cwd=ROOT, env=environment, stderr=lines) as process:
        try:
            yield process
        finally:
            process.kill()


def first(answer: Callable[[], str]) -> str:
    """The first answer that is not empty, within a minute."""
    end = time.monotonic() + 60
    while not (found := answer()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_wait_for_a_core_is_said_and_is_not_time_of_nvcc(
    settings: Settings, holder: subprocess.Popen[str], executor: str, tmp_path: Path
) -> None:
    expected = f"waiting for a core held by process {holder.pid}"
    with Farm.open(settings) as farm:
        [job] = farm.submit([checkpoint(layer())], BuildOptions(("sm_90",))).jobs
        with serving(settings, executor, tmp_path / "log") as process:
            assert first(lambda: farm.job(job.id).reason) == expected
            if executor == "processes":
                assert expected == first(
                    lambda: "".join(each["reason"] for state in farm.coordinators() for each in state.workers)
                )
            released = time.monotonic()
            holder.communicate()
            assert process.wait(120) == 0
        done, statistics = farm.job(job.id), farm.statistics()
    assert (done.status, done.reason) == (Status.SUCCEEDED, "")
    spent = statistics.template.spent_seconds + statistics.cubin.spent_seconds
    assert 0 < spent < time.monotonic() - released
