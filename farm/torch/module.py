"""A bundle as a PyTorch module: compiled layers as operators, the glue between them in PyTorch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn

from codegen.frontend.onnx.export.network import Network, NetworkNode
from farm.bundle.reader import Bundle, BundledLayer
from farm.errors import UsageError
from farm.torch.concat_outputs import Place, plan_places
from farm.torch.layer import Compute, forget, layers_on, prefetch_code, register
from farm.torch.linear import own_gemm
from farm.torch.operators import OPERATORS, PARAMETERS
from farm.torch.pooling import own_max_pool

MOST_PARAMETERS = 64
"""Largest constant that an operator gets as Python numbers, for shapes, axes and the like."""
SEVERAL = ("Split",)
"""Operators with all outputs; of other operators only the first is computed."""
OWN: dict[str, Callable[..., Any]] = {"MaxPool": own_max_pool, "Gemm": own_gemm}
"""Operators with a faster implementation than PyTorch's."""


def load(path: Path | str, device: torch.device | str = "cuda") -> nn.Module:
    """Load the network of a bundle (a folder or file of `farm fetch`) as a module on a GPU.

    The module takes the inputs of the ONNX model in order, with any batch size that the model leaves open, and returns
    its output or a tuple of outputs. Compiled layers run on the current stream. For inference only, without gradients.
    Raises UsageError for an invalid bundle, an unsupported operator, or a GPU that the bundle has no code for, and
    DeviceError without a GPU.
    """
    bundle = Bundle(path)
    network = bundle.network
    where = torch.device(device)
    layers = layers_on(where, bundle)
    prefetch_code([layers[node.layer] for node in network.nodes if node.layer], where)
    return module_of(network, bundle.layers, layers, OPERATORS | OWN).to(where).eval()


def module_of(
    network: Network,
    layers: Mapping[str, BundledLayer],
    compute: Mapping[str, Compute],
    operators: Mapping[str, Callable[..., Any]] = OPERATORS,
) -> fx.GraphModule:
    """A network that computes its layers by given functions and its glue by operators. Raises UsageError.

    A function that is a module becomes a submodule, which torch.compile can trace; others are called through the
    operator `farm::layer`.
    """
    unknown = sorted({each.operator for each in network.nodes if not each.layer and each.operator not in operators})
    if unknown:
        raise UsageError(f"farm.torch does not support {', '.join(unknown)}: use another runtime for the network")
    read = {name for node in network.nodes for name in node.inputs} | {each.name for each in network.outputs}
    later = {each.operator for each in network.nodes if each.operator not in SEVERAL and read & {*each.outputs[1:]}}
    if later:
        raise UsageError(
            f"farm.torch computes only the first output of {', '.join(sorted(later))}, and the network reads another: "
            "use another runtime for the network"
        )
    return _Builder(network, layers, compute, operators).module()


