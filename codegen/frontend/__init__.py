"""Front ends: readers of model files, which give a Checkpoint."""
