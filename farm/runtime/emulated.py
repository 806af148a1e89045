"""Runs a plan on the CPU, for small networks: the PTX of every layer and glue kernel in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate
from codegen.ir.launch import Launch
from farm.bundle.reader import Bundle
from farm.bundle.row_groups import group_for, row_groups
from farm.errors import UsageError
from farm.runtime.glue_kernels import glue_ptx
from farm.runtime.plan import Argument, LayerStep, Place, Plan, Rows
from farm.runtime.plan_text import plan_of

Array = NDArray[Any]


@dataclass(frozen=True)
class PtxPart:
    """The PTX of a kernel, and how it is launched."""

    ptx: bytes
    launch: Launch
    most_rows: int


Kernels = Mapping[str, Sequence[Sequence[PtxPart]]]
"""The groups of each layer's kernels, by its name."""


def run_emulated(
    plan: Plan,
    kernels: Kernels,
    constants: bytes,
    inputs: Sequence[Array],
    see: Callable[[str, Array], None] | None = None,
) -> list[Array]:
    """The outputs of the network for inputs of its ports' types, images first.

    `see` is called with the name and the elements of every tensor once it is computed. Raises EmulationError.
    """
    images = plan.images_of(inputs)
    memory: dict[Place, Array] = {
        Place("input", i): np.ascontiguousarray(each).reshape(-1) for i, each in enumerate(inputs)
    }
    memory |= {Place("output", i): np.empty(port.image_bytes * images, np.uint8) for i, port in enumerate(plan.outputs)}
    memory |= {Place("buffer", i): np.empty(count * images, np.uint8) for i, count in enumerate(plan.buffers)}
    data = np.frombuffer(constants, np.uint8)

    def array(place: Place) -> Array:
        return data[place.number :] if place.kind == "constant" else memory[place]

    def value(argument: Argument, rows: int) -> Array | int | float:
        match argument:
            case Place():
                return array(argument)
            case Rows():
                return rows
            case _:
                return argument

    for step in plan.steps:
        rows = step.rows * images
        if isinstance(step, LayerStep):
            for part in group_for(kernels[step.layer], rows):
                launch = part.launch
                given: dict[str, Array | int] = {**launch.numbers(rows)}
                given |= zip(launch.tensors, map(array, step.places), strict=True)
                arguments = [given[name] for name in launch.arguments]
                emulate.run(part.ptx, launch.grid_at(rows), launch.block, launch.shared_bytes, arguments)
        else:
            x, y, z = (size.at(rows) for size in step.grid)
            emulate.run(
                glue_ptx(),
                (x, y, z),
                (step.threads, 1, 1),
                0,
                [value(each, rows) for each in step.arguments],
                kernel=step.kernel,
            )
        if see is not None:
            see(step.tensor, array(step.output))
    return [
        memory[Place("output", i)].view(port.held_in).reshape(port.shape_of(images))
        for i, port in enumerate(plan.outputs)
    ]


def run_bundle(bundle: Bundle, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a bundle's network. Raises UsageError if the bundle has no PTX for the emulator."""
    plan = plan_of(bundle)
    return run_emulated(plan, layer_ptx(bundle, plan), bundle.constants, inputs)


def layer_ptx(bundle: Bundle, plan: Plan) -> Kernels:
    """The kernels of a plan's layers. Raises UsageError if the bundle has no PTX."""
    kernels = {
        name: row_groups(PtxPart(bundle.cubin(each), each.launch, each.most_rows) for each in bundle.layers[name].ptx)
        for name in plan.layers
    }
    if not all(kernels.values()):
        raise UsageError(f"{bundle.path} has no PTX for the emulator: fetch the bundle with farm fetch --ptx")
    return kernels
