"""Expressions in an element v of a tensor: sums of factor * v^power, each optionally times a function of such a sum."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from math import isclose, isfinite, pi, sqrt

from codegen.ir.layer_spec import Activation, Gelu, HardSigmoid, HardSwish, Mish, Sigmoid, Swish, Tanh

LARGEST_POWER = 6


class UnknownExpressionError(Exception):
    """An expression that an Expression cannot represent."""


@dataclass(frozen=True)
class Function:
    """Sigmoid, Tanh, Erf, Softplus, or Saturate, which clips its argument to 0 and 1."""

    name: str
    argument: Expression


@dataclass(frozen=True)
class Term:
    """factor * v^power * function"""

    factor: float
    power: int = 0
    function: Function | None = None


@dataclass(frozen=True)
class Expression:
    """A sum of terms; each pair of power and function occurs once."""

    terms: tuple[Term, ...]

    @staticmethod
    def of(terms: Iterable[Term]) -> Expression:
        """The expression of these terms, added up where power and function are equal."""
        factors: dict[tuple[int, Function | None], float] = {}
        for term in terms:
            key = term.power, term.function
            factors[key] = factors.get(key, 0.0) + term.factor
        return Expression(tuple(Term(factor, *key) for key, factor in factors.items() if factor))

    @property
    def constant(self) -> float:
        """The value of an expression without v. Raises UnknownExpressionError if it depends on v."""
        if any(term.power or term.function for term in self.terms):
            raise UnknownExpressionError
        return sum(term.factor for term in self.terms)

    def __add__(self, other: Expression) -> Expression:
        return Expression.of((*self.terms, *other.terms))

    def __mul__(self, other: Expression) -> Expression:
        return Expression.of(_product(a, b) for a in self.terms for b in other.terms)

    def times(self, factor: float) -> Expression:
        return self * number(factor)

    def to_the(self, power: float) -> Expression:
        """The expression to a power. Raises UnknownExpressionError unless it is an integer from 1 to LARGEST_POWER."""
        if power not in range(1, LARGEST_POWER + 1):
            raise UnknownExpressionError
        result = number(1)
        for _ in range(int(power)):
            result = result * self
        return result


def number(value: float) -> Expression:
    """A constant expression."""
    return Expression.of([Term(value)])


V = Expression((Term(1.0, 1),))
"""The element v itself."""


def apply(name: str, argument: Expression) -> Expression:
    """A function of an expression."""
    return Expression((Term(1.0, 0, Function(name, argument)),))


def clipped(argument: Expression, low: float, high: float) -> Expression:
    """An expression clipped to zero and `high`. Raises UnknownExpressionError if `low` is not zero."""
    if low != 0 or not 0 < high < float("inf"):
        raise UnknownExpressionError
    return apply("Saturate", argument.times(1 / high)).times(high)


def expression_of(step: Activation, v: Expression = V) -> Expression:
    """An activation applied to an expression."""
    match step:
        case Sigmoid():
            return apply("Sigmoid", v)
        case Tanh():
            return apply("Tanh", v)
        case HardSigmoid(alpha, beta):
            return apply("Saturate", v.times(alpha) + number(beta))
        case HardSwish(alpha, beta):
            return v * apply("Saturate", v.times(alpha) + number(beta))
        case Swish(alpha):
            return v * apply("Sigmoid", v.times(alpha))
        case Gelu("tanh"):
            argument = (v + v.to_the(3).times(0.044715)).times(sqrt(2 / pi))
            return (v * (number(1) + apply("Tanh", argument))).times(0.5)
        case Gelu():
            return (v * (number(1) + apply("Erf", v.times(sqrt(0.5))))).times(0.5)
        case Mish():
            return v * apply("Tanh", apply("Softplus", v))


def activation_of(expression: Expression, tolerance: float) -> Activation | None:
    """The activation that equals an expression in v, constants within the relative `tolerance`; None if none does."""
    known = [Sigmoid(), Tanh(), Mish(), Gelu(), Gelu("tanh"), *_parametric(expression)]
    return next((step for step in known if _close(expression, expression_of(step), tolerance)), None)


def _parametric(expression: Expression) -> list[Activation]:
    """The parametric activation of an expression f(alpha v + beta) or v f(alpha v + beta); empty for others."""
    match expression.terms:
        case (Term(_, power, Function(name, argument)),) if {each.power for each in argument.terms} <= {0, 1}:
            beta, alpha = (sum(each.factor for each in argument.terms if each.power == n) for n in (0, 1))
            alpha, beta = _float32(alpha), _float32(beta)
            if alpha not in (0, 1) and (name, power) == ("Saturate", 0):  # with 1, it is a sum and a Clip
                return [HardSigmoid(alpha, beta)]
            if alpha and (name, power) == ("Saturate", 1):
                return [HardSwish(alpha, beta)]
            if alpha and (name, power) == ("Sigmoid", 1):
                return [Swish(alpha)]
    return []


def _float32(value: float) -> float:
    """The nearest float32, as the kernel uses it; so spellings of one constant share a layer."""
    try:
        nearest = float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        raise UnknownExpressionError from None
    if not isfinite(nearest):
        raise UnknownExpressionError
    return nearest


def _product(a: Term, b: Term) -> Term:
    power = a.power + b.power
    if (a.function and b.function) or power > LARGEST_POWER:
        raise UnknownExpressionError
    return Term(a.factor * b.factor, power, a.function or b.function)


def _close(a: Expression, b: Expression, tolerance: float) -> bool:
    """Whether two expressions have equal terms, with factors within the relative `tolerance`."""
    first, second = (sorted(each.terms, key=_order) for each in (a, b))
    return len(first) == len(second) and all(
        _order(x) == _order(y)
        and isclose(x.factor, y.factor, rel_tol=tolerance)
        and (not x.function or not y.function or _close(x.function.argument, y.function.argument, tolerance))
        for x, y in zip(first, second, strict=True)
    )


def _order(term: Term) -> tuple[int, str]:
    return term.power, term.function.name if term.function else ""
