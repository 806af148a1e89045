"""Jobs: a checkpoint to compile, its builds and their results."""
