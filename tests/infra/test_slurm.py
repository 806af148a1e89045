"""The batch script for Slurm: it starts a cluster and a coordinator, and ends with the jobs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.infra.documents import INFRA, commands

SCRIPT = INFRA / "slurm.sbatch"
STUBS = {
    "scontrol": "echo localhost",
    "getent": 'echo "127.0.0.1 STREAM localhost"',
    "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
    "ray": 'echo "ray $*" >> "$CALLS"; [[ $1 == status ]] || exec sleep 60',
    "farm": 'until [ "$(grep -c start "$CALLS")" = "$SLURM_JOB_NUM_NODES" ]; do sleep 0.05; done; '
    'echo "farm $* at $FARM_RAY_ADDRESS" >> "$CALLS"; exit "$FARM_CODE"',
}


def run(folder: Path, code: int, nodes: int) -> tuple[int, list[str]]:
    """The script with programs in place of Slurm, Ray and farm that write down how they are called."""
    for name, body in STUBS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    slurm = {"JOB_ID": "7", "JOB_NODELIST": "n[1-2]", "JOB_NUM_NODES": str(nodes), "CPUS_PER_TASK": "4"}
    environment = {
        **os.environ,
        **{f"SLURM_{name}": value for name, value in slurm.items()},
        "PATH": f"{folder}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "FARM_CODE": str(code),
    }
    done = subprocess.run(["bash", SCRIPT], env=environment, timeout=60)
    return done.returncode, sorted((folder / "calls").read_text().splitlines())


def test_it_starts_a_head_and_workers_and_serves_until_nothing_is_pending(tmp_path: Path) -> None:
    code, calls = run(tmp_path, 0, nodes=2)
    assert code == 0
    assert "farm serve --drain at 127.0.0.1:20007" in calls
    starts = [call for call in calls if call.startswith("ray start")]
    assert len(starts) == 2
    assert any("--head" in call and "--port=20007" in call for call in starts)
    assert any("--address=127.0.0.1:20007" in call and "--num-cpus=4" in call for call in starts)


def test_on_one_node_there_are_no_workers_and_the_coordinator_s_exit_code_is_the_job_s(tmp_path: Path) -> None:
    code, calls = run(tmp_path, 32, nodes=1)
    assert code == 32
    assert len([call for call in calls if call.startswith("ray start")]) == 1


def test_its_commands_are_among_those_whose_options_are_checked() -> None:
    assert ("farm", "serve", "--drain") in commands("farm")
    assert any(call[:3] == ("ray", "start", "--head") for call in commands("ray"))
