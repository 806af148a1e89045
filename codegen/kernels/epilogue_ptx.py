"""The PTX of an epilogue's steps, on a sum in float32 before it is rounded and stored.

NaN stays NaN. `ex2.approx` is off by 2 units in the last place at most, `rcp.approx` by 1 (PTX ISA 9.1, section 9.7.3);
with `.ftz` subnormal numbers are zero. 1 / (1 + 2^r) is 0 where 2^r overflows, and 1 where it underflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import e as euler
from math import log2, pi, sqrt

import numpy as np

from codegen.ir.layer_spec import (
    Activation,
    AddResidual,
    Clip,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    MaxPool,
    Mish,
    Quantize,
    Scale,
    Sigmoid,
    Step,
    Swish,
    Tanh,
)
from codegen.kernels.placeholders import immediate

_LOG2_E = log2(euler)

TAIL_SCALE = 0.28
TAIL = (
    0.1170530840754509,
    0.06415677815675735,
    0.27723410725593567,
    -0.247295543551445,
    0.3962072730064392,
    -0.10735572129487991,
)
"""The share of the normal distribution beyond a is exp(-a^2 / 2) times t TAIL[0] + ... + t^6 TAIL[5], with
t = 1 / (1 + TAIL_SCALE a): fitted so that a times the share is off by less than 6e-9, and where a is below 1 the share
by less than 7e-8 of itself. The form is Hastings' (Approximations for Digital Computers, 1955)."""

NEAR_ZERO = 0.55
"""Below it the hyperbolic tangent of v is v + v^3 (TANH[0] + v^2 TANH[1] + ...), fitted: off by 5e-9 of itself."""
TANH = (-0.33333316445350647, 0.13332585990428925, -0.05385230854153633, 0.021071672439575195, -0.006274229846894741)

ROUNDING = 1.5 * 2.0**23
"""Added and subtracted again, it rounds a float32 below 2^22 to an integer, ties to even."""

MISH_CONSTANT_FROM = 20.0
"""Value from which on the second factor of Mish is 1 in float32."""


def epilogue_text(epilogue: tuple[Step, ...]) -> str:
    """The steps on the value v, without a max pool; r and q are free, names in capitals are macros of memory.cuh."""
    texts = [step_text(step) for step in epilogue if not isinstance(step, MaxPool)]
    if relu := last_relu(epilogue):
        texts[-1] = _clip(relu, Clip(high=relu.high))
    return " ".join(texts)


def last_relu(epilogue: tuple[Step, ...]) -> Clip | None:
    """The last step if its low bound is zero, which from sm_80 on the conversion to 16 bits applies."""
    match [step for step in epilogue if not isinstance(step, MaxPool)]:
        case [*_, Clip(low=0, high=high) as last] if high is None or high >= 0:
            return last
    return None


def step_text(step: Step) -> str:
    """One step on the value v."""
    match step:
        case AddResidual():
            return '" GET_RESIDUAL "add.rn.f32 v,v,r;'
        case LeakyRelu(slope):
            return f"setp.lt.f32 q,v,0f00000000; @q mul.rn.f32 v,v,{_constant(slope)};"
        case Clip():
            return _clip(step, step)
        case Scale(factor, shift):
            return f"fma.rn.f32 v,v,{_constant(factor)},{_constant(shift)};"
        case Quantize(scale, low, high):
            rounded = f"add.rn.f32 v,v,{_constant(ROUNDING)}; sub.rn.f32 v,v,{_constant(ROUNDING)};"
            steps = f"mul.rn.f32 v,v,{_constant(1 / scale)}; {_selections(Clip(low, high))} {rounded}"
            return f"{steps} mul.rn.f32 v,v,{_constant(scale)};"
        case MaxPool():
            return ""  # of several values: max_pool.cuh has it, before the others
    return _activation(step)


@lru_cache(maxsize=256)
def added_instructions(epilogue: tuple[Step, ...]) -> int:
    """Instructions per output for the steps that are more than a comparison or an addition."""
    plain = (AddResidual, LeakyRelu, Clip)
    return sum(step_text(step).count(";") for step in epilogue if not isinstance(step, plain))


def _clip(compared: Clip, of_16_bits: Clip) -> str:
    """Bounds by comparison and selection, or in 16 bits by one instruction each, which makes 0.0 of -0.0."""
    bounds = [("max", of_16_bits.low), ("min", of_16_bits.high)]
    texts = [f"{name}.NaN.f32 v,v,{_constant(bound)};" for name, bound in bounds if bound is not None]
    return f'" BOUNDS("{" ".join(texts)}", "{_selections(compared)}") "'


