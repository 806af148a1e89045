"""Correctness check of a candidate's output, before its time counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.ir.dtypes import to_float32
from codegen.ir.tiling import Tiling
from codegen.kernels import products_together
from codegen.kernels.weight_stream import PRODUCTS_TOGETHER
from codegen.verification.compare import LayerRun, verify_output
from farm.cuda.measure.workload import Case
from farm.tuning.search.rig import Bench

TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
"""Largest difference of two correct kernels, which sum in different orders, relative to the largest output."""
TOLERANCE_OF_LONG_HALF_SUMS = 5e-2


MAX_OUTPUTS = 8_000_000
"""Outputs compared per candidate: comparing a whole layer at batch 64 takes longer than building and timing it."""


class OutputCheck:
    """Checks the outputs of one layer's candidates.

    The first one is verified against the reference, later ones are compared with the first correct output; the winner
    is verified against the reference too (`reference_defect`).
    """

    def __init__(self, case: Case, bench: Bench, seed: int) -> None:
        self._case = case
        self._bench = bench
        self._seed = seed
        self._right: NDArray[Any] | None = None
        """Some images of the first correct output."""
        self._passed: set[Tiling] = set()
        """Tilings verified against the reference, which for a large layer takes longer than timing ten kernels."""

    def defect(self, tiling: Tiling, output: NDArray[Any]) -> str:
        """The defect of a tiling's output; empty if there is none."""
        some = _some_images(output)
        if self._right is None:
            found = self.reference_defect(tiling, output)
            if not found:
                self._right = some.copy()
            return found
        return "" if np.array_equal(some, self._right) else self._differences(tiling, some, self._right)

    def reference_defect(self, tiling: Tiling, output: NDArray[Any]) -> str:
        """The defect of an output against the float64 reference, on sampled blocks; every element must be written."""
        if tiling in self._passed:
            return ""
        case, bench = self._case, self._bench
        run = LayerRun(case.spec, tiling, case.weights, bench.x, output, bench.residual, seed=self._seed)
        found = verify_output(run)
        if not found.message:
            self._passed.add(tiling)
        return found.message

    def _differences(self, tiling: Tiling, output: NDArray[Any], right: NDArray[Any]) -> str:
        kind = self._case.spec.data_type
        long_sums = kind == "float16" and products_together(self._case.weights, tiling) > PRODUCTS_TOGETHER
        tolerance = TOLERANCE_OF_LONG_HALF_SUMS if long_sums else TOLERANCES[kind]
        expected = to_float32(right, kind)
        limit = tolerance * float(np.max(np.abs(expected)))
        far = ~(np.abs(to_float32(output, kind) - expected) <= limit)
        return f"{int(far.sum())} outputs differ from those of the first kernel" if far.any() else ""


def _some_images(output: NDArray[Any]) -> NDArray[Any]:
    """The first, the last and evenly spaced images in between, up to the limit."""
    most = max(2, MAX_OUTPUTS * len(output) // output.size)
    return output if len(output) <= most else output[np.linspace(0, len(output) - 1, most).astype(int)]
