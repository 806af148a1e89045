"""Networks as text: a file of triples `row column value` for each layer, as the sparse DNN challenge has them."""
