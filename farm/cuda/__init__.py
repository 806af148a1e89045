"""Work on a GPU: loading and launching cubins, CUDA graphs, timing, prefetch of code."""
