"""A bundle holds all that a program needs: its kernels run from manifest and cubins alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.checkpoint import read_checkpoint
from codegen.device import Device
from codegen.launch import GridSize, Launch
from codegen.networks import alexnet_cifar10, write_network
from codegen.reference import convolve, error_bound
from codegen.toolchain import Toolchain
from farm.api import Farm
from farm.jobs import BuildOptions, Status
from farm.testing import laptop_settings


def launch_of(manifest: dict[str, Any]) -> Launch:
    """Read as a program in another language would read it."""
    x, y, z = (GridSize(size["fixed"], size["images"]) for size in manifest["grid"])
    width, height, depth = manifest["block"]
    assert [argument["type"] for argument in manifest["arguments"]] == ["float32*", "float32*"]
    return Launch(manifest["kernel"], (x, y, z), (width, height, depth), manifest["shared_bytes"])


@pytest.mark.parametrize("batch", [1, 5])
def test_every_layer_runs_from_the_bundle_alone(
    batch: int, device: Device, toolchain: Toolchain, tmp_path: Path
) -> None:
    write_network(tmp_path / "net.onnx", alexnet_cifar10(0.9, seed=3))
    checkpoint = read_checkpoint(tmp_path / "net.onnx")
    settings = replace(laptop_settings(tmp_path), nvcc=toolchain.nvcc, ptxas=toolchain.ptxas)
    with Farm.open(settings) as farm:
        (job,) = farm.compile([checkpoint], BuildOptions((device.arch,)))
        assert job.status is Status.SUCCEEDED, job.reason
        manifest = json.loads(farm.fetch(job.id, tmp_path / "bundle").read_text())
    layers = {layer.name: layer for layer in checkpoint.layers}
    assert [described["name"] for described in manifest["layers"]] == list(layers)
    for described in manifest["layers"]:
        (launch,) = described["launches"]
        cubin = (tmp_path / "bundle" / launch["cubins"][device.arch]["path"]).read_bytes()
        tensors = described["tensors"]
        shape = [batch if size == "batch" else size for size in tensors["input"]["shape"]]
        x = np.random.default_rng(batch).standard_normal(shape, dtype=np.float32)
        output = device.run(cubin, launch_of(launch), x, tuple(tensors["output"]["shape"][1:]))
        layer = layers[described["name"]]
        error = np.abs(output - convolve(layer.spec, layer.weights, x))
        assert (error <= error_bound(layer.spec, layer.weights, x)).all()
