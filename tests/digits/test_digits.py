"""A network trained, pruned, exported and compiled: its generated code answers as onnxruntime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from cli.exit_codes import OK
from cli.main import run
from codegen.errors import ToolchainError
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import lenet5, write_network
from codegen.toolchain.tools import find_toolchain
from farm.api import Farm
from farm.bundle.reader import Bundle
from tests.digits.demonstration import demonstrate, jobs_of
from tests.digits.exporting import EXPORTERS
from tests.digits.training import Digits, prune, small_network

SPARSITY = 0.9


@pytest.fixture
def own_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(f"needs the CUDA toolchain: {error}")
    for name, value in {
        "FARM_STORE": f"file://{tmp_path / 'store'}",
        "FARM_DATABASE_URL": f"sqlite:///{tmp_path / 'farm.db'}",
        "FARM_EXECUTOR": "inline",
        "FARM_JOBS": "2",
        "FARM_RUNTIME_DIR": str(tmp_path / "run"),
        "XDG_CONFIG_HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_a_network_trained_and_pruned_here_answers_as_onnxruntime_does(
    own_farm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fewer epochs, files and images than `make digits`, which goes the same way."""
    folder = own_farm / "digits"
    answers = demonstrate(folder, Digits.load(), archs=["sm_80"], epochs=6, fine_epochs=2, images=96, kept=(SPARSITY,))
    assert [answer.exporter for answer in answers] == list(EXPORTERS)
    for answer in answers:
        assert (answer.images, answer.differing) == (96, 0)
        assert min(answer.accuracy_before, answer.accuracy_pruned, answer.accuracy) > 0.9
        checkpoint = read_checkpoint(answer.model)
        weights = [layer.weights.kernel for layer in checkpoint.layers]
        nonzeros = sum(np.count_nonzero(each) for each in weights)
        assert nonzeros <= (1 - SPARSITY) * sum(each.size for each in weights) + 1
        bundle = Bundle(folder / answer.model.stem)
        assert len(bundle.layers) == 4
        assert not checkpoint.skipped
    assert "SAME AS ONNXRUNTIME" in capsys.readouterr().out


def test_jobs_of_others_that_came_meanwhile_are_left_alone(own_farm: Path) -> None:
    models = [own_farm / f"{name}.onnx" for name in ("a", "b", "others")]
    for seed, model in enumerate(models):
        write_network(model, lenet5(0.9, seed))
    for submitted in (models[:2], models[2:]):
        assert run(["submit", *map(str, submitted), "--arch", "sm_80"]) == OK
    with Farm.open() as farm:
        names = {job.id: job.name for job in farm.jobs(limit=3)}
    assert [names[job] for job in jobs_of(models[:2])] == ["a", "b"]


def test_pruning_leaves_the_largest_weights_of_all_layers() -> None:
    torch.manual_seed(0)
    network = small_network()
    before = torch.cat([each.detach().abs().flatten() for each in network.parameters() if each.ndim > 1])
    masks = prune(network, SPARSITY)
    after = torch.cat([weight.detach().abs().flatten() for weight in masks])
    assert int((after != 0).sum()) == len(before) - round(SPARSITY * len(before))
    assert after[after != 0].min() >= before[after == 0].max()
