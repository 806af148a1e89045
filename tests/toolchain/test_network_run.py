"""Whole networks, compiled layers and what is beside them, run in the emulator and compared with onnxruntime."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from cli.main import run
from codegen.frontend.onnx.reader import read_checkpoint
from farm.api import Farm
from farm.bundle.ptx import KernelPtx, newest_ptx
from farm.bundle.reader import PLAN_FORMAT
from farm.jobs.model import BuildOptions, Job, JobDetail, Status
from farm.store.contract import Store
from farm.verify import network
from tests.unit.onnx_models import branched_network, conv_model, info, model, node, pruned, save, tensor, values


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return branched_network(tmp_path)


@pytest.fixture
def job(farm_of_commands: Farm, path: Path) -> Job:
    [job] = farm_of_commands.compile([read_checkpoint(path)], BuildOptions(("sm_80",)))
    assert job.status is Status.SUCCEEDED, job.reason
    return job


def test_a_network_computes_what_onnxruntime_does(
    farm: Farm, job: Job, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "net.farm"
    assert run(["fetch", job.id, "-o", str(bundle), "--ptx"]) == 0
    x = values(3, 4, 8, 8, seed=5)
    np.save(tmp_path / "x.npy", x)
    capsys.readouterr()
    arguments = ["--input", str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy"), "--emulate"]
    assert run(["run", str(bundle), *arguments]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'y.npy'}: y float32 [3, 10] from the emulator\n"
    [expected] = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-4, atol=1e-6)


def of_another_version(folder: Path) -> None:
    """Rewrite the plan as an older program wrote it."""
    old = (folder / "network.plan").read_bytes()
    new = old.replace(PLAN_FORMAT.encode(), b"farm-plan 3", 1)
    (folder / "network.plan").write_bytes(new)
    text = (folder / "manifest.json").read_text()
    digests = [hashlib.sha256(data).hexdigest() for data in (old, new)]
    (folder / "manifest.json").write_text(text.replace(*digests))


def test_what_cannot_be_run_is_said(farm: Farm, job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    farm.fetch(job.id, tmp_path / "out")
    np.save(tmp_path / "x.npy", values(3, 4, 8, 8).astype(np.float64))
    (tmp_path / "text.npy").write_text("no array")
    arguments = ["run", str(tmp_path / "out"), "--emulate", "-o", str(tmp_path / "y.npy"), "--input"]
    assert run([*arguments, str(tmp_path / "x.npy")]) == 2
    assert "has no PTX for the emulator" in capsys.readouterr().err
    assert run([*arguments, str(tmp_path / "text.npy")]) == 2
    assert "text.npy: cannot read it: it holds no array of numbers. Write it" in capsys.readouterr().err
    of_another_version(tmp_path / "out")
    assert run([*arguments, str(tmp_path / "x.npy")]) == 2
    assert "out: its network.plan has another version" in capsys.readouterr().err
    farm.fetch(job.id, tmp_path / "out", ptx=True)
    assert run([*arguments, str(tmp_path / "x.npy")]) == 2
    assert "the input 'x' has type float64, expected float32" in capsys.readouterr().err
    with (tmp_path / "out" / "network.plan").open("ab") as plan:
        plan.write(b"more")
    assert run([*arguments, str(tmp_path / "x.npy")]) == 2
    assert f"farm: {tmp_path / 'out'}: network.plan is damaged" in capsys.readouterr().err
    assert not (tmp_path / "y.npy").exists()


def test_a_network_that_is_right_passes(job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", job.id, "--network", "--batch", "1"]) == 0
    said = capsys.readouterr().out
    assert "PASS: the network computes what onnxruntime does: 10 outputs compared, 1 image in the emulator" in said
    np.save(tmp_path / "x.npy", values(2, 4, 8, 8, seed=8))
    assert run(["verify", job.id, "--network", "--input", str(tmp_path / "x.npy"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["images"], document["on"]) == (True, 2, "emulator")
    assert [(each["name"], each["layer"]) for each in document["tensors"]] == [
        ("b", "conv1"),
        ("d", "conv2"),
        ("e", ""),
        ("f", ""),
        ("h", "fc"),
        ("y", ""),
    ]


AFTER_SIGMOID = {
    "alone": [],
    "reshaped": [node("Transpose", "s", "t", perm=[0, 2, 3, 1]), node("Concat", "t t", "y", axis=1)],
    "multiplied": [node("Mul", "s hundred", "y")],
    "swish": [node("Mul", "c s", "y")],
}


@pytest.mark.parametrize(("bias", "status"), [(-16.0, 0), (-7.0, 100)])
@pytest.mark.parametrize("after", AFTER_SIGMOID)
def test_a_saturated_sigmoid_may_be_off_by_roundings_of_one_and_no_more(
    farm_of_commands: Farm,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    after: str,
    bias: float,
    status: int,
) -> None:
    further = AFTER_SIGMOID[after]
    nodes = [node("Conv", "x w b", "c"), node("Sigmoid", "c", "s" if further else "y"), *further]
    constants = [tensor("w", values(4, 4, 1, 1) / 100), tensor("b", np.full(4, bias, np.float32))]
    constants.append(tensor("hundred", np.float32(100)))
    proto = model(nodes, constants, inputs=[info("x", ("N", 4, 3, 3))], output="y")
    [job] = farm_of_commands.compile([read_checkpoint(save(tmp_path, proto))], BuildOptions(("sm_80",)))

    def slightly_wrong(*arguments: Any) -> network.Ran:
        ran = run_on_cpu(*arguments)
        return replace(
            ran, tensors={name: each.view(np.float32) * np.float32(1.5) for name, each in ran.tensors.items()}
        )

    run_on_cpu = network.run_on_cpu
    assert run(["verify", job.id, "--network", "--batch", "1"]) == 0
    monkeypatch.setattr(network, "run_on_cpu", slightly_wrong)
    assert run(["verify", job.id, "--network", "--batch", "1"]) == status, capsys.readouterr().out


def test_the_first_tensor_that_differs_is_named(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_one_weight_wrong(detail: JobDetail, store: Store) -> list[KernelPtx]:
        first, second, *others = newest_ptx(detail, store)
        text = re.sub(rb"(fma\.rn\.f32 [^;]*)0f[0-9A-F]{8}", rb"\g<1>0f41200000", second.text, count=1)
        assert text != second.text
        return [first, replace(second, text=text), *others]

    monkeypatch.setattr(network, "newest_ptx", with_one_weight_wrong)
    assert run(["verify", job.id, "--network", "--batch", "1"]) == 100
    said = capsys.readouterr().out
    assert "FAIL: the network differs from onnxruntime, 1 image in the emulator" in said
    assert "the first tensor that differs is d, of the compiled layer conv2" in said


def test_a_large_network_is_verified_on_blocks_of_its_layers(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(network, "MAX_EMULATED", 1)
    assert run(["verify", job.id, "--network", "--batch", "3"]) == 0
    said = capsys.readouterr().out
    assert "% OF FLOAT64 BOUND" in said
    assert "3 images in the emulator, sampled blocks of each layer, the rest in onnxruntime" in said


def test_a_file_that_fixes_another_shape_is_verified_at_the_shape_it_was_compiled_for(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "MAX_EMULATED", 1)
    monkeypatch.setenv("COLUMNS", "90")
    nodes = [node("Conv", "x w", "h", "conv"), node("Softmax", "h", "y")]
    proto = model(nodes, [tensor("w", pruned(4, 3, 3, 3, seed=0))], inputs=[info("x", (10, 3, 32, 32))])
    [job] = farm_of_commands.compile(
        [read_checkpoint(save(tmp_path, proto), {"x": (1, 3, 8, 9)})], BuildOptions(("sm_80",))
    )
    assert run(["verify", job.id, "--network"]) == 0
    said = capsys.readouterr().out
    assert "168 outputs compared, 1 image" in said
    assert "y (output)" in said


def test_the_model_that_was_compiled_is_asked_for(
    job: Job, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save(tmp_path, conv_model(name="other"), "other.onnx")
    assert run(["verify", job.id, "--network", "--model", str(other)]) == 2
    assert f"{other} is not the model that was compiled, it has none of its layers" in capsys.readouterr().err
    assert run(["verify", job.id, "--network", "--model", str(tmp_path / "none.onnx")]) == 2
    assert "none.onnx is not there: say with --model" in capsys.readouterr().err
    moved = path.rename(tmp_path / "moved.onnx")
    assert run(["verify", job.id, "--network"]) == 2
    assert f"{path} is not there any more: say with --model where the job's ONNX file is" in capsys.readouterr().err
    assert run(["verify", job.id, "--network", "--batch", "1", "--model", str(moved)]) == 0
    proto = onnx.load(moved)
    next(each for each in proto.graph.initializer if each.name == "w2").CopyFrom(
        tensor("w2", pruned(4, 4, 3, 3, seed=9))
    )
    onnx.save(proto, path)
    assert run(["verify", job.id, "--network"]) == 2
    assert "is not the model that was compiled, conv2 has other weights" in capsys.readouterr().err


def test_what_cannot_be_compared_is_said(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["verify", job.id, "--input", "x.npy"]) == 2
    assert "--input, --input-value and --model are for the whole network" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run(["verify", job.id, "--network", "--batch", "1"]) == 2
    assert "pip install '.[reference]'" in capsys.readouterr().err
