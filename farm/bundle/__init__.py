"""Bundles: cubins, manifest and network of a job, written and read."""
