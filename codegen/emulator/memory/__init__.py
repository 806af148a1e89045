"""Memory of both emulators: global, shared, clusters, and the grid of blocks."""
