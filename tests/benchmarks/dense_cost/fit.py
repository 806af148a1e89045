"""Fits the coefficients of `codegen/selection/dense_cost.py` to the measured layers, by random search.

    python -m tests.benchmarks.dense_cost.fit [--steps 3000]

With `--steps 0` it only says how far the present coefficients are off. It prints its result and changes no file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from unittest.mock import patch

from codegen.ir.layer_spec import LayerSpec, Linear, spec_from_json
from codegen.selection import dense_cost
from codegen.selection.dense_cost import DenseCoefficients, DensePrecision, Layout, predict_dense_microseconds

POINTS = Path(__file__).parent / "h200.jsonl.gz"
FIRST = {"fp32": 2.4e7, "tf32": 1.8e8, "fp16": 3.5e8}
"""Multiply-adds per microsecond from which the search begins."""
STARTS = (256.0, 1024.0, 4096.0)
"""Depths of a split from which it begins."""
LIMITS = ((1, 8), (1e6, 1e9), (8, 256), (8, 256), (64, 2**14), (1e6, 6e6), (1e6, 8e6), (1, 5), (0.01, 5))
"""Lowest and highest value of each coefficient."""
FAR_WEIGHT = 0.5
"""Weight of the errors' root mean square beside their mean."""


@dataclass(frozen=True)
class Point:
    """A measured layer."""

    spec: LayerSpec
    images: int
    precision: DensePrecision
    layout: Layout
    microseconds: float

    @property
    def kind(self) -> str:
        if isinstance(self.spec, Linear):
            return f"linear {self.precision}"
        filters = "pointwise" if self.spec.kernel_height * self.spec.kernel_width == 1 else "convolution"
        return f"{filters if self.spec.groups == 1 else 'grouped'} {self.precision} {self.layout}"


def read_points(path: Path = POINTS) -> list[Point]:
    """The measured layers."""
    with gzip.open(path, "rt") as lines:
        found = [json.loads(line) for line in lines]
    return [Point(spec=spec_from_json(each.pop("spec")), **each) for each in found]


def errors(points: list[Point], of: DenseCoefficients | None = None) -> list[float]:
    """Logarithms of predicted over measured times, by the present coefficients or others."""

    def all_found() -> list[float]:
        return [
            log(
                predict_dense_microseconds(each.spec, each.images, each.precision, each.layout)
                / (dense_cost.IN_NETWORK * each.microseconds)
            )
            for each in points
        ]

    if of is None:
        return all_found()
    with patch.object(dense_cost, "coefficients_of", lambda *_: of):
        return all_found()


def loss(found: list[float]) -> float:
    """Objective of the fit."""
    far = statistics.fmean(each * each for each in found) ** 0.5
    return statistics.fmean(map(abs, found)) + FAR_WEIGHT * far


def fitted(points: list[Point], steps: int) -> DenseCoefficients | None:
    """The best coefficients of a search from the present ones and from each of the starts; None without steps."""
    if not steps:
        return None
    rng, best, least = random.Random(0), None, float("inf")
    one = points[0]
    starts = [(4.0, FIRST[one.precision], 128.0, 64.0, depth, 3e6, 3e6, 1.5, 0.3) for depth in STARTS]
    for now in (astuple(dense_cost.coefficients_of(one.spec, one.precision, one.layout)), *starts):
        now_loss = loss(errors(points, DenseCoefficients(*now)))
        for step in range(steps):
            width = 0.3 * 0.2 ** (step / steps)
            tried = tuple(
                min(max(each * exp(rng.gauss(0, width)), low), high) if rng.random() < 0.4 else each
                for each, (low, high) in zip(now, LIMITS, strict=True)
            )
            if (tried_loss := loss(errors(points, DenseCoefficients(*tried)))) < now_loss:
                now, now_loss = tried, tried_loss
        if now_loss < least:
            best, least = DenseCoefficients(*now), now_loss
    return best


def main() -> None:
    """Prints how far predictions are off, and with --steps coefficients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=0)
    arguments = parser.parse_args()
    kinds: dict[str, list[Point]] = defaultdict(list)
    for point in read_points():
        kinds[point.kind].append(point)
    names = sorted(kinds)
    with ProcessPoolExecutor() as pool:
        fits = list(pool.map(partial(fitted, steps=arguments.steps), map(kinds.__getitem__, names)))
    for kind, of in zip(names, fits, strict=True):
        points = kinds[kind]
        found = errors(points, of)
        within = statistics.fmean(abs(each) < log(1.5) for each in found)
        print(
            f"{kind}: {len(points)} layers, predicted / measured {exp(statistics.fmean(found)):.2f}, "
            f"spread x{exp(statistics.pstdev(found)):.2f}, within 1.5x {within:.0%}"
        )
        if of is not None:
            print("    " + ", ".join(f"{each:.4g}" for each in astuple(of)))


if __name__ == "__main__":
    main()
