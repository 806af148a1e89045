"""The command starts fast because it loads only what it needs: no clock here, the modules tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

HEAVY = {"ray", "onnx", "boto3", "alembic", "jinja2", "pycuda", "numpy"}
DATABASE = {"sqlalchemy"}
PROBE = "import json, sys; from cli.main import run; code = run({}); print(); print(json.dumps([code, *sys.modules]))"


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], HEAVY | DATABASE),
        (["compile", "--help"], HEAVY | DATABASE),
        (["config", "show"], HEAVY | DATABASE),
        (["status"], HEAVY),
        (["workers"], HEAVY),
    ],
)
def test_a_command_that_compiles_nothing_loads_nothing_heavy(
    arguments: list[str], heavy: set[str], tmp_path: Path
) -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("FARM_")}
    environment = {**outside, "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    assert _loaded(["db", "upgrade"], environment) >= {"alembic"}  # the first status would migrate
    loaded = _loaded(arguments, environment)
    assert "typer" in loaded
    assert not loaded & heavy


def _loaded(arguments: list[str], environment: dict[str, str]) -> set[str]:
    """The top-level packages that one command has loaded at its end."""
    probe = [sys.executable, "-c", PROBE.format(arguments)]
    ended = subprocess.run(probe, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    code, *names = json.loads(ended.stdout.splitlines()[-1])
    assert code == 0
    return {name.partition(".")[0] for name in names}
