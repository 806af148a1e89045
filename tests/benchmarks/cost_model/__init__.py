"""The measurements behind `codegen.selection.cost_model`, and the fit of its coefficients to them."""
