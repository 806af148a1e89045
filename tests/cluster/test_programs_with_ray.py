"""A program that uses Ray itself uses the farm's Python API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from codegen.model_zoo import lenet5, write_network
from tests.command import ROOT, own_environment

PROGRAM = """
import ray
from farm.api import Farm
from farm.jobs.model import BuildOptions
from codegen.frontend.onnx.reader import read_checkpoint
from pathlib import Path

if __name__ == "__main__":
    with Farm.open() as farm:
        [job] = farm.compile([read_checkpoint(Path("lenet5.onnx"))], BuildOptions(("sm_90",)))
    print(job.status, job.reason)
"""


def test_a_program_that_has_imported_ray_compiles_on_a_ray_of_this_machine(tmp_path: Path) -> None:
    write_network(tmp_path / "lenet5.onnx", lenet5(0.99, seed=0))
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = own_environment(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), "FARM_EXECUTOR": "ray", "FARM_JOBS": "2"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "SUCCEEDED" in done.stdout
