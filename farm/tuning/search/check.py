"""Whether a kernel is right, before anybody asks how fast it is."""

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
"""Most that two correct kernels, which add in different orders, may differ anywhere, relative to the largest output."""
TOLERANCE_OF_LONG_HALF_SUMS = 5e-2


MOST_OUTPUTS = 8_000_000
"""Of a candidate so many are compared; of a whole layer at batch 64 that takes longer than to build and to time it."""


class Judge:
    """Compares the outputs of one layer's kernels: each with the first that was right, which the reference has seen.

    What is kept passes the reference too: `last_objection`.
    """

    def __init__(self, case: Case, bench: Bench, seed: int) -> None:
        self._case = case
        self._bench = bench
        self._seed = seed
        self._right: NDArray[Any] | None = None
        """Some images of the output of the first kernel that was right."""
        self._passed: set[Tiling] = set()
        """What the reference has seen: for a large layer it takes longer than to time ten kernels."""

    def objection(self, tiling: Tiling, output: NDArray[Any]) -> str:
        """What is wrong with the output of this tiling's kernels, in words; empty if nothing is."""
        some = _some_images(output)
        if self._right is None:
            found = self.last_objection(tiling, output)
            if not found:
                self._right = some.copy()
            return found
        return "" if np.array_equal(some, self._right) else self._differences(tiling, some, self._right)

    def last_objection(self, tiling: Tiling, output: NDArray[Any]) -> str:
        """The same by sampled blocks of all images against the float64 reference; nothing may be left unwritten."""
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
    """The first, the last, and evenly between them as many as may be compared."""
    most = max(2, MOST_OUTPUTS * len(output) // output.size)
    return output if len(output) <= most else output[np.linspace(0, len(output) - 1, most).astype(int)]
