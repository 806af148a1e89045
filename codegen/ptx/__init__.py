"""PTX: one instruction, a module, the template of a shape, and its specialisation to one set of weights."""
