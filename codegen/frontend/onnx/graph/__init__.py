"""The ONNX graph before anything is compiled: nodes, constants, types and shapes."""
