"""What a coordinator does: plans jobs, claims them, gives their work to an executor, records what comes of it."""
