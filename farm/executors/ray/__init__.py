"""Executors on a Ray cluster."""
