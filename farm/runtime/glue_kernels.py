"""The glue kernels, for the operators between compiled layers: glue.cu as PTX."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files


@lru_cache(maxsize=1)
def glue_ptx() -> bytes:
    """The PTX that nvcc made of glue.cu; tests/toolchain/test_glue_kernels.py says how to make it again."""
    return files("farm.runtime").joinpath("glue.ptx").read_bytes()


@lru_cache(maxsize=8)
def glue_entry(name: str) -> bytes:
    """The PTX of one kernel alone, which the driver compiles fast."""
    text = glue_ptx().decode()
    head = text[: text.index(".visible .entry")]
    begin = text.index(f".visible .entry {name}(")
    return (head + text[begin : text.index("\n}\n", begin) + 3]).encode()
