"""The farm: plans builds, runs them on workers, remembers results."""
