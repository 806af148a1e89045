"""What a worker does: what crosses to it and back, and the build of one template or cubin, cache first."""
