"""Reports on the farm: explanations of cache misses, forecasts, metrics, checks of the machine."""
