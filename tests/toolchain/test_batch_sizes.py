"""Networks compiled once for several batch sizes, with the real tools: their cubins, and what they compute."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from cli.main import run
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import lenet5, write_network
from farm.api import Farm
from farm.bundle.reader import Bundle
from farm.jobs.model import BuildOptions, Status
from farm.runtime.emulated import run_bundle
from tests.unit.onnx_models import branched_network, values

BATCHES = (1, 8, 64)
SERVED = {1: 1, 3: 8, 8: 8, 20: 8, 64: 64}
"""The batch size whose kernels run a number of images."""
FEW = {3: 8}
"""The subset of SERVED for a network that is slow to emulate."""


def lenet(folder: Path) -> Path:
    write_network(folder / "net.onnx", lenet5(0.98, 0))
    return folder / "net.onnx"


def fetched(farm: Farm, path: Path, target: Path, batches: tuple[int, ...]) -> Bundle:
    [job] = farm.compile([read_checkpoint(path)], BuildOptions(("sm_90",), batches, leave_dense="never"))
    assert job.status is Status.SUCCEEDED, job.reason
    farm.fetch(job.id, target, ptx=True)
    return Bundle(target)


@pytest.mark.parametrize(
    ("network", "served"), [pytest.param(lenet, FEW, marks=pytest.mark.slow), (branched_network, SERVED)]
)
def test_a_bundle_for_several_batch_sizes_computes_what_those_for_one_do(
    farm: Farm, tmp_path: Path, network: Callable[[Path], Path], served: Mapping[int, int]
) -> None:
    path = network(tmp_path)
    together = fetched(farm, path, tmp_path / "all", BATCHES)
    alone = {batch: fetched(farm, path, tmp_path / str(batch), (batch,)) for batch in BATCHES}
    for name, layer in together.layers.items():
        digests = {each.sha256 for bundle in alone.values() for each in bundle.layers[name].cubins}
        assert {each.sha256 for each in layer.cubins} == digests
        assert len(layer.cubins) == len(digests)  # an equal tiling is one cubin
    session = onnxruntime.InferenceSession(str(path))
    for images, batch in served.items():
        x = values(images, *session.get_inputs()[0].shape[1:], seed=images)
        [found] = run_bundle(together, [x])
        [same] = run_bundle(alone[batch], [x])
        np.testing.assert_array_equal(found, same)
        [expected] = session.run(None, {session.get_inputs()[0].name: x})
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_commands_say_the_batch_sizes(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = branched_network(tmp_path)
    arguments = [str(path), "--arch", "sm_90", "--batch", "64,2,8", "--leave-dense", "never"]
    assert run(["plan", *arguments]) == 0
    said = capsys.readouterr().out
    assert "us at batch 2, " in said
    assert "the same layers dense in PyTorch at batch 8: " in said
    assert run(["compile", *arguments, "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    [job] = farm_of_commands.jobs()
    assert run(["inspect", job.id]) == 0
    shown = capsys.readouterr().out
    assert "batch 2,8,64, rolled templates" in shown
    assert "sm_90 batch 2,8 " in shown
    assert run(["bundle", "show", str(tmp_path / "out")]) == 0
    assert "batch 2,8,64" in capsys.readouterr().out
    assert run(["verify", job.id]) == 0
    verified = capsys.readouterr().out
    assert verified.count("PASS") == 6
    assert "64" in {line.split()[2] for line in verified.splitlines() if line.split()[1:2] == ["90"]}
    assert run(["inspect", job.id, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["batches"] == [2, 8, 64]


@pytest.mark.parametrize(("images", "refused"), [("1", True), ("N", False)])
def test_batch_sizes_that_a_given_shape_rules_out_are_said_once_by_plan_and_compile(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str], images: str, refused: bool
) -> None:
    path = branched_network(tmp_path)
    proto = onnx.load(path)
    [x] = proto.graph.input
    for axis in (2, 3):
        x.type.tensor_type.shape.dim[axis].dim_param = f"size{axis}"
    onnx.save(proto, path)
    options = ["--arch=sm_90", "--batch=1,8", "--leave-dense=never", f"--input-shape=x:{images},4,8,8"]
    other = shutil.copy(path, tmp_path / "other.onnx")
    for command in (["plan", str(other)], ["compile", "-o", str(tmp_path / "out")]):
        assert run([command[0], str(path), *options, *command[1:]]) == 0
        said = "its inputs fix the batch at 1: kernels for 8 never run in this network. Give --batch 1, or leave"
        assert " ".join(capsys.readouterr().err.split()).count(said) == refused
    assert isinstance(Bundle(tmp_path / "out").network.inputs[0].shape[0], int) == refused
