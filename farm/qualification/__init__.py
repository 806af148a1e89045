"""Admission records: which GPUs ran code without ptxas, and found it to be the same."""
