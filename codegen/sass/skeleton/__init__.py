"""Skeletons: machine code of a template without weights, made by ptxas from marker PTX and read back."""
