"""`farm serve` in a process of its own, with Ray and without: what cancelling and stopping leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from farm.api import Farm
from farm.config.settings import Settings
from farm.jobs.model import BuildOptions, Job, JobSet, Status
from farm.testing import laptop_settings
from farm.worker.messages import Fault
from tests.cluster.sleeping import running, sleeping_ptxas, wait_until
from tests.cluster.workplace import workplace
from tests.samples import SMALLER, checkpoint, layer

ROOT = Path(__file__).parents[2]
OPTIONS = BuildOptions(("sm_90",), assembler="ptxas")


@contextmanager
def serving(settings: Settings, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "FARM_STORE": settings.store_url,
        "FARM_DATABASE_URL": settings.database_url,
        "FARM_EXECUTOR": settings.executor,
        "FARM_JOBS": "2",
        "FARM_PTXAS": str(settings.ptxas),
        "FARM_RUNTIME_DIR": str(settings.runtime_dir),
    }
    command = [sys.executable, "-m", "cli.main", "serve", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture
def asleep(tmp_path: Path) -> tuple[Settings, Path]:
    """A farm whose ptxas never ends, and where each run of it leaves its process id."""
    script, runs = sleeping_ptxas(tmp_path)
    return replace(laptop_settings(tmp_path), ptxas=script, executor="ray"), runs


def submitted(farm: Farm, *names: str) -> Job:
    layers = {"shared": layer("shared"), "own": layer("own", spec=SMALLER)}
    return farm.submit([checkpoint(*(layers[name] for name in names))], OPTIONS).jobs[0]


def test_cancelling_kills_the_tools_of_the_job_and_none_that_another_needs(asleep: tuple[Settings, Path]) -> None:
    settings, runs = asleep
    with Farm.open(settings) as farm, serving(settings) as child:
        both, shared = submitted(farm, "own", "shared"), submitted(farm, "shared")
        wait_until(lambda: len(running(runs)) == 2)
        tools = set(running(runs))
        assert farm.cancel(JobSet(ids=(both.id,))) == [both.id]
        wait_until(lambda: len(running(runs)) == 1)
        assert set(running(runs)) < tools
        assert farm.job(shared.id).status is Status.RUNNING
        [coordinator] = farm.coordinators()
        assert (coordinator.serves, coordinator.alive, coordinator.jobs) == (True, True, 1)
        farm.cancel(JobSet(ids=(shared.id,)))
        wait_until(lambda: not running(runs))
        assert child.poll() is None
        assert farm.counts() == {Status.CANCELLED: 2}


@pytest.mark.parametrize("executor", ["inline", "processes", "ray"])
def test_a_job_that_is_cancelled_has_no_tool_running_2_s_later(asleep: tuple[Settings, Path], executor: str) -> None:
    settings, runs = asleep
    with Farm.open(settings) as farm, serving(replace(settings, executor=executor)) as child:
        first = submitted(farm, "own")
        wait_until(lambda: len(running(runs)) == 1)
        start = time.monotonic()
        farm.cancel(JobSet(ids=(first.id,)))
        wait_until(lambda: not running(runs))
        assert time.monotonic() - start < 2
        submitted(farm, "shared")  # the coordinator goes on
        wait_until(lambda: len(running(runs)) == 1)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=60)
        assert child.returncode == 0
        assert "stopped: 1 unfinished job given back" in said
        wait_until(lambda: not running(runs))


def test_a_coordinator_that_is_told_to_stop_gives_its_jobs_back_and_leaves_no_process(
    asleep: tuple[Settings, Path],
) -> None:
    settings, runs = asleep
    with Farm.open(settings) as farm, serving(settings) as child:
        job = submitted(farm, "own", "shared")
        wait_until(lambda: len(running(runs)) == 2)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=60)
        assert child.returncode == 0
        assert "stopped: 1 unfinished job given back" in said
        wait_until(lambda: not running(runs))
        assert farm.job(job.id).status is Status.PENDING
        assert farm.coordinators() == []
    with Farm.open(laptop_settings(Path(settings.database_url.removeprefix("sqlite:///")).parent)) as farm:
        farm.serve(drain=True)
        assert (farm.job(job.id).status, farm.job(job.id).tries) == (Status.SUCCEEDED, 2)


def test_a_coordinator_that_is_killed_is_replaced_when_its_lease_ends(asleep: tuple[Settings, Path]) -> None:
    settings, runs = asleep
    with Farm.open(settings) as farm, serving(settings) as child:
        job = submitted(farm, "own", "shared")
        wait_until(lambda: len(running(runs)) == 2)
        child.kill()
        child.wait()
        wait_until(lambda: not running(runs))
        assert farm.job(job.id).status is Status.RUNNING
        [dead] = farm.coordinators()  # as if its lease had ended
        farm._ledger.extend_lease(dead.id, 0)
        farm._ledger.coordinators.beat(dead.id, 0, [])
    with Farm.open(laptop_settings(Path(settings.database_url.removeprefix("sqlite:///")).parent)) as farm:
        [done] = farm.run([job.id])
        assert (done.status, done.tries) == (Status.SUCCEEDED, 2)


def test_what_no_machine_has_the_memory_for_is_refused_at_once(tmp_path: Path) -> None:
    with workplace(tmp_path, "ray") as place:
        [template] = place.plan(layer()).templates
        [result] = place.do(replace(template, memory_limit_bytes=2**50))
        assert result.failure is not None
        assert result.failure.fault is Fault.FARM
        assert "no machine can build this: it needs about" in result.failure.message
        assert place.do(template)[0].failure is None
        [state] = place.executor.workers()
        assert (state.cpus, state.accepted, state.finished, state.failed) == (2, 1, 1, 0)
