"""The parts of a model file: nodes, attributes, stored weights, input shapes. checkpoint.py puts them together."""
