"""Times of dense layers in PyTorch, and the fit of the dense cost model to them."""
