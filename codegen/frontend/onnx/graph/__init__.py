"""An ONNX graph before extraction: nodes, constants, types and shapes."""
