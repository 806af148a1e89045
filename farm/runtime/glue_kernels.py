"""The kernels for what is left of a network: glue.cu as PTX."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files


@lru_cache(maxsize=1)
def glue_ptx() -> bytes:
    """Made of glue.cu by nvcc, when that was last changed; tests/toolchain/test_rest_kernels.py says how."""
    return files("farm.runtime").joinpath("glue.ptx").read_bytes()


@lru_cache(maxsize=8)
def glue_entry(name: str) -> bytes:
    """One of them alone, which the driver has compiled in a moment."""
    text = glue_ptx().decode()
    head = text[: text.index(".visible .entry")]
    begin = text.index(f".visible .entry {name}(")
    return (head + text[begin : text.index("\n}\n", begin) + 3]).encode()
