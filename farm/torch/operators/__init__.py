"""ONNX operators in PyTorch, and values that follow from shapes."""
