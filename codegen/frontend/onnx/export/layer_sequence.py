"""The network of a bundle for a plain sequence of layers that was not read from an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from codegen.errors import CheckpointError
from codegen.frontend.onnx.export.residual_graph import LAYER_DOMAIN, layer_node
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import LayerSpec

if TYPE_CHECKING:
    from onnx import ValueInfoProto

OPSET, IR_VERSION = 17, 8


class LayerSequence:
    """A network of layers only, each of which reads the output of the one before."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)

    def with_layers(self, layers: Sequence[Layer]) -> bytes:
        """The ONNX model with each layer as one node. Raises CheckpointError if a layer of the sequence is missing."""
        import onnx

        compiled = {layer.name for layer in layers}
        missing = [layer.name for layer in self._layers if layer.name not in compiled]
        if missing:
            raise CheckpointError(
                f"{missing[0]} cannot be compiled and has no fallback: raise --max-code-size, or prune it further; "
                "farm plan says why"
            )
        model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="farm")
        model.opset_import.add(domain="", version=OPSET)
        model.opset_import.add(domain=LAYER_DOMAIN, version=1)
        graph = model.graph
        graph.name = "network"
        graph.node.extend(layer_node(layer, layer.output) for layer in self._layers)
        first, last = self._layers[0], self._layers[-1]
        graph.input.append(_value(first.input, first.spec, first.spec.input_shape))
        graph.output.append(_value(last.output, last.spec, last.spec.output_shape))
        graph.value_info.extend(
            _value(layer.output, layer.spec, layer.spec.output_shape) for layer in self._layers[:-1]
        )
        return bytes(model.SerializeToString(deterministic=True))


def _value(name: str, spec: LayerSpec, shape: tuple[int, ...]) -> ValueInfoProto:
    from onnx import TensorProto, helper

    kinds = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
    return helper.make_tensor_value_info(name, kinds[spec.data_type], ["images", *shape])
