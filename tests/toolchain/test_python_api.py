"""The Python API: what farm/README.md shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.model_zoo import lenet5, write_network
from farm.api import Farm
from farm.errors import UnfinishedError, UsageError
from farm.jobs.model import BuildOptions
from tests.command import ROOT, own_environment
from tests.samples import checkpoint, cut_in_two, layer


@pytest.mark.slow
def test_the_snippet_of_the_readme_runs(tmp_path: Path) -> None:
    text = (ROOT / "farm" / "README.md").read_text()
    [snippet] = re.findall(r"^## Python API$.*?^```python\n(.*?)^```", text, re.M | re.S)
    write_network(tmp_path / "model.onnx", lenet5(0.9, seed=0))
    (tmp_path / "snippet.py").write_text(snippet + "print(module[:4], grid, block)\n")
    done = subprocess.run(
        [sys.executable, "snippet.py"],
        cwd=tmp_path,
        env={**own_environment(tmp_path), "PYTHONPATH": str(ROOT), "FARM_EXECUTOR": "inline"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    assert {tuple(line.split()[:2]) for line in lines[:-1]} == {
        (name, arch) for name in ("conv1", "conv2", "fc1", "fc2") for arch in ("sm_90", "sm_89")
    }
    assert lines[-1].startswith(r"b'\x7fELF' (")


def test_results_come_by_layer_and_architecture(farm: Farm) -> None:
    net = checkpoint(layer("conv1"), layer("conv2", seed=1))
    [job] = farm.compile([net], BuildOptions(("sm_90", "sm_80")))
    model = farm.compiled(job.id)
    assert list(model) == ["conv1", "conv2"]
    assert list(model["conv1"]) == ["sm_90", "sm_80"]
    conv1 = model["conv1"]["sm_90"]
    assert (conv1.name, conv1.arch, conv1.spec) == ("conv1", "sm_90", net.layers[0].spec)
    assert conv1.cubin == conv1.parts[0].cubin
    assert conv1.cubin.startswith(b"\x7fELF")
    assert conv1.cubin != model["conv1"]["sm_80"].cubin
    with pytest.raises(KeyError, match="has no layer 'conv3', only conv1, conv2"):
        model["conv3"]
    assert model.get("conv3") is None


def test_a_layer_in_parts_has_no_single_cubin(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_in_two(monkeypatch)
    [job] = farm.compile([checkpoint(layer("conv1"))], BuildOptions(("sm_90",)))
    conv1 = farm.compiled(job.id)["conv1"]["sm_90"]
    assert len({part.cubin for part in conv1.parts}) == 2
    with pytest.raises(UsageError, match="conv1 has 2 cubins for sm_90: launch those of `parts_for`"):
        _ = conv1.cubin


def test_a_job_that_has_not_ended_has_no_results(farm: Farm) -> None:
    [job] = farm.submit([checkpoint(layer("conv1"))], BuildOptions(("sm_90",))).jobs
    with pytest.raises(UnfinishedError, match="is PENDING"):
        farm.compiled(job.id)


def test_a_submission_without_a_new_job_names_an_earlier_one_that_exists(farm: Farm) -> None:
    nets = [checkpoint(layer(name)) for name in ("conv1", "conv2")]
    first, again = (farm.submit(nets[:1], BuildOptions(("sm_90",))) for _ in range(2))
    assert (first.is_new, again.is_new) == (True, False)
    assert again.id == first.id == again.jobs[0].submission
    both = farm.submit(nets, BuildOptions(("sm_90",)))
    assert both.is_new
    assert [job.submission for job in both.jobs] == [first.id, both.id]
