"""Two `farm compile` at once on one machine share its cores."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.model_zoo import lenet5, write_network
from codegen.toolchain.tools import find_toolchain
from tests.command import ROOT


def slow_ptxas(folder: Path) -> tuple[Path, Path]:
    """The real ptxas, which takes its time; and where it writes when it begins and ends."""
    log, script = folder / "runs", folder / "ptxas"
    real = shlex.quote(str(find_toolchain().ptxas))
    script.write_text(
        f'#!/bin/sh\ncase "$1" in --*) exec {real} "$@";; esac\n'
        f'echo + $PPID >>{log}; {real} "$@"; code=$?; sleep 0.3; echo - $PPID >>{log}; exit $code\n'
    )
    script.chmod(0o755)
    return script, log


def most_at_once(log: Path) -> int:
    running = most = 0
    for line in log.read_text().splitlines():
        running += 1 if line.startswith("+") else -1
        most = max(most, running)
    assert running == 0
    return most


@pytest.mark.parametrize(("executor", "cores"), [("inline", 1), ("processes", 2), ("ray", 2)])
def test_two_compiles_at_once_run_no_more_tools_than_the_machine_has_cores(
    executor: str, cores: int, tmp_path: Path
) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:cores]
    script, log = slow_ptxas(tmp_path)
    compiles = []
    for name in ("first", "second"):
        model = tmp_path / f"{name}.onnx"
        write_network(model, lenet5(0.95, seed=len(compiles)))
        environment = {
            **{variable: value for variable, value in os.environ.items() if not variable.startswith("FARM_")},
            "HOME": str(tmp_path / name),
            "FARM_STORE": f"file://{tmp_path / name}/store",
            "FARM_DATABASE_URL": f"sqlite:///{tmp_path / name}.db",
            "FARM_EXECUTOR": executor,
            "FARM_PTXAS": str(script),
            "FARM_RUNTIME_DIR": str(tmp_path / "run"),
        }
        farm = [sys.executable, "-m", "cli.main", "compile", str(model), "--assembler", "ptxas"]
        command = ["taskset", "-c", ",".join(map(str, cpus)), *farm]
        compiles.append(
            subprocess.Popen([*command, "--arch", "sm_80,sm_90", "--json"], cwd=ROOT, env=environment, stdout=-1)
        )
    try:
        outputs = [each.communicate(timeout=240)[0] for each in compiles]
    finally:
        for each in compiles:
            each.kill()
    assert [each.returncode for each in compiles] == [0, 0], outputs
    assert 0 < most_at_once(log) <= len(cpus)
