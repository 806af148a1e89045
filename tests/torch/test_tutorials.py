"""The examples in README.md and farm/torch/README.md work as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch import nn
from torch.nn.utils import prune

from cli.report.measured import read_measured
from farm.bundle.reader import Bundle
from tests.command import ROOT, own_environment
from tests.needs import lacks_toolchain

SWEEPS = (ROOT / "farm" / "torch" / "README.md").read_text()
NETS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 16, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))
"""

pytestmark = pytest.mark.skipif(lacks_toolchain() is not None, reason=str(lacks_toolchain()))


def snippets(text: str, section: str) -> list[str]:
    """The Python of a section."""
    [found] = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    return re.findall(r"^```python\n(.*?)^```", found, re.M | re.S)


def executed(code: str, folder: Path) -> list[str]:
    (folder / "snippet.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "snippet.py"],
        cwd=folder,
        env={**own_environment(folder), "PYTHONPATH": str(ROOT), "FARM_EXECUTOR": "inline"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_tutorial_of_the_readme_makes_a_bundle(tmp_path: Path) -> None:
    first, _ = snippets((ROOT / "README.md").read_text(), "From a PyTorch model to a speed-up")
    assert len(first.split("model = ")[1].splitlines()) <= 12
    executed(first, tmp_path)
    bundle = Bundle(tmp_path / "bundle")
    assert [{each.arch for each in layer.cubins} for layer in bundle.layers.values()] == [{"sm_90", "sm_89"}] * 3
    assert bundle.network.inputs[0].shape[1:] == (3, 32, 32)


def test_the_sweep_of_the_page_on_sweeps_runs(tmp_path: Path) -> None:
    [code] = snippets(SWEEPS, "A sweep")
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "runs").mkdir()
    for level in range(2):
        layers = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))
        prune.l1_unstructured(layers[0], "weight", amount=0.8 + 0.1 * level)
        prune.l1_unstructured(layers[3], "weight", amount=0.8 + 0.1 * level)
        torch.save(layers.state_dict(), tmp_path / f"runs/level{level:02}-seed0.pt")
    lines = executed(code.replace("range(20)", "range(2)").replace("range(5)", "range(1)"), tmp_path)
    assert lines[:2] == [f"runs/level{i:02}-seed0.pt Net-{i:02} sweep/Net-{i:02}" for i in range(2)]
    assert lines[2].startswith("farm report --sweep ")
    assert [len(Bundle(tmp_path / "sweep" / f"Net-{i:02}").layers) for i in range(2)] == [2, 2]


def test_the_measurements_of_the_page_on_sweeps_are_read(tmp_path: Path) -> None:
    [table] = re.findall(r"^    name,arch,.*?(?=\n\n)", SWEEPS, re.M | re.S)
    (tmp_path / "accuracy.csv").write_text(re.sub(r"^    ", "", table, flags=re.M) + "\n")
    measured = read_measured(tmp_path / "accuracy.csv")
    assert measured.columns == ("accuracy", "latency_us")
    assert measured.values["Net-00", "sm_90"] == {"latency_us": 412.0}
