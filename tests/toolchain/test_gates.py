"""Gates multiplied into a layer's input, from the model to kernels in the emulator, agree with onnxruntime."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.main import run
from codegen.emulator.ptx.emulate import run as emulated
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.dtypes import from_float32, numpy_dtype, to_float32
from codegen.ir.layer_spec import plain
from codegen.ir.tiling import Part
from codegen.ptx.rewrite import rewrite
from codegen.verification.compare import LayerRun, poisoned, random_gate, random_input, random_residual, verify_output
from codegen.verification.dot_products import gated_input
from codegen.verification.reference import layer_output
from farm.api import Farm
from farm.jobs.model import BuildOptions, Status
from tests.templates import verify_random_run
from tests.toolchain.gate_cases import GATE_CASES
from tests.toolchain.operator_case import Case
from tests.toolchain.operator_run import half_of_the_weights, template_of
from tests.toolchain.operator_run import run as run_case
from tests.unit.onnx_models import squeeze_and_excitation, values


def test_a_squeeze_and_excitation_block_computes_what_onnxruntime_does(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    path = squeeze_and_excitation(tmp_path)
    [job] = farm_of_commands.compile([read_checkpoint(path)], BuildOptions(("sm_80",)))
    assert job.status is Status.SUCCEEDED, job.reason
    assert run(["verify", job.id]) == 0
    assert run(["verify", job.id, "--network", "--batch", "3"]) == 0
    assert run(["inspect", job.id, "--json"]) == 0
    shown = capsys.readouterr().out
    [project] = [each for each in json.loads(shown[shown.index("{") :])["layers"] if each["name"] == "project"]
    assert (project["gate"], project["residual"], project["folded"]) == ("gates", "x", ["Mul gate", "Add sum"])
    bundle = tmp_path / "bundle"
    assert run(["fetch", job.id, "-o", str(bundle), "--ptx"]) == 0
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["layers"][-1]["tensors"]["gate"] == {
        "name": "gates", "dtype": "float32", "layout": "NCHW", "shape": ["batch", 8, 1, 1]
    }  # fmt: skip
    x = values(3, 8, 6, 6, seed=5)
    np.save(tmp_path / "x.npy", x)
    arguments = ["--input", str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy"), "--emulate"]
    assert run(["run", str(bundle), *arguments]) == 0
    [expected] = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-4, atol=1e-5)


def computed(case: Case, x: np.ndarray[Any, Any], gate: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Output of the emulator with half of the weights."""
    kernel, output = rewrite(template_of(case), half_of_the_weights(case.spec)), poisoned(case.spec, case.batch)
    residual = random_residual(case.spec, case.batch, seed=0)
    named: dict[str, Any] = {"input": x, "output": output, "gate": gate, "residual": residual}
    named |= kernel.launch.numbers(case.batch)
    launch = kernel.launch
    given = [named[name] for name in launch.arguments]
    emulated(kernel.ptx, launch.grid_at(case.batch), launch.block, launch.shared_bytes, given)
    return to_float32(output, case.spec.data_type)


@pytest.mark.parametrize("name", [name for name, case in GATE_CASES.items() if not case.spec.epilogue])
def test_infinite_and_missing_gates_reach_their_image_only_and_outputs_with_a_weight_for_them(name: str) -> None:
    case = GATE_CASES[name]
    spec, x = case.spec, random_input(case.spec, case.batch, seed=1)
    gate = to_float32(random_gate(spec, case.batch, seed=0), spec.data_type)
    gate[0, 1], gate[case.batch - 1, 2] = np.inf, np.nan
    gate = from_float32(gate, spec.data_type)
    output = computed(case, x, gate)
    expected = layer_output(plain(spec), half_of_the_weights(spec), gated_input(spec, x, gate))
    assert np.isinf(expected).any()
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(np.isnan(output), np.isnan(expected))
    np.testing.assert_array_equal(output[np.isinf(expected)], expected[np.isinf(expected)])
    assert np.isfinite(output[np.isfinite(expected)]).all()


@pytest.mark.parametrize("name", ["gates", "float16 gates, image pairs, added up in float32"])
def test_a_product_is_rounded_as_the_node_rounds_it(name: str) -> None:
    case = GATE_CASES[name]
    spec, dtype = case.spec, numpy_dtype(case.spec.data_type)
    x, gate = random_input(spec, case.batch, seed=1), random_gate(spec, case.batch, seed=0)
    assert gate is not None
    product = (x * gate[:, :, None, None]).astype(dtype)
    bare = replace(case, spec=plain(spec))
    weights = half_of_the_weights(spec)
    before = run_case([rewrite(template_of(bare), weights)], bare, product)
    assert computed(case, x, gate).astype(dtype).tobytes() == before.tobytes()


@pytest.mark.parametrize("name", ["gates", "bfloat16 gates, several images a block", "gates in a cluster"])
def test_a_gate_of_another_image_is_noticed(name: str) -> None:
    case = GATE_CASES[name]
    spec, weights = case.spec, half_of_the_weights(case.spec)
    x, gate = random_input(spec, case.batch, seed=1), random_gate(spec, case.batch, seed=0)
    assert gate is not None
    residual = random_residual(spec, case.batch, seed=0)

    def found(given: np.ndarray[Any, Any]) -> str:
        output = from_float32(computed(case, x, given), spec.data_type)
        return verify_output(LayerRun(spec, case.tiling, weights, x, output, residual, gate)).message

    assert found(gate) == ""
    assert "error bound" in found(gate[::-1].copy())


def test_a_whole_layer_is_verified_with_gates_of_its_own() -> None:
    case = GATE_CASES["gates"]
    verified = verify_random_run(template_of(case), half_of_the_weights(case.spec), [Part(0, 3)], batch=3)
    assert verified.ok, verified.message


def test_an_input_without_weights_is_not_multiplied_and_its_gate_not_loaded() -> None:
    case = GATE_CASES["gates"]
    weights = half_of_the_weights(case.spec)
    weights.kernel[:, 4:8] = 0
    weights.kernel[:, 9] = 0
    ptx = rewrite(template_of(case), weights).ptx.decode()
    streams = -(-case.spec.output_channels // case.tiling.group_outputs)
    used = [(weights.kernel[4 * i : 4 * i + 4] != 0).any(axis=(0, 2, 3)) for i in range(streams)]
    assert ptx.count("mul.rn.f32 x") == sum(map(np.count_nonzero, used))
    quads = [np.pad(each, (0, 1)).reshape(-1, 4).any(axis=1) for each in used]
    assert ptx.count("// farm.gates") == sum(map(np.count_nonzero, quads)) < 5 * streams
