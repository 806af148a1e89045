"""Files in the folder where `farm` is typed do not take the place of its modules, in no process that it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from codegen.model_zoo import lenet5, write_network
from tests.command import ROOT, own_environment

SHADOWS = ("cli.py", "farm.py", "codegen/__init__.py", "numpy.py", "onnx/__init__.py", "ray.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with a model, and modules that must not be imported."""
    folder = tmp_path / "here"
    for name in SHADOWS:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise RuntimeError('{name} of the working directory was imported')\n")
    write_network(folder / "lenet5.onnx", lenet5(0.9, seed=0))
    return folder


@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_modules_in_the_working_directory_shadow_nothing(executor: str, folder: Path, tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("farm")
    if not script.exists():
        pytest.skip("needs the command farm: make setup installs it")
    done = subprocess.run(
        [script, "compile", "lenet5.onnx", "--arch", "sm_90", "-j", "2"],
        cwd=folder,
        env={
            **own_environment(tmp_path / "home"),
            "PYTHONPATH": str(ROOT),
            "FARM_JOB_TIMEOUT": "3min",
            "FARM_EXECUTOR": executor,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "of the working directory was imported" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    assert "SUCCEEDED" in done.stdout
