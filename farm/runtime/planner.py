"""Plans a bundle's network: lowers it and places its tensors in buffers, which they share where possible."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from codegen.errors import CheckpointError
from codegen.frontend.onnx.export.network import Network, read_network
from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import LayerSpec
from farm.runtime.lowering import SAMPLES, Lowered, Lowering, RefusedError, Value
from farm.runtime.operators import OPERATORS
from farm.runtime.plan import ELEMENT_BYTES, Argument, KernelStep, LayerStep, Place, Plan, Port, Step

ALIGNMENT_BYTES = 256
"""Alignment of each constant."""
ROOM_BYTES = 16
"""Sizes of an image in a buffer are rounded up to this, so that every number of images begins aligned."""

Root = int | str


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan with the constants that its steps read."""

    plan: Plan
    constants: bytes
    offsets: Mapping[bytes, int]
    """Offset of each constant, by the SHA-256 of its bytes."""


def refusal_of(checkpoint: Checkpoint, compiled: Collection[str]) -> str:
    """Why programs without a framework will not run a model of which these layers are compiled; empty if they will."""
    if checkpoint.residual_graph is None:
        return ""
    layers = [layer for layer in checkpoint.layers if layer.name in compiled]
    specs = {layer.name: layer.spec for layer in layers}
    try:
        plan_network(read_network(checkpoint.residual_graph.with_layers(layers)), specs)
    except (RefusedError, CheckpointError) as error:
        return str(error)
    return ""


def plan_network(network: Network, specs: Mapping[str, LayerSpec]) -> Planned:
    """The plan of a network. Raises RefusedError, which names the operators that the runtime does not run."""
    fixed = network.inputs[0].shape[0] if network.inputs and network.inputs[0].shape else None
    if isinstance(fixed, int):
        return _planned(Lowering(network, specs, OPERATORS, fixed), network, fixed)
    first, *others = SAMPLES
    planned = _planned(Lowering(network, specs, OPERATORS, first), network, None)
    for images in others:
        plan, offsets = planned.plan, planned.offsets  # without the constants, which are large
        planned = _planned(Lowering(network, specs, OPERATORS, images), network, None)
        if planned.plan != plan or planned.offsets != offsets:
            why = "the network treats an image differently by the number of images"
            raise RefusedError(f"{why}: use farm run or farm.torch")
    return planned


def _planned(lowering: Lowering, network: Network, images: int | None) -> Planned:
    inputs: dict[Root, Place] = {each.name: Place("input", i) for i, each in enumerate(network.inputs)}
    steps = list(lowering.steps)
    places = dict(inputs)
    copies: list[Lowered] = []
    unknown = [each.name for each in network.outputs if each.name not in lowering.values]
    if unknown:
        raise RefusedError(f"the runtime does not compute the output {unknown[0]}: use farm run or farm.torch")
    outputs = [lowering.values[each.name] for each in network.outputs]
    for number, value in enumerate(outputs):
        if value.constant is not None:
            raise RefusedError(f"the output {network.outputs[number].name} is a constant: use farm run or farm.torch")
        if value.root in places:  # an input, or already an output under another name
            copies.append(_copy(lowering, value, len(steps) + len(copies), network.outputs[number].name))
            places[len(steps) + len(copies) - 1] = Place("output", number)
        else:
            places[value.root] = Place("output", number)
    steps += copies
    constants = _Constants()
    buffers = _buffers(steps, places, lowering.images)
    placed = tuple(_step(each, places, constants) for each in steps)
    port = partial(_port, lowering)
    data = constants.data()
    plan = Plan(
        images,
        tuple(port(each, lowering.values[each.name]) for each in network.inputs),
        tuple(port(each, value) for each, value in zip(network.outputs, outputs, strict=True)),
        len(data),
        buffers,
        placed,
    )
    return Planned(plan, data, constants.offsets)


def _copy(lowering: Lowering, value: Value, number: int, name: str) -> Lowered:
    """A copy of a whole tensor to an output."""
    count = value.size // lowering.images
    output = Value(value.shape, value.dtype, number)
    blocks, grid = lowering.elementwise(count)
    box = (blocks, count, 1, 1, count, count, 0, 0, 0, 0, 1, count, 0, 0, 0, 0, 1)
    return Lowered(f"copy_{value.dtype}", "", 1, grid, 256, (value, output, *box), (output,), name)


def _port(lowering: Lowering, tensor: Tensor, value: Value) -> Port:
    if value.dtype not in ELEMENT_BYTES:
        raise RefusedError(f"{tensor.name} is no tensor of floats: use farm run or farm.torch")
    count = value.size // lowering.images
    first, *shape = value.shape or (1,)
    if first % lowering.images:
        raise RefusedError(f"{tensor.name} does not have the images as its first size: use farm run or farm.torch")
    return Port(tensor.name, value.dtype, first // lowering.images, tuple(shape), count * ELEMENT_BYTES[value.dtype])


def _buffers(steps: Sequence[Lowered], places: dict[Root, Place], images: int) -> tuple[int, ...]:
    """Places every tensor that has no place yet; a buffer is reused after its tensor is read last."""
    last: dict[Root, int] = {}
    for number, step in enumerate(steps):
        for value in _values(step):
            last[value.root] = number
    sizes: list[int] = []
    free: list[int] = []
    for number, step in enumerate(steps):
        for value in step.outputs:
            if value.root in places:
                continue
            needed = value.size // images * ELEMENT_BYTES[value.dtype]
            needed += -needed % ROOM_BYTES
            fitting = sorted(free, key=lambda each: (sizes[each] < needed, abs(sizes[each] - needed)))
            if fitting:
                chosen = fitting[0]
                free.remove(chosen)
                sizes[chosen] = max(sizes[chosen], needed)
            else:
                chosen = len(sizes)
                sizes.append(needed)
            places[value.root] = Place("buffer", chosen)
        read = (root for root in {value.root for value in _values(step)} if last[root] == number)
        free += sorted(places[root].number for root in read if places[root].kind == "buffer")
    return tuple(sizes)


def _values(step: Lowered) -> list[Value]:
    return [each for each in step.arguments if isinstance(each, Value) and each.constant is None]


def _step(step: Lowered, places: Mapping[Root, Place], constants: _Constants) -> Step:
    def placed(value: Value) -> Place:
        return places[value.root] if value.constant is None else constants.place(value)

    if step.layer:
        x, output, *others = (placed(each) for each in step.arguments if isinstance(each, Value))
        return LayerStep(step.layer, step.rows, x, output, tuple(others), step.tensor)
    arguments: list[Argument] = [placed(each) if isinstance(each, Value) else each for each in step.arguments]
    written = places[step.outputs[0].root]
    return KernelStep(step.kernel, step.rows, step.grid, step.threads, tuple(arguments), written, step.tensor)


class _Constants:
    """All constants in one block, each once."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._bytes = 0
        self.offsets: dict[bytes, int] = {}
        """Offsets by the SHA-256 of the constants' bytes."""

    def place(self, value: Value) -> Place:
        data = b"" if value.constant is None else value.constant.tobytes()
        digest = hashlib.sha256(data).digest()
        if digest not in self.offsets:
            gap = bytes(-self._bytes % ALIGNMENT_BYTES)
            self.offsets[digest] = self._bytes + len(gap)
            self._blocks += [gap, data]
            self._bytes += len(gap) + len(data)
        return Place("constant", self.offsets[digest])

    def data(self) -> bytes:
        return b"".join(self._blocks)
