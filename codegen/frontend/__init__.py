"""Frontends: model files read into a Checkpoint."""
