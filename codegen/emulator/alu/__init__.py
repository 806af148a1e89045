"""Arithmetic of both emulators: pure functions of NumPy arrays."""
