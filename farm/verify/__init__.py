"""Verification of jobs: layers on their own, and whole networks."""
