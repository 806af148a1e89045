"""The program as users install it, into environments of their own, used where there is no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.model_zoo import operator_network, write_network
from tests.house.tree import ROOT
from tests.samples import SMALL

PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--quiet", "-c", str(ROOT / "constraints.txt"))


@pytest.fixture(autouse=True)
def _wanted(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--install"):
        pytest.skip("needs --install (make test-packages): it downloads, and takes minutes")


def run(folder: Path, *command: str | Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command with nothing of this checkout around it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FARM_", "PYTHON"))}
    homes = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CONFIG", "DATA")}
    done = subprocess.run(
        command, cwd=folder, env=environment | homes | {"FARM_EXECUTOR": "inline"}, capture_output=True, text=True
    )
    assert not ok or done.returncode == 0, done.stdout + done.stderr
    return done


def environment_at(folder: Path) -> Path:
    """A new environment; gives its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git knows, so that a build leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("copy")
    archive = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in archive.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
            (folder / name).chmod((ROOT / name).stat().st_mode)
    return folder


def compiles(farm: Path, folder: Path) -> None:
    write_network(folder / "layer.onnx", operator_network(SMALL, 0.9, seed=0))
    run(folder, farm, "compile", "layer.onnx", "--arch", "sm_90", "-o", "bundle")
    assert (folder / "bundle" / "manifest.json").is_file()
    run(folder, farm, "verify", "latest")


def test_pip_installs_a_program_that_compiles_and_then_pycuda(copy: Path, tmp_path: Path) -> None:
    python = environment_at(tmp_path / "environment")
    run(tmp_path, python, *PIP, copy)
    compiles(python.parent / "farm", tmp_path)
    run(tmp_path, copy / "infra" / "install-pycuda", python)
    run(tmp_path, python, *PIP, f"{copy}[gpu]")  # all of it is there
    checks = json.loads(run(tmp_path, python.parent / "farm", "doctor", "--json").stdout)["checks"]
    [gpu] = [each["text"] for each in checks if each["name"] == "gpu"]
    assert "farm verify --gpu works" in gpu or "its libcuda.so.1 comes with NVIDIA's driver" in gpu or "no GPU" in gpu


def test_pipx_installs_it(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment_at(tmp_path / "pipx")
    run(tmp_path, python, *PIP, "pipx")
    monkeypatch.setenv("PIPX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIPX_BIN_DIR", str(tmp_path / "bin"))
    run(tmp_path, python, "-m", "pipx", "install", "--python", sys.executable, copy)
    compiles(tmp_path / "bin" / "farm", tmp_path)
