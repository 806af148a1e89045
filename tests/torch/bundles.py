"""Bundles of small networks, for tests that load them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from codegen.networks import lenet5, write_network
from codegen.onnx.checkpoint import read_checkpoint
from farm.bundle import write_bundle
from tests.bundle_samples import JOB, TOOLS, build, result, stored_cubins


def fetched(folder: Path, name: str = "bundle") -> Path:
    """A bundle with the network of LeNet-5 and a layer whose cubins are not code."""
    write_network(folder / "net.onnx", lenet5(0.9, 0))
    checkpoint = read_checkpoint(folder / "net.onnx")
    assert checkpoint.rest is not None
    store = stored_cubins()
    job = replace(JOB, network=store.put(checkpoint.rest.without(checkpoint.layers)))
    write_bundle(folder / name, job, [build(0, "conv1")], [result(0, "sm_80"), result(0, "sm_90")], TOOLS, store)
    return folder / name
