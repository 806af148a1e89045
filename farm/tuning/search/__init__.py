"""Search for the fastest tilings on a GPU, as `farm tune` runs it."""
