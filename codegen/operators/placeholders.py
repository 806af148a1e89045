"""Placeholders: the values that stand for weights in a template; a value identifies its position."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FIRST_WEIGHT = 0x3F800001
"""Bits of the first weight's placeholder in the rolled form; the others follow. Just above 1.0: never a literal."""
FIRST_BIAS = 0x40000001
"""Bits of the first bias; weights and biases cannot meet before 8 million slots."""


def immediate(bits: int) -> str:
    """A float32 as PTX writes it."""
    return f"0f{bits:08X}"


def random_placeholders(count: int) -> NDArray[np.uint32]:
    """Distinct normal floats between 1 and 2 in random order, the same for the same count (Dong et al., section 3)."""
    mantissas = np.random.default_rng(count).choice(2**23 - 1, size=count, replace=False)
    return (mantissas + FIRST_WEIGHT).astype(np.uint32)
