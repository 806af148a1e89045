"""`farm admit`: layers assembled directly against the same by ptxas, on a GPU, bit for bit."""
