"""Operators on 8-bit integers (QLinearConv, MatMulInteger), written in QDQ format: floats between roundings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING

from codegen.frontend.onnx.graph.functions import reads
from codegen.frontend.onnx.graph.nodes import text

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

OLDEST_OPSET = 13
"""The first in which a DequantizeLinear has a scale for each channel."""


def _first(_: Sequence[str]) -> tuple[int, ...]:
    return (0,)


def _two(_: Sequence[str]) -> tuple[int, ...]:
    return 0, 3


def _all(inputs: Sequence[str]) -> tuple[int, ...]:
    return tuple(range(2, len(inputs), 3))


@dataclass(frozen=True)
class _Operator:
    """Operand layout of an operator on integers: scale and zero point follow each operand."""

    floating: str
    """The operator on floats."""
    operands: Callable[[Sequence[str]], tuple[int, ...]] = _first
    """Places of the operands."""
    result: int = 3
    """Place of the result's scale, before its zero point."""
    bias: int | None = None
    """Place of a bias of 32-bit integers, whose scale is the product of the operands'."""


_OPERATORS = {
    "QGemm": _Operator("Gemm", _two, 7, 6),
    "QLinearAdd": _Operator("Add", _two, 6),
    "QLinearAveragePool": _Operator("AveragePool"),
    "QLinearConcat": _Operator("Concat", _all, 0),
    "QLinearConv": _Operator("Conv", _two, 6, 8),
    "QLinearGlobalAveragePool": _Operator("GlobalAveragePool"),
    "QLinearLeakyRelu": _Operator("LeakyRelu"),
    "QLinearMatMul": _Operator("MatMul", _two, 6),
    "QLinearMul": _Operator("Mul", _two, 6),
    "QLinearSigmoid": _Operator("Sigmoid"),
}
ON_INTEGERS = frozenset(_OPERATORS)
"""Operators that round their results to integers."""
_OF_DYNAMIC = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
"""Operators with results of 32 bits, and those on floats: onnxruntime's dynamic quantization multiplies by scales."""
_UNCHANGING = frozenset({"Flatten", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that move or select values, whichever their type."""


@dataclass(frozen=True, eq=False)
class _Product:
    """Dynamically quantized activations times weights: an operator on integers, a Cast, and a Mul by both scales."""

    node: NodeProto
    activations: tuple[str, str, str]
    """Integers, scale and zero point."""
    weights: tuple[str, str, str]
    inner: tuple[str, str]
    """The tensors of integers, which the operator on floats does not make."""


def write_as_qdq(graph: GraphProto, opset: int) -> None:
    """Puts a float operator between DequantizeLinear and QuantizeLinear in the place of each operator on integers.

    One whose activations have no single scale stays, and every one in an opset before OLDEST_OPSET.
    """
    if opset >= OLDEST_OPSET and any(node.op_type in _OPERATORS or node.op_type in _OF_DYNAMIC for node in graph.node):
        nodes = list(_Rewriter(graph).nodes())
        del graph.node[:]
        graph.node.extend(nodes)


class _Rewriter:
    """Nodes of a graph in order, with floats for the integers that operators on integers read."""

    def __init__(self, graph: GraphProto) -> None:
        self._graph = graph
        self._taken = {text(name) for node in graph.node for name in (*node.input, *node.output)}
        self._sizes = {text(each.name): prod(each.dims) for each in graph.initializer}
        self._taken |= self._sizes.keys() | {text(each.name) for each in graph.input}
        self._floats: dict[tuple[str, str, str], str] = {}
        """Floats of integers with a scale and a zero point."""
        self._parameters: dict[str, tuple[str, str]] = {}
        """Scale and zero point of integers that a QuantizeLinear or an operator on integers makes."""
        self._products = dict(_products(graph))
        self._inner = {name for product in self._products.values() for name in product.inner}

    def nodes(self) -> Iterator[NodeProto]:
        """The nodes, those that make the constants of a node before it."""
        for node in list(self._graph.node):
            operator, inputs = _OPERATORS.get(node.op_type), [text(name) for name in node.input]
            product = self._products.get(text(node.output[0])) if node.output else None
            if product is not None:
                yield from self._of_floats(product, text(node.output[0]))
            elif self._inner.intersection(map(text, node.output)):
                continue
            elif operator is not None and self._is_understood(operator, node, inputs):
                yield from self._floating(operator, node, inputs)
            elif node.op_type in _UNCHANGING and node.output and inputs and inputs[0] in self._parameters:
                yield from self._unchanging(node, inputs)
            else:
                if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(inputs) == 3:
                    self._note(node, inputs)
                yield _copy(node)

    def _note(self, node: NodeProto, inputs: Sequence[str]) -> None:
        value, scale, zero = inputs
        if self._sizes.get(scale) == 1:
            if node.op_type == "QuantizeLinear":
                self._parameters[text(node.output[0])] = scale, zero
            else:
                self._floats[value, scale, zero] = text(node.output[0])

    def _is_understood(self, operator: _Operator, node: NodeProto, inputs: Sequence[str]) -> bool:
        places = operator.operands(inputs)
        scaled = any(each.name == "alpha" and each.f != 1 for each in node.attribute) and operator.floating == "Gemm"
        last = any(each.name == "channels_last" and each.i for each in node.attribute)
        if scaled or last or not node.output or not places or len(inputs) < places[-1] + 3:
            return False
        weights = places[1:] if operator.bias is not None or operator.floating == "MatMul" else ()
        activations = [inputs[place + 1] for place in places if place not in weights]
        return all(self._sizes.get(each) == 1 for each in activations)

    def _floating(self, operator: _Operator, node: NodeProto, inputs: Sequence[str]) -> Iterator[NodeProto]:
        operands = []
        for place in operator.operands(inputs):
            value, scale, zero = inputs[place : place + 3]
            axis = None if self._sizes.get(scale) == 1 else _channels_axis(operator.floating, node)
            yield from self._dequantized(value, scale, zero, axis)
            operands.append(self._floats[value, scale, zero])
        if operator.bias is not None and len(inputs) > operator.bias and inputs[operator.bias]:
            scale, bias = self._fresh("scale"), self._fresh("bias")
            yield _node("Mul", [inputs[1], inputs[4]], scale)
            yield _node("DequantizeLinear", [inputs[operator.bias], scale], bias, 0)
            operands.append(bias)
        output, result = text(node.output[0]), inputs[operator.result : operator.result + 2]
        kept = _copy(node)
        kept.op_type, kept.domain = operator.floating, ""
        del kept.input[:], kept.attribute[:]
        kept.input.extend(operands)
        kept.attribute.extend(each for each in node.attribute if each.name != "channels_last")
        yield from self._quantized(kept, output, *result) if result and result[0] else [kept]

    def _of_floats(self, product: _Product, output: str) -> Iterator[NodeProto]:
        floating = _OF_DYNAMIC[product.node.op_type]
        yield from self._dequantized(*product.activations, None)
        axis = None if self._sizes[product.weights[1]] == 1 else _channels_axis(floating, product.node)
        yield from self._dequantized(*product.weights, axis)
        kept = _copy(product.node)
        kept.op_type = floating
        kept.input[:] = [self._floats[product.activations], self._floats[product.weights]]
        kept.output[0] = output
        yield kept

    def _unchanging(self, node: NodeProto, inputs: Sequence[str]) -> Iterator[NodeProto]:
        scale, zero = self._parameters[inputs[0]]
        yield from self._dequantized(inputs[0], scale, zero, None)
        kept = _copy(node)
        kept.input[0] = self._floats[inputs[0], scale, zero]
        yield from self._quantized(kept, text(node.output[0]), scale, zero)

    def _dequantized(self, value: str, scale: str, zero: str, axis: int | None) -> Iterator[NodeProto]:
        """The node that makes floats of integers, once."""
        if (value, scale, zero) not in self._floats:
            self._floats[value, scale, zero] = made = self._fresh(value)
            yield _node("DequantizeLinear", [value, scale, *filter(None, [zero])], made, axis)

    def _quantized(self, node: NodeProto, output: str, scale: str, zero: str) -> Iterator[NodeProto]:
        """A node that makes floats, and the one that makes integers of them."""
        node.output[0] = self._fresh(output)
        self._parameters[output] = scale, zero
        yield node
        yield _node("QuantizeLinear", [node.output[0], scale, zero], output)

    def _fresh(self, name: str) -> str:
        number = 0
        while (made := f"{name}_float{number or ''}") in self._taken:
            number += 1
        self._taken.add(made)
        return made


def _products(graph: GraphProto) -> Iterator[tuple[str, _Product]]:
    """The dynamically quantized products whose integers nobody else reads, by their results in floats."""
    makers = {text(name): node for node in graph.node for name in node.output}
    constants = {text(each.name): tuple(each.dims) for each in graph.initializer}
    uses = Counter(text(name) for node in graph.node for name in reads(node))
    uses.update(text(each.name) for each in graph.output)
    for node in graph.node:
        product = _product(node, makers, constants) if node.op_type == "Mul" else None
        if product is not None and all(uses[name] == 1 for name in product.inner):
            yield text(node.output[0]), product


def _product(
    scaling: NodeProto, makers: Mapping[str, NodeProto], constants: Mapping[str, tuple[int, ...]]
) -> _Product | None:
    """The product that a Mul ends: of a Cast of integers and of the product of two scales."""
    for first, second in permutations(map(text, scaling.input)):
        cast, scales = makers.get(first), makers.get(second)
        node = makers.get(text(cast.input[0])) if cast is not None and cast.op_type == "Cast" else None
        if node is None or node.op_type not in _OF_DYNAMIC or scales is None or scales.op_type != "Mul":
            continue
        value, weights, zero, weights_zero = [*map(text, node.input), "", ""][:4]
        source = makers.get(value)
        if source is None or source.op_type != "DynamicQuantizeLinear" or text(source.output[2]) != zero:
            continue
        scale = text(source.output[1])
        others = [text(name) for name in scales.input if text(name) != scale]
        shape = constants.get(others[0]) if len(others) == 1 and weights in constants else None
        if shape is not None and (prod(shape) == 1 or (len(shape) == 1 and node.op_type == "MatMulInteger")):
            return _Product(
                node, (value, scale, zero), (weights, others[0], weights_zero), (text(node.output[0]), first)
            )
    return None


def _channels_axis(floating: str, node: NodeProto) -> int:
    """The axis of an operator's weights that its output channels are along."""
    if floating == "Conv":
        return 0
    transposed = any(each.name == "transB" and each.i for each in node.attribute)
    return 0 if transposed else 1


def _node(operator: str, inputs: Sequence[str], output: str, axis: int | None = None) -> NodeProto:
    from onnx import helper

    return helper.make_node(operator, inputs, [output], output, axis=axis)


def _copy(node: NodeProto) -> NodeProto:
    copy = type(node)()
    copy.CopyFrom(node)
    return copy
