"""The CUDA tools: where they are, and running them within limits."""
