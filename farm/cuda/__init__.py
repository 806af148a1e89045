"""Work on a GPU: loading and launching cubins, graphs, timing, a layer's data, kernels made for a bench or a tuner."""
