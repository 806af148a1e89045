"""Bundles of small networks, for tests that load them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint, Layer
from codegen.ir.layer_spec import is_pooled
from codegen.kernels import launch_of
from codegen.model_zoo import lenet5, write_network
from farm.bundle.reader import Bundle
from farm.bundle.writer import write_bundle
from farm.jobs.model import BuildOptions, batches_of
from farm.jobs.submission import new_job
from tests.bundle_samples import JOB, TOOLS, build, cubin, result, stored_cubins


def fetched(folder: Path, name: str = "bundle") -> Path:
    """A bundle with the network of LeNet-5 and a layer whose cubins are not code."""
    write_network(folder / "net.onnx", lenet5(0.9, 0))
    checkpoint = read_checkpoint(folder / "net.onnx")
    assert checkpoint.residual_graph is not None
    store = stored_cubins()
    job = replace(JOB, network=store.put(checkpoint.residual_graph.with_layers(checkpoint.layers)))
    write_bundle(folder / name, job, [build(0, "conv1")], [result(0, "sm_80"), result(0, "sm_90")], TOOLS, store)
    return folder / name


def as_compiled(bundle: Bundle, checkpoint: Checkpoint) -> list[Layer]:
    """The layers of a checkpoint, with the pools that those of its bundle compute."""
    pooled = {name for name, layer in bundle.layers.items() if is_pooled(layer.spec)}
    return [layer.with_pool() if layer.name in pooled else layer for layer in checkpoint.layers]


def whole_bundle(
    path: Path,
    checkpoint: Checkpoint,
    batch: int | tuple[int, ...] = 8,
    arch: str = "sm_90",
    code_limit_bytes: int = 16_000_000,
) -> Path:
    """A bundle with all layers of a checkpoint whose code is not too large; its cubins are not code."""
    store = stored_cubins()
    options = BuildOptions((arch,), batches_of(batch), code_limit_bytes=code_limit_bytes, leave_dense="never")
    new = new_job(checkpoint, options, namespace="", name=checkpoint.name, store=store)
    job = replace(JOB, options=options, network=new.network, model_digest=new.model_digest, skipped=new.skipped)
    builds = [replace(each, id=i) for i, each in enumerate(new.builds)]
    results = []
    for each in builds:
        for number, part in enumerate(each.parts):
            found = result(0, arch, 0, launch_of(each.spec, each.tiling, part))
            results.append(replace(found, build=each.id, part=number, cubin=store.put(cubin(0, arch))))
    write_bundle(path, job, builds, results, TOOLS, store)
    return path
