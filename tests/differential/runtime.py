"""Models run by onnxruntime, node by node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Every tensor that a node computes, by its name: no node is fused with another, and one thread adds up."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = [node.output[0] for node in model.graph.node]
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))
