"""Failures of the real tools: each kind has its end, its message and its record in the cache."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from farm.api import Farm
from farm.config.settings import Settings
from farm.errors import JobFailedError, StoreUnavailableError
from farm.jobs.model import BuildOptions, Status
from farm.ledger import open_ledger
from farm.store.contract import Record
from farm.store.memory import MemoryStore
from farm.testing import laptop_settings
from tests.house.tree import ROOT
from tests.samples import checkpoint, layer
from tests.toolchain.tools import NET, OPTIONS, REFUSAL, Tools


def test_what_ptxas_refuses_fails_the_job_and_is_remembered(farm: Farm, tools: Tools, tmp_path: Path) -> None:
    tools.refuse(REFUSAL)
    [job] = farm.compile([NET], OPTIONS)
    assert job.status is Status.FAILED
    assert REFUSAL in job.reason
    tools.calls()
    tools.relent()
    [again] = farm.compile([NET], OPTIONS)
    assert (again.status, again.reason) == (Status.FAILED, job.reason)
    assert tools.calls() == []
    with pytest.raises(JobFailedError, match="4 of 4 cubins failed"):
        farm.fetch(again.id, tmp_path / "out")


def pasted(command: str, settings: Settings, folder: Path) -> subprocess.CompletedProcess[str]:
    """The result of a command in a shell, in an empty folder, where `farm` is this program."""
    folder.mkdir()
    python = shlex.quote(sys.executable)
    script = f'farm() {{ {python} -m cli.main "$@"; }}\n{command}'
    farm = {"FARM_STORE": settings.store_url, "FARM_DATABASE_URL": settings.database_url}
    environment = {**os.environ, **farm, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder)}
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_command_of_a_failure_runs_ptxas_on_the_kernel_again(
    farm: Farm, settings: Settings, tools: Tools, tmp_path: Path
) -> None:
    tools.refuse(REFUSAL)
    [job] = farm.compile([NET], OPTIONS)
    command = farm.inspect(job.id).results[0].command
    assert "ptxas -arch=sm_80 -O3" in command
    again = pasted(command, settings, tmp_path / "again")
    assert (again.returncode, again.stderr) == (255, REFUSAL + "\n")
    tools.relent()
    done = pasted(command, settings, tmp_path / "done")
    assert done.returncode == 0
    assert (tmp_path / "done" / "kernel.cubin").read_bytes().startswith(b"\x7fELF")


def test_the_command_of_a_template_that_failed_runs_nvcc_on_its_sources_again(
    farm: Farm, settings: Settings, tools: Tools, tmp_path: Path
) -> None:
    tools.say("nvcc", "echo 'error: no' >&2; exit 1")
    [job] = farm.compile([checkpoint(layer())], OPTIONS)
    [command] = {result.command for result in farm.inspect(job.id).results}
    again = pasted(command, settings, tmp_path / "again")
    assert (again.returncode, again.stderr) == (1, "error: no\n")
    tools.say("nvcc", tools.command("nvcc"))
    done = pasted(command, settings, tmp_path / "done")
    assert (done.returncode, done.stderr) == (0, "")
    assert ".visible .entry" in (tmp_path / "done" / "template" / "template.ptx").read_text()


def test_recache_tries_again_what_was_refused(settings: Settings, tools: Tools) -> None:
    tools.refuse(REFUSAL)
    with Farm.open(settings) as farm:
        farm.compile([NET], OPTIONS)
    tools.relent()
    with Farm.open(replace(settings, recache=True)) as farm:
        [job] = farm.compile([NET], OPTIONS)
    assert (job.status, job.hits) == (Status.SUCCEEDED, 0)


@pytest.mark.parametrize(
    "message", ["ptxas fatal   : Output file 'kernel.cubin' could not be opened", "No space left on device"]
)
def test_a_failure_that_is_not_about_the_ptx_is_not_remembered(farm: Farm, tools: Tools, message: str) -> None:
    tools.refuse(message)
    [job] = farm.compile([NET], OPTIONS)
    assert job.status is Status.FAILED
    tools.relent()
    [job] = farm.compile([NET], OPTIONS)
    assert job.status is Status.SUCCEEDED


def test_a_timeout_is_final_at_both_levels_and_not_remembered(farm: Farm, settings: Settings, tools: Tools) -> None:
    net = checkpoint(layer())
    farm.compile([net], BuildOptions(("sm_80",)))
    tools.calls()
    tools.say("ptxas", "sleep 60")
    with Farm.open(replace(settings, tool_timeout_seconds=1.0)) as hurried:
        [job] = hurried.compile([net], BuildOptions(("sm_90",)))
    assert (job.status, job.fault) == (Status.FAILED, "time")
    assert "time limit of 1 s, at -O1 too" in job.reason
    assert tools.calls() == ["ptxas"] * 2
    tools.relent()
    [job] = farm.compile([net], BuildOptions(("sm_90",)))
    assert job.status is Status.SUCCEEDED


def test_a_cubin_that_takes_too_long_is_built_at_a_lower_level_under_its_own_key(
    farm: Farm, settings: Settings, tools: Tools
) -> None:
    net = checkpoint(layer())
    real = tools.command("ptxas")
    tools.say("ptxas", f'case "$*" in *-O3*) sleep 60;; esac\n{real}')
    with Farm.open(replace(settings, tool_timeout_seconds=2.0)) as hurried:
        [job] = hurried.compile([net], BuildOptions(("sm_90",)))
        assert (job.status, job.hits) == (Status.SUCCEEDED, 0)
        [result] = hurried.inspect(job.id).results
        assert result.optimisation == 1
        warnings = [event.text for event in hurried.logs(job.id) if event.level == "warning"]
    assert warnings == ["conv1 sm_90: retrying at -O1: ptxas ran into its time limit of 2 s"]
    [lower] = farm.compile([net], replace(BuildOptions(("sm_90",)), optimisation=1))
    assert (lower.hits, farm.inspect(lower.id).results[0].cubin_key) == (1, result.cubin_key)
    tools.relent()
    [again] = farm.compile([net], BuildOptions(("sm_90",)))
    assert again.hits == 0
    assert farm.inspect(again.id).results[0].optimisation == 3


def test_what_runs_out_of_memory_gets_twice_as_much_once(settings: Settings, tools: Tools) -> None:
    few = replace(settings, tool_memory_bytes=300 * 2**20, tool_memory_most_bytes=2**30)
    tools.say(
        "ptxas", f'[ "$(ulimit -v)" -ge 600000 ] || {{ echo out of memory >&2; exit 1; }}\n{tools.command("ptxas")}'
    )
    net, options = checkpoint(layer()), BuildOptions(("sm_90",))
    with Farm.open(few) as farm, Farm.open(settings) as enough:
        enough.compile([net], BuildOptions(("sm_80",)))  # nvcc needs more than this ptxas
        tools.calls()
        [job] = farm.compile([net], options)
        assert job.status is Status.SUCCEEDED
        assert tools.calls() == ["ptxas"] * 2
        warnings = [event.text for event in farm.logs(job.id) if event.level == "warning"]
        assert warnings == ["conv1 sm_90: retrying with 600 MiB: ptxas needs more than its limit of 300 MiB"]
    with Farm.open(replace(few, tool_memory_most_bytes=500 * 2**20, recache=True)) as farm:
        [job] = farm.compile([checkpoint(layer(seed=1))], replace(options, archs=("sm_80",)))
        assert (job.status, job.fault) == (Status.FAILED, "memory")
        assert "more than its limit of" in job.reason


def test_a_tool_that_crashes_is_tried_again_and_then_crashes_the_job(farm: Farm, tools: Tools) -> None:
    tools.say("ptxas", "kill -SEGV $$")
    [job] = farm.compile([checkpoint(layer())], BuildOptions(("sm_90",)))
    assert job.status is Status.CRASHED
    assert "SIGSEGV" in job.reason
    assert tools.calls() == ["nvcc"] + ["ptxas"] * 3


class AwayStore(MemoryStore):
    """Is away when the first few cubins are to be recorded."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def put_record(self, stage: str, key: str, record: Record) -> None:
        if stage == "cubin" and self._times > 0:
            self._times -= 1
            raise StoreUnavailableError("the store does not answer")
        super().put_record(stage, key, record)


def test_a_store_that_is_away_is_waited_for_and_one_that_stays_away_crashes_the_job(tmp_path: Path) -> None:
    settings = laptop_settings(tmp_path)
    one, options = checkpoint(layer("conv1")), BuildOptions(("sm_80",))
    with Farm(settings, AwayStore(2), open_ledger(settings)) as farm:
        [job] = farm.compile([one], options)
        assert job.status is Status.SUCCEEDED
        warnings = [event.text for event in farm.logs(job.id) if event.level == "warning"]
        assert len(warnings) == 2
        assert all("the store does not answer" in text for text in warnings)
    settings = replace(laptop_settings(tmp_path / "other"), away_seconds=0.0)
    with Farm(settings, AwayStore(1), open_ledger(settings)) as farm:
        [job] = farm.compile([one], options)
        assert (job.status, job.fault) == (Status.CRASHED, "away")
        assert "the store does not answer" in job.reason
