"""The glue kernels, for the operators between compiled layers: glue.cu as PTX."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

from farm.bundle.reader import GLUE, Bundle
from farm.errors import BundleError
from farm.runtime.plan import Argument, KernelStep, Place, Plan

_KINDS = {b"u64": "pointer", b"u32": "integer", b"s32": "integer", b"f32": "float"}


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


def check_arguments(bundle: Bundle, plan: Plan) -> None:
    """Raises BundleError unless the bundle's glue kernels have parameters for the arguments of the plan's launches.

    The driver reads as many arguments as a kernel has parameters, whatever it is given.
    """
    entries = re.findall(rb"^\.visible \.entry (\w+)\(([^)]*)\)", bundle.glue, re.MULTILINE)
    taken = {name.decode(): [_KINDS.get(each) for each in _types(parameters)] for name, parameters in entries}
    for step in plan.steps:
        if isinstance(step, KernelStep) and taken.get(step.kernel) != list(map(_kind, step.arguments)):
            raise BundleError(
                f"{bundle.path}: {GLUE} has no kernel {step.kernel} with the plan's arguments: fetch the bundle again"
            )


def _types(parameters: bytes) -> list[bytes]:
    return re.findall(rb"\.param \.(\w+) ", parameters)


def _kind(argument: Argument) -> str:
    if isinstance(argument, Place):
        return "pointer"
    return "float" if isinstance(argument, float) else "integer"
