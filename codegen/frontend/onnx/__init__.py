"""The parts of a model file: nodes, constants, layers, what is folded into them. checkpoint.py puts them together."""
