"""One instruction run once per lane, on bit patterns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate

REGISTER = {"b16": "%rs", "b32": "%r", "b64": "%rd", "pred": "%p"}
FEW = settings(max_examples=12, deadline=None)


def bits_of(kind: str) -> int:
    return {"pred": 32, "f16x2": 32, "bf16": 16, "bf16x2": 32}.get(kind) or int(kind[1:])


def apply(opcode: str, result: str, *sources: tuple[str, Sequence[int]], negate_last: bool = False) -> list[int]:
    """Runs `opcode` once per lane; values are bit patterns, `result` and the sources' names are PTX types."""
    loads, names = [], []
    for i, (kind, _) in enumerate(sources, start=1):
        width = bits_of(kind)
        loads.append(f"ld.param.u64 %rd1{i}, [p{i}]; mad.wide.u32 %rd1{i}, %r19, {width // 8}, %rd1{i};")
        name = f"{REGISTER['b32' if kind == 'pred' else f'b{max(width, 16)}']}{i}"
        loads.append(f"ld.global.{'b32' if kind == 'pred' else f'u{width}'} {name}, [%rd1{i}];")
        if kind == "pred":
            loads.append(f"setp.ne.b32 %p{i}, {name}, 0;")
            name = f"%p{i}"
        names.append(name)
    if negate_last:
        names[-1] = "!" + names[-1]
    width = bits_of(result)
    target = REGISTER["pred" if result == "pred" else f"b{max(width, 16)}"] + "0"
    stored = "%r0" if result == "pred" else target
    text = f"""
        .version 9.0
        .target sm_80
        .visible .entry k({", ".join(f".param .u64 p{i}" for i in range(len(sources) + 1))}) {{
        .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>;
        mov.u32 %r19, %tid.x; ld.param.u64 %rd10, [p0]; mad.wide.u32 %rd10, %r19, {width // 8}, %rd10;
        {" ".join(loads)}
        {opcode} {target}, {", ".join(names)};
        {"selp.u32 %r0, 1, 0, %p0;" if result == "pred" else ""}
        st.global.u{width} [%rd10], {stored}; ret; }}"""
    lanes = len(sources[0][1])
    output = np.zeros(lanes, dtype=f"u{width // 8}")
    inputs: list[NDArray[Any]] = [np.array(values, dtype=f"u{bits_of(kind) // 8}") for kind, values in sources]
    emulate.run(text, (1, 1, 1), (lanes, 1, 1), 0, [output, *inputs])
    return [int(value) for value in output]


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def number(value: int, kind: str) -> int:
    return signed(value, bits_of(kind)) if kind[0] == "s" else value


def patterns(bits: int) -> st.SearchStrategy[int]:
    """Bit patterns, often at an edge."""
    edges = [0, 1, 2, 3, (1 << bits) - 1, (1 << bits) - 2, 1 << (bits - 1), (1 << (bits - 1)) - 1, 1 << (bits // 2)]
    return st.sampled_from(edges) | st.integers(0, (1 << bits) - 1)


def as_bits(value: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.uint32))


def as_float(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def rounded(value: Fraction, digits: int = 24, smallest: int = -149, end: int = 128) -> float:
    """A fraction to the nearest float of `digits` bits, ties to even, subnormal and infinite results included.

    The type's smallest number is 2^smallest, and 2^end is beyond its largest; those of float32 if none are given.
    """
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    quantum = Fraction(2) ** max(exponent - digits + 1, smallest)
    result = round(value / quantum) * quantum
    return math.copysign(float(result) if abs(result) < 2**end else math.inf, value)


def truncated_quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