class _Builder:
    """Builds the graph of PyTorch calls of a network."""

    def __init__(
        self,
        network: Network,
        layers: Mapping[str, BundledLayer],
        compute: Mapping[str, Compute],
        operators: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._network = network
        self._operators = operators
        self._layers = layers
        self._compute = compute
        self._root = nn.Module()
        self._graph = fx.Graph()
        self._values: dict[str, fx.Node] = {}
        self._numbers: list[int] = []
        self._buffers = 0
        self._modules = 0
        self._places = plan_places(network, self._writes_among_others)
        self._tensors: dict[str, fx.Node] = {}
        """Tensors that contain others."""
        self._placed: set[tuple[str, str]] = set()
        """Containing tensor and name of each tensor that is in its place already."""

    def module(self) -> fx.GraphModule:
        network, graph = self._network, self._graph
        for i, each in enumerate(network.inputs):
            self._values[each.name] = graph.placeholder(f"input_{i}")
        for node in network.nodes:
            made = self._node(node)
            if node.operator not in SEVERAL or len(node.outputs) == 1:
                self._values[node.outputs[0]] = made
            else:
                for i, name in enumerate(node.outputs):
                    if name:
                        self._values[name] = graph.call_function(_item, (made, i))
        outputs = [self._tensor(each.name) for each in network.outputs]
        graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        module = fx.GraphModule(self._root, graph, "FarmNetwork")
        weakref.finalize(module, _forget_all, tuple(self._numbers))
        return module

    def _node(self, node: NetworkNode) -> fx.Node:
        if node.layer:
            return self._layer(node)
        return self._joined(node) if node.outputs[0] in self._places.joined else self._operator(node)

    def _writes_among_others(self, layer: str) -> bool:
        return self._layers[layer].writes_among_others and not isinstance(self._compute[layer], nn.Module)

    def _layer(self, node: NetworkNode) -> fx.Node:
        compute = self._compute[node.layer]
        inputs = [self._tensor(name) if name else None for name in node.inputs]
        x, residual, gate = [*inputs, None, None][:3]
        if isinstance(compute, nn.Module):
            self._modules += 1
            self._root.add_module(f"layer_{self._modules}", compute)
            return self._graph.call_module(f"layer_{self._modules}", (x, residual, gate))
        number = register(self._layers[node.layer], compute)
        self._numbers.append(number)
        place = self._places.written.get(node.outputs[0])
        if place is None:
            return self._graph.call_function(torch.ops.farm.layer.default, (x, residual, number, gate))
        rank = len(self._network.shapes[node.outputs[0]])
        self._make_room(place, x, self._layers[node.layer].spec.output_shape[2 - rank :])
        output = self._within(place)
        self._graph.call_function(torch.ops.farm.write_layer.default, (x, residual, number, output, gate))
        self._placed.add((place.tensor, node.outputs[0]))
        return output

    def _joined(self, node: NetworkNode) -> fx.Node:
        """A Concat whose inputs are in place, after copies of those that no layer wrote there."""
        place, inputs = self._places.joined[node.outputs[0]]
        for name, of_input in inputs.items():
            if (place.tensor, name) not in self._placed:
                tensor = self._tensor(name)
                self._make_room(place, tensor)
                self._graph.call_function(torch.ops.aten.copy_.default, (self._within(of_input), tensor))
                self._placed.add((place.tensor, name))
        return self._within(place)

    def _make_room(self, place: Place, beside: fx.Node, plane: Sequence[int] = ()) -> None:
        """Create a containing tensor unless it exists, with the images and by default the plane of `beside`."""
        if place.tensor not in self._tensors:
            arguments = (beside, self._places.channels[place.tensor], plane)
            self._tensors[place.tensor] = self._graph.call_function(_room, arguments)

    def _within(self, place: Place) -> fx.Node:
        tensor = self._tensors[place.tensor]
        if place.count == self._places.channels[place.tensor]:
            return tensor
        return self._graph.call_function(torch.narrow, (tensor, 1, place.first, place.count))

    def _operator(self, node: NetworkNode) -> fx.Node:
        places = PARAMETERS.get(node.operator, ())
        arguments = [
            None if not name else self._parameter(name) if i in places else self._tensor(name)
            for i, name in enumerate(node.inputs)
        ]
        more = {"opset": self._network.opset, "outputs": len(node.outputs) if node.operator in SEVERAL else 1}
        attributes = {
            name: self._stored(value) if isinstance(value, np.ndarray) else value
            for name, value in node.attributes.items()
        }
        return self._graph.call_function(self._operators[node.operator], tuple(arguments), {**attributes, **more})

    def _parameter(self, name: str) -> object:
        """A constant as Python numbers, else a tensor."""
        constant = self._network.constants.get(name)
        return self._tensor(name) if constant is None or constant.size > MOST_PARAMETERS else constant.tolist()

    def _tensor(self, name: str) -> fx.Node:
        if name not in self._values:
            self._values[name] = self._stored(self._network.constants[name])
        return self._values[name]

    def _stored(self, constant: NDArray[Any]) -> fx.Node:
        self._buffers += 1
        name = f"constant_{self._buffers}"
        self._root.register_buffer(name, torch.from_numpy(np.array(constant)), persistent=False)
        return self._graph.get_attr(name)


def _room(beside: torch.Tensor, channels: int, plane: Sequence[int]) -> torch.Tensor:
    return beside.new_empty([beside.shape[0], channels, *(plane or beside.shape[2:])])


def _item(values: tuple[torch.Tensor, ...], number: int) -> torch.Tensor:
    return values[number]


def _forget_all(numbers: tuple[int, ...]) -> None:
    for number in numbers:
        forget(number)
