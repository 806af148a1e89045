"""The executor and the GPU host on a Ray cluster."""
