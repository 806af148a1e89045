"""The ONNX front end; `reader` is its entry point: graph, then extraction, fusion and export."""