def _selections(clip: Clip) -> str:
    bounds = [("lt", clip.low), ("gt", clip.high)]
    texts = [
        f"setp.{test}.f32 q,v,{_constant(bound)}; selp.f32 v,{_constant(bound)},v,q;"
        for test, bound in bounds
        if bound is not None
    ]
    return " ".join(texts)


def _activation(step: Activation) -> str:
    match step:
        case Sigmoid():
            return f"mul.rn.f32 r,v,{_constant(-_LOG2_E)}; {_logistic('v')}"
        case Swish(alpha):
            return f"mul.rn.f32 r,v,{_constant(-alpha * _LOG2_E)}; {_logistic('r')} mul.rn.f32 v,v,r;"
        case HardSigmoid(alpha, beta):
            # Saturation would make 0 of NaN.
            return f"{_line(alpha, beta)} setp.nan.f32 q,r,r; cvt.sat.f32.f32 v,r; selp.f32 v,r,v,q;"
        case HardSwish(alpha, beta):
            return f"{_line(alpha, beta)} cvt.sat.f32.f32 r,r; mul.rn.f32 v,v,r;"
        case Gelu("tanh"):
            # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)).
            factor = -2 * _LOG2_E * sqrt(2 / pi)
            return (
                f"mul.rn.f32 r,v,v; fma.rn.f32 r,r,{_constant(0.044715 * factor)},{_constant(factor)}; "
                f"mul.rn.f32 r,r,v; {_logistic('r')} mul.rn.f32 v,v,r;"
            )
        case Gelu():
            return _gelu()
        case Tanh():
            return _tanh()
        case Mish():
            # tanh(log(1 + x)) is n / (n + 2), n = x (x + 2).
            return (
                "{ .reg .f32 s; "
                f"min.f32 r,v,{_constant(MISH_CONSTANT_FROM)}; mul.rn.f32 r,r,{_constant(_LOG2_E)}; "
                f"ex2.approx.ftz.f32 r,r; add.rn.f32 s,r,{_constant(2)}; mul.rn.f32 r,r,s; "
                f"add.rn.f32 s,r,{_constant(2)}; rcp.approx.ftz.f32 s,s; mul.rn.f32 r,r,s; mul.rn.f32 v,v,r; }}"
            )


def _logistic(result: str) -> str:
    """1 / (1 + 2^r)"""
    return f"ex2.approx.ftz.f32 r,r; add.rn.f32 r,r,{_constant(1)}; rcp.approx.ftz.f32 {result},r;"


def _line(alpha: float, beta: float) -> str:
    return f"fma.rn.f32 r,v,{_constant(alpha)},{_constant(beta)};"


def _gelu() -> str:
    """v times the share below v: that beyond |v| where v is negative, and else the rest."""
    return (
        "{ .reg .f32 s; "
        f"abs.f32 r,v; fma.rn.f32 r,r,{_constant(TAIL_SCALE)},{_constant(1)}; rcp.approx.ftz.f32 r,r; "
        f"{_polynomial('s', 'r', TAIL)} mul.rn.f32 s,s,r; "
        f"mul.rn.f32 r,v,v; mul.rn.f32 r,r,{_constant(-_LOG2_E / 2)}; ex2.approx.ftz.f32 r,r; mul.rn.f32 s,s,r; "
        f"sub.rn.f32 r,{_constant(1)},s; setp.lt.f32 q,v,{_constant(0)}; selp.f32 r,s,r,q; mul.rn.f32 v,v,r; }}"
    )


def _tanh() -> str:
    """1 - 2 / (1 + exp(2 v)), and near zero, where that cancels, a polynomial."""
    return (
        "{ .reg .f32 s,t; "
        f"mul.rn.f32 s,v,v; {_polynomial('t', 's', TANH)} mul.rn.f32 t,t,s; fma.rn.f32 t,t,v,v; "
        f"mul.rn.f32 r,v,{_constant(2 * _LOG2_E)}; {_logistic('r')} fma.rn.f32 r,r,{_constant(-2)},{_constant(1)}; "
        f"abs.f32 s,v; setp.lt.f32 q,s,{_constant(NEAR_ZERO)}; selp.f32 v,t,r,q; }}"
    )


def _polynomial(result: str, x: str, coefficients: Sequence[float]) -> str:
    """The sum of coefficients times ascending powers of x, by Horner's rule."""
    *others, last = coefficients
    steps = [f"fma.rn.f32 {result},{result},{x},{_constant(each)};" for each in reversed(others)]
    return " ".join([f"mov.f32 {result},{_constant(last)};", *steps])


def _constant(value: float) -> str:
    return immediate(int(np.float32(value).view(np.uint32)))
