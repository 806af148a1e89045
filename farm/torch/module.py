"""A bundle as a PyTorch module: compiled layers as operators, the glue between them in PyTorch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn

from codegen.frontend.onnx.export.network import Network, NetworkNode
from farm.bundle.reader import Bundle, BundledLayer
from farm.errors import UsageError
from farm.torch.compiled_rest import CompiledRest, CompileRest, is_compiled
from farm.torch.concat_outputs import Place, plan_places
from farm.torch.layer import Compute, forget, layers_on, prefetch_code, register
from farm.torch.operators.host_numbers import as_value
from farm.torch.operators.host_numbers import on_host as host_operator
from farm.torch.operators.host_values import MAKERS, OF_SHAPES, host_values, is_short
from farm.torch.operators.linear import own_gemm
from farm.torch.operators.pooling import own_max_pool
from farm.torch.operators.table import OPERATORS, PARAMETERS
from farm.torch.packages.subgraphs import SUBGRAPH

SEVERAL = ("DynamicQuantizeLinear", "GRU", "LSTM", "Split", SUBGRAPH)
"""Operators with all outputs; of other operators only the first is computed."""
PARTS = ("Slice", "Split")
"""Operators whose results are ranges of a larger tensor."""
ONNX_NODE = "onnx"
"""Under which an fx node's `meta` says what it was in the model."""
OWN: dict[str, Callable[..., Any]] = {"MaxPool": own_max_pool, "Gemm": own_gemm}
"""Operators with a faster implementation than PyTorch's."""


def load(path: Path | str, device: torch.device | str = "cuda", *, compile_rest: CompileRest = "auto") -> nn.Module:
    """Load the network of a bundle (a folder or file of `farm fetch`) as a module on a GPU.

    The module takes the inputs of the ONNX model in order, with any batch size that the model leaves open, and returns
    its output or a tuple of outputs. Compiled layers run on the current stream. For inference only, without gradients.
    It is run once, on zeros, unless its inputs have open sizes besides the batch. What it leaves to PyTorch goes
    through torch.compile if it is more than a few operators: the first call with a shape then takes 10 to 60 s, less if
    PyTorch's cache has it; `compile_rest` is "always" or "never" otherwise. Raises UsageError for an invalid bundle, an
    operator that cannot run, or a GPU that the bundle has no code for, and DeviceError without a GPU.
    """
    bundle = Bundle(path)
    network = bundle.network
    is_rest_compiled = is_compiled(network, compile_rest)
    where = torch.device(device)
    layers = layers_on(where, bundle)
    prefetch_code([layers[node.layer] for node in network.nodes if node.layer], where)
    module = module_of(network, bundle.layers, layers, OPERATORS | OWN).to(where).eval()
    _try_once(module, network, where)
    return CompiledRest(module) if is_rest_compiled else module


def _try_once(module: fx.GraphModule, network: Network, device: torch.device) -> None:
    """Runs a network on zeros. Raises UsageError, which names the node that fails."""
    if not all(isinstance(size, int) for each in network.inputs for size in each.shape[1:]):
        return
    shapes = [[size if isinstance(size, int) else 1 for size in each.shape] for each in network.inputs]
    with torch.inference_mode():
        _Trial(module).run(
            *(
                torch.zeros(shape, dtype=getattr(torch, each.dtype), device=device)
                for each, shape in zip(network.inputs, shapes, strict=True)
            )
        )


