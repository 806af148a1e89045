"""Machine code without ptxas: 128-bit words, the cubin around them, streams assembled and checked for hazards."""
