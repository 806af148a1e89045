"""A pruned network from its training to the answers of its generated code: handwritten digits of 8 x 8 pixels."""
