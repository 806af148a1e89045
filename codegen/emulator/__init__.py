"""Emulators of PTX and of sm_90 machine code: all threads at once, as NumPy arrays.

Both share `alu` (arithmetic) and `memory`.
"""
