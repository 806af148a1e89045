"""A whole network from its ONNX file to verified layers, planned as `farm compile` plans it. No ptxas, no GPU.

No layer is left dense for its predicted time, so that every kind of layer is verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint, Layer
from codegen.ir.layer_spec import Conv2d, LayerSpec, SkippedLayer
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import canonical, tiled
from codegen.keys import template_key
from codegen.model_zoo import NETWORKS, write_network
from codegen.toolchain.tools import Toolchain, find_toolchain
from codegen.verification.compare import Verification
from farm.jobs.model import Build, BuildOptions
from farm.jobs.submission import new_job
from farm.store.contract import blob_digest
from farm.store.memory import MemoryStore
from tests.templates import shared_template, verify_random_run

VIRTUAL_ARCH = "compute_80"
OPTIONS = BuildOptions(("sm_80",), leave_dense="never")
IMAGES = 2
"""Images of one verification, as in `farm verify`."""


class NamingStore(MemoryStore):
    """Gives blobs their names and forgets them: the weights of VGG-16 are half a gigabyte, and the layers hold them."""

    def put(self, data: bytes) -> str:
        return blob_digest(data)


@dataclass(frozen=True)
class PlannedNetwork:
    """The layers of a network that are compiled, each with how it is built, and those that are not."""

    layers: tuple[tuple[Layer, Build], ...]
    skipped: tuple[SkippedLayer, ...]

    def operators(self) -> dict[str, int]:
        """Number of compiled layers by operator."""
        names = [str(build.spec.to_json()["operator"]) for _, build in self.layers]
        return {name: names.count(name) for name in sorted(set(names))}

    def template_keys(self) -> set[str]:
        """Keys of the templates that nvcc compiles for the network."""
        keys = (
            template_key(
                build.spec, build.tiling, VIRTUAL_ARCH, _toolchain().nvcc_version, _toolchain().compiler_digest
            )
            for _, build in self.layers
        )
        return {key.digest for key in keys}


def planned(name: str, sparsity: float, folder: Path) -> PlannedNetwork:
    """Writes the ONNX file of a network into the folder, reads it back and plans its layers."""
    checkpoint = _checkpoint(name, sparsity, folder / f"{name}.onnx")
    job = new_job(checkpoint, OPTIONS, namespace="tests", name=name, store=NamingStore())
    layers = {layer.name: layer for layer in checkpoint.layers}
    assert len(layers) == len(checkpoint.layers)
    return PlannedNetwork(tuple((layers[build.layer], build) for build in job.builds), job.skipped)


def one_of_each_kind(plan: PlannedNetwork) -> PlannedNetwork:
    """Only the smallest of the layers that differ in nothing but their sizes."""
    kinds = {}
    for layer, build in sorted(plan.layers, key=lambda each: -each[0].weights.nonzeros):
        kinds[_kind(build.spec)] = layer, build
    return PlannedNetwork(tuple(kinds.values()), plan.skipped)


def verified(plan: PlannedNetwork) -> dict[str, Verification]:
    """Runs the PTX of each layer in the emulator: of the part with the most non-zeros, and of the first of the layers
    that share a template the first part too."""
    found, seen = {}, set()
    for layer, build in plan.layers:
        made_from = canonical(build.spec), build.tiling
        template = shared_template(*made_from, VIRTUAL_ARCH)
        fullest = _fullest(layer, build.tiling, build.parts)
        parts = [part for part in build.parts if part == fullest or (part.first == 0 and made_from not in seen)]
        found[layer.name] = verify_random_run(template, layer.weights, parts, batch=IMAGES * (build.rows or 1))
        seen.add(made_from)
    return found


def _kind(spec: LayerSpec) -> tuple[object, ...]:
    if not isinstance(spec, Conv2d):
        return type(spec), spec.epilogue
    size = spec.kernel_height, spec.kernel_width, spec.stride, spec.groups > 1
    return *size, spec.epilogue, spec.gated, spec.bounded, spec.input_shape[1:] == (1, 1)


def _checkpoint(name: str, sparsity: float, path: Path) -> Checkpoint:
    write_network(path, NETWORKS[name](sparsity, 0))
    try:
        return read_checkpoint(path)
    finally:
        path.unlink()


def _fullest(layer: Layer, tiling: Tiling, parts: Sequence[Part]) -> Part:
    streams = tiled(layer.spec, tiling).streams
    nonzeros = np.asarray(streams.by_stream(layer.weights.nonzeros_per_output)).sum(axis=1)
    return max(parts, key=lambda part: int(nonzeros[part.first : part.end].sum()))


@cache
def _toolchain() -> Toolchain:
    return find_toolchain()
