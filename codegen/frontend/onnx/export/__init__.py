"""Export: the network of a bundle, an ONNX model with each compiled layer as one node."""