class _Trial(fx.Interpreter):
    """A run of a network that says which node fails."""

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except UsageError:
            raise
        except Exception as error:
            what = n.meta.get(ONNX_NODE, n.name)
            reason = " ".join(str(error).split())
            raise UsageError(
                f"farm.torch cannot run {what} of this network ({reason}): use another runtime for the network"
            ) from error


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
        self._on_host = host_values(network)
        self._host_values: dict[str, object] = {}
        """Nodes whose results are on the CPU, made when somebody first asks."""
        self._producers = {name: node for node in network.nodes for name in node.outputs}
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
            given = graph.placeholder(f"input_{i}")
            self._values[each.name] = (
                graph.call_function(_checked, (given, each.name, each.shape)) if each.shape else given
            )
        for node in network.nodes:
            if not self._on_host.intersection(node.outputs):
                self._keep(node, self._node(node), self._values)
        outputs = [self._tensor(each.name) for each in network.outputs]
        graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        module = fx.GraphModule(self._root, graph, "FarmNetwork")
        weakref.finalize(module, _forget_all, tuple(self._numbers))
        return module

    def _keep(self, node: NetworkNode, made: fx.Node, values: MutableMapping[str, Any]) -> None:
        """Names the results of a node."""
        made.meta[ONNX_NODE] = f"the {node.operator} '{node.name or node.outputs[0]}'"
        if node.operator not in SEVERAL or len(node.outputs) == 1:
            values[node.outputs[0]] = made
            return
        for i, name in enumerate(node.outputs):
            if name:
                values[name] = self._graph.call_function(_item, (made, i))

    def _node(self, node: NetworkNode) -> fx.Node:
        if node.layer:
            return self._layer(node)
        return self._joined(node) if node.outputs[0] in self._places.joined else self._operator(node)

    def _writes_among_others(self, layer: str) -> bool:
        return not isinstance(self._compute[layer], nn.Module) and self._layers[layer].writes_among_others

    def _layer(self, node: NetworkNode) -> fx.Node:
        compute = self._compute[node.layer]
        bundled = self._layers.get(node.layer)  # None for a subgraph
        in_place = bundled is not None and bundled.most_input_step > 0
        inputs = [self._contiguous(name, in_place=in_place) if name else None for name in node.inputs]
        if isinstance(compute, nn.Module):
            self._modules += 1
            self._root.add_module(f"layer_{self._modules}", compute)
            return self._graph.call_module(f"layer_{self._modules}", (*inputs, *[None] * (3 - len(inputs))))
        x, residual, gate = [*inputs, None, None][:3]
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

    def _contiguous(self, name: str, *, in_place: bool) -> fx.Node:
        """A value for a layer: contiguous, which torch.compile has written by the kernel that computes it.

        `in_place` tells whether the layer can read a range of channels of a larger tensor.
        """
        value = self._tensor(name)
        maker = self._producers.get(name)
        if maker is None or maker.layer or name in self._places.joined or (in_place and maker.operator in PARTS):
            return value
        return self._graph.call_method("contiguous", (value,))

    def _joined(self, node: NetworkNode) -> fx.Node:
        """A Concat whose inputs are in place, after copies of those that no layer wrote there."""
        place, inputs = self._places.joined[node.outputs[0]]
        for name, of_input in inputs.items():
            if (place.tensor, name) not in self._placed:
                tensor = self._tensor(name)
                self._make_room(place, tensor)
                self._graph.call_function(torch.ops.farm.place.default, (tensor, self._within(of_input)))
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

    def _operator(self, node: NetworkNode, *, on_host: bool = False) -> fx.Node:
        places = PARAMETERS.get(node.operator, ())
        arguments: list[Any] = []
        for i, name in enumerate(node.inputs):
            if not name:
                arguments.append(None)
            elif i in places and (name in self._on_host or is_short(self._network.constants.get(name))):
                arguments.append(self._parameter(name, node.operator))
            elif on_host and (node.operator not in OF_SHAPES or name in self._on_host):
                arguments.append(self._host_value(name))
            else:
                arguments.append(self._tensor(name))
        more: dict[str, Any] = {"opset": self._network.opset}
        more["outputs"] = len(node.outputs) if node.operator in SEVERAL else 1
        if node.operator in MAKERS:
            more["beside"] = None if on_host else self._values[self._network.inputs[0].name]
        attributes = {
            name: self._on_cpu(value, integers=on_host) if isinstance(value, np.ndarray) else value
            for name, value in node.attributes.items()
        }
        function = host_operator(node.operator) if on_host else self._operators[node.operator]
        return self._graph.call_function(function, tuple(arguments), {**attributes, **more})

    def _parameter(self, name: str, operator: str) -> object:
        """An operand that is read on the CPU: a constant as Python numbers, unless its type matters."""
        if name in self._on_host or operator in MAKERS:
            return self._host_value(name)
        return self._network.constants[name].tolist()

    def _tensor(self, name: str) -> fx.Node:
        """A value on the network's device."""
        if name not in self._values:
            if name in self._on_host:
                self._keep(self._producers[name], self._operator(self._producers[name]), self._values)
            else:
                self._values[name] = self._stored(self._network.constants[name])
        return self._values[name]

    def _host_value(self, name: str) -> object:
        """A value on the CPU: a constant, or what follows from shapes."""
        if name not in self._host_values:
            if name in self._on_host:
                node = self._producers[name]
                self._keep(node, self._operator(node, on_host=True), self._host_values)
            else:
                self._host_values[name] = self._on_cpu(self._network.constants[name], integers=True)
        return self._host_values[name]

    def _on_cpu(self, constant: NDArray[Any], *, integers: bool = False) -> object:
        """A constant on the CPU: integers in Python if asked, or a tensor made in each call, which stays there."""
        values = torch.from_numpy(np.array(constant))
        if integers and not isinstance(value := as_value(values), torch.Tensor):
            return value
        return self._graph.call_function(torch.tensor, (values.tolist(),), {"dtype": values.dtype})

    def _stored(self, constant: NDArray[Any]) -> fx.Node:
        self._buffers += 1
        name = f"constant_{self._buffers}"
        self._root.register_buffer(name, torch.from_numpy(np.array(constant)), persistent=False)
        return self._graph.get_attr(name)


def _checked(x: torch.Tensor, name: str, shape: Sequence[int | str | None]) -> torch.Tensor:
    """An input as the model wants it, which may fix the batch too. Raises UsageError."""
    if x.ndim != len(shape) or any(isinstance(a, int) and a != b for a, b in zip(shape, x.shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise UsageError(
            f"the input '{name}' has the shape {list(x.shape)}, and the model takes [{wanted}]: "
            "give it that, or export the model with open sizes"
        )
    return x


def _room(beside: torch.Tensor, channels: int, plane: Sequence[int]) -> torch.Tensor:
    return beside.new_empty([beside.shape[0], channels, *(plane or beside.shape[2:])])


def _item(values: tuple[torch.Tensor, ...], number: int) -> torch.Tensor:
    return values[number]


def _forget_all(numbers: tuple[int, ...]) -> None:
    for number in numbers:
        forget(number)
