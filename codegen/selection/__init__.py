"""Selection: the tiling of a layer, by predicted time, and its split into kernels."""
