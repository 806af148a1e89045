"""Activations: the errors of the kernel's instructions add up to at most the declared bound."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from math import erf, exp, log1p, pi, sqrt, tanh
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate
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
from codegen.kernels.epilogue_ptx import added_instructions, last_relu, step_text
from codegen.verification.activations import Function, function_of

Floats = NDArray[np.float64]

ACTIVATIONS: list[Activation] = [
    Sigmoid(),
    HardSigmoid(0.2, 0.5),
    HardSigmoid(-0.5, -0.25),
    HardSwish(1 / 6, 0.5),
    HardSwish(-0.7, 1.3),
    Swish(),
    Swish(1.702),
    Swish(-3.0),
    Gelu(),
    Gelu("tanh"),
    Tanh(),
    Mish(),
]
THIN = float(np.float32(0.05))
each_activation = pytest.mark.parametrize("step", ACTIVATIONS, ids=str)

ROUNDED = {"ex2": 2.5 * 2.0**-23, "rcp": 2.0**-23, "mul": 2.0**-24, "fma": 2.0**-24, "add": 2.0**-24, "sub": 2.0**-24}
"""Largest error of a result, as a share of it: units in the last place are at most 2^-23 of a number."""
EXACT = ("abs", "mov", "min", "cvt", "selp", "setp")


def spread() -> Floats:
    """float32 arguments, dense where the functions curve."""
    parts = [np.linspace(-30, 30, 60001), np.linspace(-1, 1, 20001), np.geomspace(1e-30, 1e4, 5001)]
    values = np.concatenate([*parts, -parts[-1]])
    return values.astype(np.float32).astype(np.float64)


def instructions(step: Activation) -> list[tuple[str, list[str]]]:
    """Instructions as names without types, and operands."""
    found = []
    for text in re.sub(r"[{}]|\.reg[^;]*;", " ", step_text(step)).split(";"):
        if text.strip():
            opcode, operands = text.split(maxsplit=1)
            assert opcode.split(".")[0] in (*ROUNDED, *EXACT), text
            found.append((opcode, [each.strip() for each in operands.split(",")]))
    return found


def computed(step: Activation, v: Floats, wrong: int | None = None, share: float = 0.0) -> Floats:
    """The step without rounding, with a relative error in one instruction's result."""
    known: dict[str, Any] = {"v": v}

    def operand(name: str) -> Any:
        return struct.unpack(">f", bytes.fromhex(name[2:]))[0] if name.startswith("0f") else known[name]

    with np.errstate(over="ignore"):
        for i, (opcode, (target, *names)) in enumerate(instructions(step)):
            a, b, c = [*map(operand, names), None, None][:3]
            match opcode.split("."):
                case ["ex2", *_]:
                    result = np.exp2(np.minimum(a, 300))  # enough to overflow float32, not what follows
                case ["rcp", *_]:
                    result = 1 / a
                case ["mul", *_]:
                    result = a * b
                case ["fma", *_]:
                    result = a * b + c
                case ["add", *_]:
                    result = a + b
                case ["sub", *_]:
                    result = a - b
                case ["min", *_]:
                    result = np.minimum(a, b)
                case ["abs", *_]:
                    result = np.abs(a)
                case ["cvt", "sat", *_]:
                    result = np.clip(a, 0, 1)
                case ["setp", "lt", *_]:
                    result = a < b
                case ["setp", "nan", *_]:
                    result = np.isnan(a) | np.isnan(b)
                case ["selp", *_]:
                    result = np.where(c, a, b)
                case _:
                    result = np.broadcast_to(a, v.shape)
            known[target] = result * (1 + share) if i == wrong else result
    return np.asarray(known["v"])


def largest_error(step: Activation, v: Floats) -> Floats:
    """The sum of the errors of constants, polynomials and every instruction, all in one direction."""
    right = computed(step, v)
    total = np.abs(right - function_of(step).compute(v))
    for i, (opcode, _) in enumerate(instructions(step)):
        if share := ROUNDED.get(opcode.split(".")[0]):
            total += np.maximum(*(np.abs(computed(step, v, i, sign * share) - right) for sign in (1, -1)))
    return total


def allowed(function: Function, v: Floats, exact: Floats) -> Floats:
    return function.error(v, exact, np.zeros_like(exact))


@each_activation
def test_the_errors_of_all_instructions_together_are_within_what_is_declared(step: Activation) -> None:
    v, function = spread(), function_of(step)
    share = largest_error(step, v) / allowed(function, v, function.compute(v))
    assert 0.2 < share.max() < 0.999


@each_activation
def test_no_slope_is_steeper_than_declared(step: Activation) -> None:
    v, function = np.linspace(-40, 40, 400_001), function_of(step)
    slopes = np.abs(np.diff(function.compute(v)) / np.diff(v))
    assert 0.97 * function.steepest < slopes.max() * (1 - 1e-9) <= function.steepest or isinstance(step, HardSwish)
    assert slopes.max() <= function.steepest * (1 + 1e-9)


