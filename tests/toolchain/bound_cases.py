"""1x1 convolutions whose inputs are brought within bounds, and odd values for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray
from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Tiling
from codegen.verification.compare import random_input
from tests.toolchain.operator_case import Case
from tests.toolchain.operator_cases import CASES

TWO_ROWS, FINISHED = "two rows a thread", "outputs finished amid the last chunk"
_LIKE_DENSENET = {
    TWO_ROWS: Case(Conv2d(18, 8, 9, 12, 1, 1, bounded=True), Tiling("conv2d", 9, 2, 2, 4, 8, 2)),
    FINISHED: Case(Conv2d(48, 14, 14, 32, 1, 1, bounded=True), Tiling("conv2d", 28, 7, 1, 32, 8, 2)),
}
BOUND_CASES: dict[str, Case] = {
    **{name: case for name, case in CASES.items() if name.startswith("bounded") and case.virtual_arch != "compute_75"},
    **_LIKE_DENSENET,
}
ODD = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-44, 3e38)


def both_sides(case: Case, seed: int = 0) -> FloatArray:
    """Bounds of all kinds on each side: none, normal ones, zeros of both signs, subnormal ones."""
    rng, shape = np.random.default_rng(seed), (case.spec.channels, 2)
    values = np.where(
        rng.random(shape) < 0.5, rng.choice([0.0, -0.0, 1e-40, -1e-44], shape), rng.standard_normal(shape)
    )
    exists = rng.random(shape) < 0.6
    return np.where(exists, np.sort(values, axis=1), [-np.inf, np.inf]).astype(np.float32)


def odd_input(case: Case) -> NDArray[np.float32]:
    x, rng = random_input(case.spec, case.batch, seed=1), np.random.default_rng(2)
    return np.where(rng.random(x.shape) < 0.3, rng.choice(np.array(ODD, np.float32), x.shape), x).astype(np.float32)


def assert_same(found: NDArray[np.uint32], wanted: NDArray[np.uint32]) -> None:
    """Bit for bit, but for which NaN it is: a GPU has one, and NumPy that of an operand."""
    one_nan = (np.where(np.isnan(each.view(np.float32)), np.uint32(0x7FFFFFFF), each) for each in (found, wanted))
    np.testing.assert_array_equal(*one_nan)
