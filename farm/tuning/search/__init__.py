"""The search for the fastest tiling on the GPU at hand: what `farm tune` does."""
