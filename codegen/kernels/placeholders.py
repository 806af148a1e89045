"""Placeholders: values that stand for weights in a template and identify their positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FIRST_WEIGHT = 0x3F800001
"""Bits of the first weight's placeholder in the rolled form; the others follow. Just above 1.0: never a literal."""
FIRST_BIAS = 0x40000001
"""Bits of the first bias; weights and biases cannot meet before 8 million slots."""
MOST_PLACEHOLDERS = 2**23 - 1
"""Floats between 1 and 2."""
STRIDE = 5_184_289
"""Odd, so that no multiple comes twice, and 2^23 by the golden ratio, so that neighbours are far apart."""


def immediate(bits: int) -> str:
    """A float32 as PTX writes it."""
    return f"0f{bits:08X}"


def spread_placeholders(count: int) -> NDArray[np.uint32]:
    """Distinct normal floats between 1 and 2, neighbours far apart: the multiples of STRIDE modulo 2^23.

    Dong et al. (section 3) draw them at random; these depend on no library's generator. Raises ValueError if there are
    not enough.
    """
    if count > MOST_PLACEHOLDERS:
        raise ValueError(f"{count:,} weights in the full form, which has {MOST_PLACEHOLDERS:,}: take the rolled form")
    mantissas = np.arange(1, count + 1, dtype=np.uint64) * STRIDE % (MOST_PLACEHOLDERS + 1)
    return (mantissas + (FIRST_WEIGHT - 1)).astype(np.uint32)
