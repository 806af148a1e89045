"""Fits the constants of the cost model (`codegen/prediction.py`) to the measured kernels, by random search.

    python -m tests.benchmarks.cost_model.fit [FILE] [--figure warm|cold] [--steps 3000] [--seed 0]

With `--steps 0` it only says how well today's constants do: how much slower the first choice among a layer's measured
tilings is than the fastest of them, and how far predictions are off. What it finds it prints as lines for the module;
whether they go in is for a person to decide, who looks at layers that were left out of the fit (every third) first.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from codegen import prediction
from codegen.operators import tiled
from tests.benchmarks.cost_model.points import POINTS, Point, read_points

FITTED = (
    "NEAR_INSTRUCTIONS",
    "NEAR_PER_CLOCK",
    "CACHED_INSTRUCTIONS",
    "CACHED_PER_CLOCK",
    "DISTANT_PER_CLOCK",
    "COLD_PER_CLOCK",
    "WARP_CLOCKS",
    "LOAD_CLOCKS",
    "CHUNK_INSTRUCTIONS",
    "PROLOGUE_INSTRUCTIONS",
    "CHUNK_CLOCKS",
    "DEEP_CHUNK_CLOCKS",
    "LONE_BLOCK",
    "OVERLAP",
    "L2_BYTES_PER_MICROSECOND",
    "DRAM_BYTES_PER_MICROSECOND",
    "MEMORY_OVERLAP",
    "LAUNCH_MICROSECONDS",
)
ERROR_WEIGHT = 0.2
"""Of the spread of predictions around the truth, beside the loss of the choice: that alone has no slope to follow."""


divided = lru_cache(maxsize=None)(tiled)
"""What does not depend on the constants is computed once for each kernel."""


@dataclass(frozen=True)
class Quality:
    """How well a set of constants does on some layers."""

    slower: NDArray[np.float64]
    """[layers]: time of the first choice over the time of the fastest measured."""
    error: NDArray[np.float64]
    """[points]: logarithm of predicted over measured."""

    @property
    def objective(self) -> float:
        return float(np.log(self.slower).mean() + ERROR_WEIGHT * (self.error.std() + abs(self.error.mean())))

    def __str__(self) -> str:
        loss, within = np.exp(np.log(self.slower).mean()), np.mean(self.slower <= 1.15)
        offset, spread = np.exp(self.error.mean()), np.exp(self.error.std())
        return (
            f"first choice {loss:.3f}x the fastest (geomean of {len(self.slower)} layers), within 15 % in "
            f"{within:.0%}, at most {self.slower.max():.2f}x; predicted / measured {offset:.2f}, spread x{spread:.2f}"
        )


def layers_of(points: Sequence[Point]) -> list[list[Point]]:
    """The tilings of each layer at each batch that were measured in the same way."""
    found: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        how = point.as_in_network, point.fetched_ahead
        found[point.network, point.layer, point.images, point.spec.data_type, how].append(point)
    return list(found.values())


def quality(layers: Sequence[Sequence[Point]], figure: str) -> Quality:
    """Of the constants that the module has now."""
    slower, error = [], []
    for layer in layers:
        tilings = [each for each in layer if getattr(each, f"{figure}_microseconds") is not None]
        if not tilings:
            continue
        measured = np.array([getattr(each, f"{figure}_microseconds") for each in tilings])
        predicted = np.array(
            [
                prediction.predict_microseconds(divided(p.spec, p.tiling), p.images, p.density, cold=figure == "cold")
                for p in tilings
            ]
        )
        slower.append(measured[predicted.argmin()] / measured.min())
        error.append(np.log(predicted / measured))
    return Quality(np.array(slower), np.concatenate(error))


def search(
    layers: Sequence[Sequence[Point]], figure: str, start: Mapping[str, float], steps: int, seed: int
) -> dict[str, float]:
    """The constants that do best: a few are moved at a time, by ever smaller factors."""
    rng = random.Random(seed)
    best = dict(start)
    with patch.multiple(prediction, **best):
        least = quality(layers, figure).objective
    for step in range(steps):
        width = 0.4 * (1 - step / steps) + 0.02
        moved = rng.sample(sorted(best), rng.choice((1, 1, 2, 3)))
        tried = {name: value * np.exp(rng.gauss(0, width)) if name in moved else value for name, value in best.items()}
        with patch.multiple(prediction, **tried):
            found = quality(layers, figure).objective
        if found < least:
            best, least = tried, found
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=POINTS)
    parser.add_argument("--figure", choices=("warm", "cold"), default="warm")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    layers = layers_of(read_points(arguments.file))
    fitted = [layer for i, layer in enumerate(layers) if i % 3]
    held_out = layers[::3]
    now = {name: float(getattr(prediction, name)) for name in FITTED}
    print(f"today, {arguments.figure}: {quality(layers, arguments.figure)}")
    if not arguments.steps:
        return
    best = search(fitted, arguments.figure, now, arguments.steps, arguments.seed)
    with patch.multiple(prediction, **best):
        print(f"fitted to {len(fitted)} layers: {quality(fitted, arguments.figure)}")
        print(f"on {len(held_out)} held out:   {quality(held_out, arguments.figure)}")
    print(f"there today:        {quality(held_out, arguments.figure)}")
    for name, value in best.items():
        print(f"{name} = {value:.4g}")


if __name__ == "__main__":
    main()
