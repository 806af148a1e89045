"""The files of a bundle for programs without a framework: the plan of its network, its glue kernels and constants."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from codegen.errors import CheckpointError
from codegen.frontend.onnx.export.network import read_network, with_constants_beside
from codegen.ir.layer_spec import is_gated
from farm.bundle.reader import CONSTANTS, GLUE, PLAN, PLAN_FORMAT, BundledLayer
from farm.runtime.glue_kernels import glue_ptx
from farm.runtime.lowering import RefusedError
from farm.runtime.plan import grid_text
from farm.runtime.planner import ELEMENT_BYTES, plan_network

LETTERS = {
    "input": "i",
    "output": "o",
    "residual": "r",
    "gate": "g",
    "images": "n",
    "output_step": "s",
    "input_step": "t",
}
"""Letters of kernel arguments in a plan."""


@dataclass(frozen=True)
class NetworkFiles:
    """The files of a bundle's network."""

    network: bytes
    """The model around the layers; its large constants are in CONSTANTS if that file exists."""
    others: Mapping[str, bytes]
    """Contents of the other files, by name."""
    entry: Mapping[str, Any]
    """The manifest's entry for them."""


def network_files(layers: Mapping[str, BundledLayer], network: bytes) -> NetworkFiles:
    """The files for a network that holds all its constants.

    If it has operators that the runtime does not run, the plan has the layers only, and names the operators.
    """
    lines = [PLAN_FORMAT]
    for layer in layers.values():
        spec, size = layer.spec, ELEMENT_BYTES[layer.spec.data_type]
        taken, made = prod(spec.input_shape) * size, prod(spec.output_shape) * size
        gates = spec.channels * size if is_gated(spec) else 0
        lines.append(f"layer {taken} {made} {int(layer.has_residual)} {gates} {layer.name}")
    lines += [line for number, layer in enumerate(layers.values()) for line in _kernel_lines(number, layer)]
    files: dict[str, bytes] = {}
    entry: dict[str, Any] = {}
    try:
        planned = plan_network(read_network(network), {name: layer.spec for name, layer in layers.items()})
        lines += planned.plan.lines(list(layers))
        if planned.plan.uses_kernels:
            files[GLUE] = glue_ptx()
        if planned.constants:
            files[CONSTANTS] = planned.constants
            network = with_constants_beside(network, CONSTANTS, planned.offsets)
    except (RefusedError, CheckpointError) as error:
        entry["refused"] = str(error)
        lines.append(f"refused {error}")
    files[PLAN] = ("\n".join(lines) + "\n").encode()
    listed = [
        {"path": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in sorted(files.items())
    ]
    return NetworkFiles(network, files, {"files": listed, **entry})


def _kernel_lines(number: int, layer: BundledLayer) -> list[str]:
    lines = []
    for each in (*layer.cubins, *layer.ptx):
        launch = each.launch
        block = " ".join(map(str, launch.block))
        arguments = "".join(LETTERS[name] for name in launch.arguments)
        head = f"kernel {number} {each.arch} {each.path} {launch.kernel} {grid_text(launch.grid)} {block}"
        steps = f"{launch.output_step or 0} {launch.input_step or 0}"
        lines.append(f"{head} {launch.shared_bytes} {launch.images_limit} {steps} {arguments}")
    return lines
