"""PyTorch models as pruning leaves them, compiled with one call, and the checkpoints of a sweep with one export."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from torch import nn
from torch.nn.utils import parametrizations, prune

import farm.torch
from codegen.errors import DeviceError
from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint, Weights
from farm.api import Farm
from farm.bundle.reader import Bundle
from farm.config.settings import load_settings
from farm.errors import UsageError
from farm.torch.export import Exported, permanent
from tests.needs import lacks_toolchain

compiles = pytest.mark.skipif(lacks_toolchain() is not None, reason=str(lacks_toolchain()))


class Net(nn.Module):
    """Has what exporters fold: a normalisation, an addition, a transposed matrix, a branch for training."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.rows = nn.Linear(8, 8)
        self.last = nn.Linear(16, 10)
        self.auxiliary = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x)))
        y = self.rows(torch.relu(self.second(y) + y)).mean((2, 3))
        return self.last(y) + self.auxiliary(y) if self.training else self.last(y)


PRUNED = ("first", "second", "rows", "last")


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    made = Net()
    nn.init.normal_(made.norm.running_mean)
    return made


def pruned(model: Net, sparsity: float) -> Net:
    for name in PRUNED:
        prune.l1_unstructured(model.get_submodule(name), "weight", amount=sparsity)
    return model


