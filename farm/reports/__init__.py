"""What people ask of the farm: why there was no cache hit, metrics, whether this machine can work."""
