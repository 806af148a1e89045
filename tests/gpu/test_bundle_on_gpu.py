"""A bundle holds all that a program needs: its kernels run from manifest and cubins alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.launch import GridSize, Launch
from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    Conv2d,
    ConvTranspose2d,
    DataType,
    LayerSpec,
    Linear,
    spec_from_json,
)
from codegen.ir.tiling import Tiling
from codegen.kernels import products_together
from codegen.model_zoo import alexnet_cifar10, write_network
from codegen.toolchain.tools import Toolchain
from codegen.verification.reference import layer_output
from farm.api import Farm
from farm.cuda.device import Device
from farm.jobs.model import BuildOptions, Status
from farm.testing import laptop_settings
from tests.error_bounds import error_bound
from tests.gpu.layers import weights_of
from tests.samples import checkpoint, cut_in_two, layer

ADD_RELU = (AddResidual(), Clip(low=0.0))
SPECS: tuple[LayerSpec, ...] = (
    Conv2d(5, 9, 11, 7, 3, 3, padding=(1, 1, 1, 1), epilogue=ADD_RELU),
    Conv2d(16, 8, 12, 10, 1, 1, epilogue=ADD_RELU),
    ConvTranspose2d(6, 5, 6, 5, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1), epilogue=ADD_RELU),
    Linear(41, 10, epilogue=ADD_RELU),
)


def launch_of(entry: dict[str, Any]) -> Launch:
    """Read as a program in another language would read it."""
    x, y, z = (GridSize(size["fixed"], size["images"]) for size in entry["grid"])
    width, height, depth = entry["block"]
    pointers = [argument for argument in entry["arguments"] if argument["type"].endswith("*")]
    images, *steps = entry["arguments"][len(pointers) :]
    assert images == {"name": "images", "type": "int32"}
    (data_type,) = {pointer["type"].removesuffix("*") for pointer in pointers}
    names = tuple(argument["name"] for argument in entry["arguments"])
    step = steps[0]["contiguous"] if steps else None
    return Launch(entry["kernel"], (x, y, z), (width, height, depth), entry["shared_bytes"], names, data_type, step)


def random_tensor(tensor: dict[str, Any], images: int, seed: int) -> NDArray[Any]:
    """Normal values of the tensor's type and shape for that number of images, or rows."""
    values = np.random.default_rng(seed).standard_normal((images, *tensor["shape"][1:]), dtype=np.float32)
    return from_float32(values, tensor["dtype"])


def run_every_layer(
    net: Checkpoint, images: int, device: Device, toolchain: Toolchain, folder: Path
) -> list[dict[str, Any]]:
    """Compiles a checkpoint, runs the bundle and compares; gives the manifest's layers."""
    settings = replace(laptop_settings(folder), nvcc=toolchain.nvcc, ptxas=toolchain.ptxas)
    with Farm.open(settings) as farm:
        (job,) = farm.compile([net], BuildOptions((device.arch,)))
        assert job.status is Status.SUCCEEDED, job.reason
        manifest = json.loads(farm.fetch(job.id, folder / "bundle").read_text())
    layers = {layer.name: layer for layer in net.layers}
    assert [described["name"] for described in manifest["layers"]] == list(layers)
    for described in manifest["layers"]:
        kernels = [
            ((folder / "bundle" / entry["cubins"][device.arch]["path"]).read_bytes(), launch_of(entry))
            for entry in described["launches"]
        ]
        tensors, tiling = described["tensors"], described["tiling"]
        count = images * described["rows_per_image"]
        x = random_tensor(tensors["input"], count, seed=1)
        residual = random_tensor(tensors["residual"], count, seed=2) if "residual" in tensors else None
        output = device.run_layer(kernels, x, tuple(tensors["output"]["shape"][1:]), residual)
        spec, weights = spec_from_json(described["spec"]), layers[described["name"]].weights  # with a pool, maybe
        error = np.abs(to_float32(output, spec.data_type) - layer_output(spec, weights, x, residual=residual))
        together = products_together(weights, Tiling(**tiling))
        bound = error_bound(spec, weights, x, residual=residual, products_together=together)
        assert (error <= bound).all(), described["name"]
    found: list[dict[str, Any]] = manifest["layers"]
    return found


@pytest.mark.parametrize("images", [1, 5])
def test_every_layer_of_a_network_runs_from_the_bundle_alone(
    images: int, device: Device, toolchain: Toolchain, tmp_path: Path
) -> None:
    write_network(tmp_path / "net.onnx", alexnet_cifar10(0.9, seed=3))
    net = read_checkpoint(tmp_path / "net.onnx", {})
    described = run_every_layer(net, images, device, toolchain, tmp_path)
    assert [each["spec"]["operator"] for each in described] == ["conv2d", "conv2d", "conv2d", "linear"]


@pytest.mark.parametrize("data_type", get_args(DataType))
def test_layers_with_a_residual_in_several_launches_run_from_the_bundle_alone(
    data_type: DataType, device: Device, toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_in_two(monkeypatch)
    specs = [replace(spec, data_type=data_type) for spec in SPECS]
    net = checkpoint(
        *(
            replace(layer(f"layer{i}", spec), weights=weights_of(spec, 0.5), residual=f"skip{i}", rows=rows)
            for i, (spec, rows) in enumerate(zip(specs, (1, 1, 1, 20), strict=True))
        )
    )
    described = run_every_layer(net, 3, device, toolchain, tmp_path)
    assert [len(each["launches"]) for each in described] == [2] * len(SPECS)
