"""The files of a bundle for programs without a framework: the plan of its network, its glue kernels and constants."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from codegen.errors import CheckpointError
from codegen.frontend.onnx.export.network import read_network, with_constants_beside
from farm.bundle.members import Member
from farm.bundle.reader import CONSTANTS, GLUE, PLAN, BundledLayer, Cubin
from farm.errors import BundleError
from farm.runtime.glue_kernels import glue_ptx
from farm.runtime.lowering import RefusedError
from farm.runtime.plan_text import PlannedLayer, grid_text, plan_lines, quote_name, read_plan, with_end
from farm.runtime.planner import Planned, plan_network

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

    If it has operators that the runtime does not run, the plan has the layers only, and names the operators. Raises
    BundleError for layers that no plan can describe.
    """
    try:
        planned = plan_network(read_network(network), {name: layer.spec for name, layer in layers.items()})
        files = planned_files(layers, planned)
    except (RefusedError, CheckpointError) as error:
        reason = str(error).replace("\0", "")
        text = _text(layers, {}, [f"refused {quote_name(reason)}"])
        read_plan(text)
        return NetworkFiles(network, {PLAN: text}, {"files": [asdict(_member(PLAN, text))], "refused": reason})
    if planned.constants:
        network = with_constants_beside(network, CONSTANTS, planned.offsets)
    return NetworkFiles(network, files, {"files": [asdict(_member(name, files[name])) for name in sorted(files)]})


def planned_files(layers: Mapping[str, BundledLayer], planned: Planned) -> dict[str, bytes]:
    """The files by which a network runs, by name: its plan, and its constants and glue kernels if it has any.

    Raises BundleError for layers that no plan can describe, RefusedError for a network beyond the limits of a plan.
    """
    files = {GLUE: glue_ptx()} if planned.plan.uses_kernels else {}
    if planned.constants:
        files[CONSTANTS] = planned.constants
    text = _text(layers, files, plan_lines(planned.plan, list(layers)))
    try:
        read_plan(text)
    except BundleError as error:
        raise RefusedError(
            f"the network is beyond the runtime's limits ({error}): use farm run or farm.torch"
        ) from None
    return files | {PLAN: text}


def _text(layers: Mapping[str, BundledLayer], files: Mapping[str, bytes], lines: Sequence[str]) -> bytes:
    """The plan of a network: its files, its layers and their kernels, and the lines of the network itself."""
    code = [(number, each) for number, layer in enumerate(layers.values()) for each in (*layer.cubins, *layer.ptx)]
    members = [*(each for _, each in code), *map(_member, files, files.values())]
    head = [f"file {each.bytes} {each.sha256} {each.path}" for each in members]
    head += [PlannedLayer.of(layer).line() for layer in layers.values()]
    head += [_kernel_line(number, file, each) for file, (number, each) in enumerate(code)]
    return with_end([*head, *lines])


def _member(path: str, data: bytes) -> Member:
    return Member(path, hashlib.sha256(data).hexdigest(), len(data))


def _kernel_line(layer: int, file: int, code: Cubin) -> str:
    launch = code.launch
    block = " ".join(map(str, launch.block))
    arguments = "".join(LETTERS[name] for name in launch.arguments)
    steps = f"{launch.output_step or 0} {launch.input_step or 0}"
    head = f"kernel {layer} {code.arch} {file} {code.most_rows} {launch.kernel} {grid_text(launch.grid)} {block}"
    return f"{head} {launch.shared_bytes} {int(launch.waits)} {steps} {arguments}"
