"""The measurements behind `codegen/prediction.py`, how they were taken, and the fit of its constants to them."""
