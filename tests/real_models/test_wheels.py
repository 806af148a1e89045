"""Trained models that ship inside Python wheels: pruned, compiled, and run as whole networks without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.main import run
from tests.real_models.pruning import WAYS
from tests.real_models.shipped import MODELS, Array
from tests.real_models.wheels import assert_decisions_agree, pruned


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
    assert_decisions_agree(shipped, path, answers(tmp_path / "bundle", given))
