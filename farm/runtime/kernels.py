"""The kernels for what is left of a network: rest.cu as PTX."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files


@lru_cache(maxsize=1)
def rest_ptx() -> bytes:
    """Made of rest.cu by nvcc, when that was last changed; tests/toolchain/test_rest_kernels.py says how."""
    return files("farm.runtime").joinpath("rest.ptx").read_bytes()
