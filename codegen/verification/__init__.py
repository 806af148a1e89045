"""Verification: the outputs of a kernel compared with a float64 reference, within a derived error bound."""
