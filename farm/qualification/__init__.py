"""Qualification of the direct assembler: its code runs beside ptxas code on a GPU, compared bit by bit."""
