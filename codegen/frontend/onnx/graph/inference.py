"""Inferred type and shape of every tensor, the shape as a function of the number of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.graph.constants import Constants, external_data
from codegen.frontend.onnx.graph.dimensions import Dimension, Images, Inputs, PerImage, Shape
from codegen.frontend.onnx.graph.evaluation import SMALL_TENSOR
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, text
from codegen.frontend.onnx.graph.shape_propagation import UNKNOWN, ComputedShapes, Tensor, shape_of
from codegen.frontend.onnx.graph.whole_graph import inferred_graph

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

SAMPLES = (240, 480, 1, 720_720)
"""Numbers of images for which shapes and values are computed.

The first two give a size as a function of the number: both have many divisors, for models that split the batch. The
others, few and many, must agree, as a model may cap the number or compare it.
"""
LIKELY_SIZES = (64, 256)
"""Typical sizes given with --input-shape: short enough for a sequence, large enough for an image."""


class Inference:
    """Types and shapes of the tensors of a main graph."""

    def __init__(self, model: ModelProto, folder: Path, opset: int, inputs: Inputs, images: Images) -> None:
        """Raises CheckpointError for a graph that contradicts itself."""
        declared = _declared(model, folder)
        self._inputs = inputs
        self._images = images
        _resolve_cast_like(model, declared)
        self.constants = Constants(model.graph, folder, opset)
        self._computed = ComputedShapes(model.graph, self.constants, opset, declared)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name; a dimension that depends on the number of images is a PerImage, or None if not linear."""
        first, *others = [tensors for tensors, _ in self._sampled]
        if not others:
            return first
        return {
            name: _by_images([tensor, *(each.get(name, UNKNOWN) for each in others)]) for name, tensor in first.items()
        }

    def values_of_shapes(self) -> dict[str, NDArray[Any]]:
        """Small tensors that follow from the inputs' shapes and are equal for every number of images, by name."""
        first, *others = [values for _, values in self._sampled]
        return {
            name: array
            for name, array in first.items()
            if name not in self.constants and all(name in each and np.array_equal(array, each[name]) for each in others)
        }

    @cached_property
    def _sampled(self) -> list[tuple[dict[str, Tensor], Mapping[str, NDArray[Any]]]]:
        """Tensors and small values for each number of images in SAMPLES; once if the number is fixed."""
        numbers = [_in_place_of(self._images.name, number) for number in SAMPLES] if self._images.name else [_as_it_is]
        return [(self._computed.at(each), self._computed.values) for each in numbers]

    def branches(self) -> Mapping[str, bool]:
        """Conditions that are known for every number of images, by the first output of their If."""
        self._computed.at(_as_it_is)
        return self._computed.branches

    def shapes_of_given_inputs(self) -> Iterator[Mapping[str, Shape | None]]:
        """The shapes of all tensors if --input-shape gave every input dimension, once for each of LIKELY_SIZES."""
        yield from map(self._shapes_at, LIKELY_SIZES)

    def _shapes_at(self, size: int) -> Mapping[str, Shape | None]:
        of_inputs = {each for shape in self._inputs.values() for each in shape or () if isinstance(each, str)}

        def given(dimension: Dimension) -> Dimension:
            if dimension == self._images.name:
                return 1
            return size if dimension in of_inputs else dimension

        return {name: tensor.shape for name, tensor in self._computed.at(given).items()}


def _as_it_is(dimension: Dimension) -> Dimension:
    return dimension


def _in_place_of(name: str, number: int) -> Callable[[Dimension], Dimension]:
    return lambda dimension: number if dimension == name else dimension


def _by_images(sampled: Sequence[Tensor]) -> Tensor:
    """A tensor as a function of the number of images, from its shapes at the numbers in SAMPLES."""
    first, second, *others = [tensor.shape for tensor in sampled]
    if first is None or second is None or len(first) != len(second):
        return Tensor(sampled[0].element_type, None)
    # A shape that cannot be computed for few images contradicts nothing: the batch may be split.
    checked = [len(first) * (None,) if each is None or len(each) != len(first) else each for each in others]
    return Tensor(sampled[0].element_type, tuple(map(_dimension, first, second, *checked)))


def _dimension(first: Dimension, second: Dimension, *others: Dimension) -> Dimension:
    if not (isinstance(first, int) and isinstance(second, int)):
        return first if first == second else None
    factor, remainder = divmod(second - first, SAMPLES[1] - SAMPLES[0])
    offset = first - factor * SAMPLES[0]
    expected = (factor * number + offset for number in SAMPLES[2:])
    if remainder or any(isinstance(each, int) and each != size for each, size in zip(others, expected, strict=True)):
        return None
    return PerImage(factor, offset) if factor else first


def _declared(model: ModelProto, folder: Path) -> dict[str, Tensor]:
    """Tensors inferred by onnx from the whole graph, with symbols for open dimensions; it sees values of small weights.

    Raises CheckpointError if inference fails.
    """
    import onnx

    slim = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    slim.graph.node.extend(map(_slim, model.graph.node))
    for field in ("input", "output", "value_info"):
        getattr(slim.graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        stub = slim.graph.initializer.add(name=text(tensor.name), dims=tensor.dims, data_type=tensor.data_type)
        external = external_data(tensor, folder)  # checked even if no layer reads it
        if prod(tensor.dims) > SMALL_TENSOR:
            continue
        if external is None:
            stub.CopyFrom(tensor)
        else:
            stub.raw_data = external.read()
    for sparse in model.graph.sparse_initializer:
        slim.graph.initializer.add(name=text(sparse.values.name), dims=sparse.dims, data_type=sparse.values.data_type)
    graph = inferred_graph(slim)
    initializers = {each.name: Tensor(each.data_type, tuple(each.dims)) for each in slim.graph.initializer}
    return initializers | {
        value.name: Tensor(value.type.tensor_type.elem_type, shape_of(value.type))
        for value in (*graph.value_info, *graph.output, *graph.input)
    }


def _slim(node: NodeProto) -> NodeProto:
    """The node itself; a Constant whose values are no shape, without them."""
    import onnx

    large = (
        [each.t for each in node.attribute if prod(each.t.dims) > SMALL_TENSOR] if node.op_type == "Constant" else []
    )
    if not large:
        return node
    stub = onnx.TensorProto(dims=large[0].dims, data_type=large[0].data_type)
    return onnx.helper.make_node("Constant", [], node.output, node.name, node.doc_string, node.domain, value=stub)


def _resolve_cast_like(model: ModelProto, tensors: Mapping[str, Tensor]) -> None:
    """Turns each CastLike with a known target type into a Cast, which drops its second input."""
    for node in model.graph.node:
        if node.op_type == "CastLike" and node.domain in ONNX_DOMAINS and len(node.input) == 2:
            like = tensors.get(node.input[1])
            if like is not None and like.element_type:
                node.op_type = "Cast"
                del node.input[1:]
                node.attribute.add(name="to", type=2, i=like.element_type)