def example(images: int = 2) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((images, 3, 8, 8), np.float32))


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that PyTorch has exported."""
    calls: list[nn.Module] = []
    export = torch.onnx.export

    def counted(model: nn.Module, *args: Any, **options: Any) -> object:
        calls.append(model)
        return export(model, *args, **options)

    monkeypatch.setattr(torch.onnx, "export", counted)
    return calls


@pytest.fixture
def own_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    places = {"store_url": str(tmp_path / "store"), "database_url": f"sqlite:///{tmp_path}/farm.db"}
    with Farm.open(load_settings(overrides={**places, "executor": "inline"})) as opened:
        yield opened


@pytest.fixture(scope="module")
def exported() -> Exported:
    return Exported(net(), example())


def written(path: Path, model: nn.Module, x: torch.Tensor) -> Path:
    Exported(model, x).write(path, None, "it")
    return path


def computed(path: Path, x: torch.Tensor) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [y] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return np.asarray(y)


def expected(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.inference_mode():
        return model.eval()(x).numpy()


def sparsities(checkpoint: Checkpoint) -> list[float]:
    return [round(layer.weights.sparsity, 2) for layer in checkpoint.layers]


def test_the_masks_of_a_model_are_made_permanent_on_a_copy(tmp_path: Path) -> None:
    model = pruned(net(), 0.9)
    before = {name: values.clone() for name, values in model.state_dict().items()}
    path = written(tmp_path / "net.onnx", model, example())
    assert sparsities(read_checkpoint(path)) == pytest.approx([0.9] * 4, abs=0.02)
    assert model.training
    assert prune.is_pruned(model)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    np.testing.assert_allclose(computed(path, example(5)), expected(model, example(5)), rtol=1e-4, atol=1e-5)


def test_parametrizations_become_constants_of_the_layer(tmp_path: Path) -> None:
    model, other = net(), net(1)
    for each in (model, other):
        parametrizations.weight_norm(each.second)
    exported = Exported(model, example())
    for each, state in ((model, None), (other, other.state_dict())):
        exported.write(tmp_path / "net.onnx", state, "it")
        assert len(read_checkpoint(tmp_path / "net.onnx").layers) == len(PRUNED)
        found = computed(tmp_path / "net.onnx", example())
        np.testing.assert_allclose(found, expected(each, example()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("images", [1, 4])
def test_the_batch_stays_open_whatever_the_example_has(tmp_path: Path, images: int) -> None:
    path = written(tmp_path / "net.onnx", net(), example(images))
    np.testing.assert_allclose(computed(path, example(3)), expected(net(), example(3)), rtol=1e-4, atol=1e-5)


def test_a_model_that_fixes_its_batch_keeps_that_of_the_example(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.view(1, 8))

    checkpoint = read_checkpoint(written(tmp_path / "net.onnx", Fixed(), torch.zeros(1, 8)))
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    assert network.inputs[0].shape == (1, 8)


@pytest.mark.parametrize("masked", [False, True])
def test_a_state_dict_replaces_every_weight(tmp_path: Path, exported: Exported, masked: bool) -> None:
    other = pruned(net(1), 0.8)
    if not masked:
        for name in PRUNED:
            prune.remove(other.get_submodule(name), "weight")
    path = tmp_path / "net.onnx"
    exported.write(path, other.state_dict(), "it")
    assert sparsities(read_checkpoint(path)) == pytest.approx([0.8] * 4, abs=0.02)
    np.testing.assert_allclose(computed(path, example()), expected(other, example()), rtol=1e-4, atol=1e-5)


def test_one_export_serves_every_state_dict_and_leaves_nothing_of_the_last(
    tmp_path: Path, exports: list[nn.Module]
) -> None:
    exported = Exported(net(), example())
    for seed in (1, 2):
        exported.write(tmp_path / "net.onnx", net(seed).state_dict(), "it")
        found = computed(tmp_path / "net.onnx", example())
        np.testing.assert_allclose(found, expected(net(seed), example()), rtol=1e-4, atol=1e-5)
    exported.write(tmp_path / "net.onnx", None, "it")
    found = computed(tmp_path / "net.onnx", example())
    np.testing.assert_allclose(found, expected(net(), example()), rtol=1e-4, atol=1e-5)
    assert len(exports) == 1


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: values for key, values in net().state_dict().items() if key != name}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (without("first.weight"), "the state_dict of it lacks first.weight: give one of this model"),
        (without("norm.running_var"), "the state_dict of it lacks norm.running_var: give one of this model"),
        (
            {f"module.{name}": values for name, values in net().state_dict().items()},
            "the state_dict of it lacks first.weight, norm.weight, norm.bias and 8 more: give one of this model",
        ),
        (net().state_dict() | {"third.weight": torch.zeros(1)}, "has names that Net lacks: third.weight: give one"),
        ({"epoch": 3, "state_dict": net().state_dict()}, "the state_dict of it lacks first.weight, norm.weight,"),
        (net().state_dict() | {"last.bias": None}, "has other shapes of last.bias: give one of this model"),
        (net(), "the state_dict of it is a Net: give the dict of a state_dict()"),
        (net().state_dict() | {"last.bias": torch.zeros(1)}, "has other shapes of last.bias: give one of this model"),
    ],
)
def test_a_state_dict_of_another_model_is_refused(tmp_path: Path, exported: Exported, state: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        exported.write(tmp_path / "net.onnx", state, "it")


def test_what_inference_does_not_read_may_be_missing(tmp_path: Path, exported: Exported) -> None:
    exported.write(tmp_path / "net.onnx", without("auxiliary.weight"), "it")
    assert len(read_checkpoint(tmp_path / "net.onnx").layers) == len(PRUNED)


class Branching(nn.Module):
    """Decides by a value what it computes, which no graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (Branching(), torch.zeros(2, 8), r"PyTorch cannot export Branching to ONNX: Could not guard on data-dependent"),
        (
            net(),
            torch.zeros(2, 4, 8, 8),
            r"Net does not take the example \[2, 4, 8, 8\]: Given groups=1, weight of size",
        ),
        (net(), (), "the example is not a tensor or a sequence of tensors"),
        (net(), {"x": example()}, "the example is not a tensor or a sequence of tensors"),
    ],
)
def test_what_cannot_be_exported_is_one_clear_error(model: nn.Module, x: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as found:
        Exported(model, x)
    assert "\n" not in str(found.value)


def test_masks_need_their_values() -> None:
    state = {"a_orig": torch.tensor([1.0, 2.0]), "a_mask": torch.tensor([0.0, 1.0]), "b_mask": torch.ones(1)}
    assert {name: values.tolist() for name, values in permanent(state).items()} == {"a": [0, 2], "b_mask": [1]}


@compiles
def test_a_pruned_model_becomes_a_bundle_of_its_weights(tmp_path: Path, own_farm: Farm) -> None:
    model = pruned(net(), 0.9)
    compiled = farm.torch.compile(
        model, example(1), archs="sm_90", batch=4, output=tmp_path / "bundle", assembler="direct", farm=own_farm
    )
    job = own_farm.job(compiled.job)
    assert (job.name, job.options.batches, job.options.archs) == ("Net", (4,), ("sm_90",))
    layers = Bundle(compiled.bundle).layers
    detail = own_farm.inspect(job.id)
    assert {result.assembler for result in detail.results} == {"direct"}
    for name, build in zip(PRUNED[1:], detail.builds[1:], strict=True):  # the first has the normalisation folded in
        weights = Weights.from_bytes(build.spec, own_farm.blob(layers[build.layer].weights_digest)).kernel
        given = model.get_submodule(name).weight.detach().numpy()
        np.testing.assert_array_equal(weights.reshape(given.shape), given)
    assert all(found.verification.ok for found in own_farm.verify(job.id))
    with pytest.raises(DeviceError, match="compiled layers run on NVIDIA GPUs only"):
        compiled.module("cpu")


@compiles
def test_a_sweep_is_one_submission_one_export_and_one_set_of_templates(
    tmp_path: Path, own_farm: Farm, exports: list[nn.Module]
) -> None:
    levels = (0.88, 0.9, 0.92, 0.94)
    states = (pruned(copy.deepcopy(net()), level).state_dict() for level in levels)
    swept = farm.torch.sweep(
        net(), states, example(), archs=["sm_90"], output=tmp_path / "sweep", assembler="direct", farm=own_farm
    )
    assert len(exports) == 1
    jobs = own_farm.jobs(submission=swept.submission)[::-1]
    assert [job.name for job in jobs] == [f"Net-{i:02}" for i in range(4)] == [each.name for each in swept.checkpoints]
    runs = own_farm.sweep_report(swept.submission).runs
    assert sum(run.is_template for run in runs) == len(PRUNED)
    for each, level in zip(swept.checkpoints, levels, strict=True):
        layers = Bundle(each.bundle).layers
        detail = own_farm.inspect(each.job)
        assert set(layers) == {build.layer for build in detail.builds}
        zeros = [1 - build.nonzeros / build.spec.weights_count for build in detail.builds]
        assert zeros == pytest.approx([level] * 4, abs=0.02)


def test_a_sweep_needs_a_state_dict_and_submits_nothing_if_one_is_wrong(tmp_path: Path, own_farm: Farm) -> None:
    output = tmp_path / "sweep"
    with pytest.raises(UsageError, match="no state_dict to compile: give one or more"):
        farm.torch.sweep(net(), [], example(), archs="sm_90", output=output, farm=own_farm)
    states = [net().state_dict(), without("last.bias")]
    with pytest.raises(UsageError, match=r"the state_dict of Net-01 lacks last\.bias"):
        farm.torch.sweep(net(), states, example(), archs="sm_90", output=output, farm=own_farm)
    assert own_farm.jobs() == []
    assert not output.exists()


def test_a_weight_that_the_exporter_renames_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.onnx.export

    def export(*args: Any, **options: Any) -> Any:
        program = real(*args, **options)
        program.model.graph.initializers["last.bias"].name = "bias"
        return program

    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(UsageError, match=r"gives last\.bias of Net another name: rename it in the model"):
        Exported(net(), example())
