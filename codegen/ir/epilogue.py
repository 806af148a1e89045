"""The steps of an epilogue: between the bias and the store of a kernel's sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Clip:
    """Values below `low` become `low`, those above `high` become `high`, NaN stays; Relu is Clip(low=0)."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class LeakyRelu:
    """Values below zero are multiplied by the slope."""

    slope: float


@dataclass(frozen=True)
class AddResidual:
    """Adds the element of the layer's second input, which has the shape of the output."""


@dataclass(frozen=True)
class Sigmoid:
    """1 / (1 + exp(-v))"""


@dataclass(frozen=True)
class HardSigmoid:
    """alpha v + beta, within 0 and 1; alpha is not zero."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class HardSwish:
    """v times HardSigmoid(alpha, beta) of v."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class Swish:
    """v / (1 + exp(-alpha v)): SiLU where alpha is 1, which is not zero."""

    alpha: float = 1.0


@dataclass(frozen=True)
class Gelu:
    """v times the normal distribution's share below v, or its approximation with tanh."""

    approximate: Literal["none", "tanh"] = "none"


@dataclass(frozen=True)
class Tanh:
    """The hyperbolic tangent."""


@dataclass(frozen=True)
class Mish:
    """v tanh(log(1 + exp(v)))"""


@dataclass(frozen=True)
class Scale:
    """v times the factor, plus the shift, both of float32."""

    factor: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class Quantize:
    """The nearest multiple of the scale, ties to even, from `low` to `high` times the scale; NaN stays.

    The numbers that a QuantizeLinear and a DequantizeLinear leave: `low` and `high` are the integer type's bounds less
    the zero point. The scale and its reciprocal are positive and finite in float32.
    """

    scale: float
    low: int
    high: int


POOL_STRIDE = 2
"""Rows and columns from a window of a max pool to the next."""


@dataclass(frozen=True)
class MaxPool:
    """The largest of each 2x2 or 3x3 values, two apart, or NaN if one is: the last step of a convolution.

    The steps before it are monotonic: see `codegen.kernels.max_pool.is_monotonic`.
    """

    window: Literal[2, 3] = 2
    """Rows, and columns."""
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right: 0 or 1, for windows of 3x3. Padding is never the largest."""

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of windows of a map of this height and width."""
        top, left, bottom, right = self.padding
        inside = (height + top + bottom - self.window, width + left + right - self.window)
        return inside[0] // POOL_STRIDE + 1, inside[1] // POOL_STRIDE + 1


Activation = Sigmoid | HardSigmoid | HardSwish | Swish | Gelu | Tanh | Mish
"""A step that computes a function; `codegen.verification.activations` has it in float64, with its error bound."""

Step = Clip | LeakyRelu | AddResidual | MaxPool | Scale | Quantize | Activation
"""A step between the bias and the store of a sum."""

STEPS: dict[str, type[Step]] = {
    "clip": Clip,
    "leaky_relu": LeakyRelu,
    "add_residual": AddResidual,
    "max_pool": MaxPool,
    "sigmoid": Sigmoid,
    "hard_sigmoid": HardSigmoid,
    "hard_swish": HardSwish,
    "swish": Swish,
    "gelu": Gelu,
    "tanh": Tanh,
    "mish": Mish,
    "scale": Scale,
    "quantize": Quantize,
}
