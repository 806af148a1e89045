"""The CUDA toolchain: finding the tools and running them within limits."""