def emulated(step: Step, v: NDArray[np.float32]) -> NDArray[np.float32]:
    text = f"""
        .version 9.0
        .target sm_80
        .visible .entry k(.param .u64 out, .param .u64 in) {{
        .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .f32 %f<2>;
        mov.u32 %r0,%ctaid.x; mov.u32 %r1,%tid.x; mad.lo.u32 %r0,%r0,1000,%r1;
        ld.param.u64 %rd0,[out]; ld.param.u64 %rd1,[in]; mul.wide.u32 %rd2,%r0,4;
        add.u64 %rd0,%rd0,%rd2; add.u64 %rd1,%rd1,%rd2;
        ld.global.f32 %f0,[%rd1];
        {{ .reg .pred q; .reg .f32 v,r; mov.f32 v,%f0; {step_text(step)} mov.f32 %f1,v; }}
        st.global.f32 [%rd0],%f1; ret; }}"""
    padded = np.resize(v, -(-len(v) // 1000) * 1000)
    output = np.zeros_like(padded)
    emulate.run(text, (len(padded) // 1000, 1, 1), (1000, 1, 1), 0, [output, padded])
    return output[: len(v)]


@each_activation
def test_the_emulator_computes_each_function_within_its_error(step: Activation) -> None:
    v, function = spread(), function_of(step)
    exact = function.compute(v)
    difference = np.abs(emulated(step, v.astype(np.float32)) - exact)
    assert (difference <= allowed(function, v, exact)).all()


@each_activation
def test_infinite_and_missing_arguments_give_what_the_definition_gives(step: Activation) -> None:
    v = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 0.0, -0.0, 1e-40, -1e-40], np.float32)
    function = function_of(step)
    exact = function.compute(v.astype(np.float64))
    got = emulated(step, v)
    odd = ~np.isfinite(exact)
    np.testing.assert_array_equal(got[odd], exact[odd])
    assert (np.abs(got[~odd] - exact[~odd]) <= allowed(function, v[~odd], exact[~odd])).all()
    assert np.isnan(got[2])


@pytest.mark.parametrize(
    "step", [Scale(-1.5, 0.25), Scale(THIN, 3e5), Quantize(THIN, -100, 155), Quantize(1.0, -65535, 0)], ids=str
)
def test_the_emulator_scales_and_quantizes_within_the_error(step: Scale | Quantize) -> None:
    odd = np.array([np.inf, -np.inf, np.nan, 1e38, -1e38, 0.0, 1e-40])
    v, function = np.concatenate([spread(), odd]).astype(np.float32).astype(np.float64), function_of(step)
    exact, got = function.compute(v), emulated(step, v.astype(np.float32))
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(got[~finite], exact[~finite])
    assert (np.abs(got[finite] - exact[finite]) <= allowed(function, v[finite], exact[finite])).all()


def test_a_quantized_value_is_exact_unless_it_is_near_the_middle_of_two_steps() -> None:
    step = Quantize(THIN, -100, 155)
    v = np.append(np.random.default_rng(0).uniform(-6, 9, 20000), 0.025)
    function = function_of(step)
    exact = function.compute(v)
    from_middle = np.abs(v / step.scale - np.floor(v / step.scale) - 0.5)
    near = allowed(function, v, exact) > step.scale / 2
    assert near.sum() < 20
    assert from_middle[near].max(initial=0) < 1e-4
    np.testing.assert_allclose(exact, step.scale * np.clip(np.rint(v / step.scale), -100, 155))


def test_values_in_the_middle_of_two_steps_are_rounded_to_the_even_one() -> None:
    v = np.array([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
    np.testing.assert_array_equal(emulated(Quantize(1.0, -128, 127), v), [-2, 0, 0, 2, 2])


DEFINITIONS: dict[str, tuple[Activation, Callable[[float], float]]] = {
    "sigmoid": (Sigmoid(), lambda v: 1 / (1 + exp(-v))),
    "SiLU": (Swish(), lambda v: v / (1 + exp(-v))),
    "swish": (Swish(-0.5), lambda v: v / (1 + exp(0.5 * v))),
    "GELU": (Gelu(), lambda v: v * (1 + erf(v / sqrt(2))) / 2),
    "GELU by tanh": (Gelu("tanh"), lambda v: v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))) / 2),
    "tanh": (Tanh(), tanh),
    "Mish": (Mish(), lambda v: v * tanh(log1p(exp(v)))),
    "hard sigmoid": (HardSigmoid(0.2, 0.5), lambda v: max(0.0, min(1.0, 0.2 * v + 0.5))),
    "hard swish": (HardSwish(1 / 6, 0.5), lambda v: v * max(0.0, min(1.0, v / 6 + 0.5))),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_functions_are_those_of_their_names(name: str) -> None:
    step, definition = DEFINITIONS[name]
    v = np.array([-4.0, -2.0, -0.5, 0.0, 0.5, 2.0, 4.0])
    np.testing.assert_allclose(function_of(step).compute(v), [definition(each) for each in v.tolist()], rtol=1e-9)


def test_only_activations_add_instructions_to_a_store() -> None:
    assert added_instructions((Clip(0, 6), LeakyRelu(0.1), AddResidual())) == 0
    assert added_instructions((Swish(),)) == 5
    assert added_instructions((Gelu(), Clip(low=0.0), Sigmoid())) > 20


def test_the_conversion_to_16_bits_applies_a_low_bound_of_zero_that_comes_last() -> None:
    assert last_relu((AddResidual(), Clip(0.0))) == last_relu((Clip(0.0), MaxPool())) == Clip(0.0)
    assert last_relu((Clip(0.0), AddResidual(), Clip(0.0, 6.0))) == Clip(0.0, 6.0)
    others: tuple[tuple[Step, ...], ...] = (
        (),
        (Clip(0.0), Swish()),
        (Clip(-1.0, 1.0),),
        (Clip(None, 0.0),),
        (MaxPool(),),
    )
    assert [last_relu(each) for each in others] == [None] * len(others)


def test_bounds_in_reverse_order_are_not_left_to_the_conversion() -> None:
    assert last_relu((Clip(0.0, -1.0),)) is None
