"""The TSV front end: networks as text, one file of triples `row column value` per layer, as in the Graph Challenge."""
