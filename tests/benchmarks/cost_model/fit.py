"""Fits the constants of the cost model (`codegen/selection/coefficients.py`) to the measured kernels, by random search.

    python -m tests.benchmarks.cost_model.fit [--data-type float16] [--steps 3000] [--leave-out vgg16] [--worst 20]

With `--steps 0` it only says how well today's constants do: how much slower the first choice among a layer's measured
tilings is than the fastest of them, and how far predictions are off; with `--worst`, which choices are the worst. A fit
is judged by a network that was left out of it: it says how well the constants found do on that one, and those of today.
It prints its result as lines for the module; a person decides whether they go in.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from codegen.ir.tiling import Tiling
from codegen.kernels import AnyTiled, tiled
from codegen.selection import coefficients
from codegen.selection.cost_model import predict_microseconds
from tests.benchmarks.cost_model.points import MORE_POINTS, POINTS, Point, read_points

FITTED = {"float32": ("OF_FLOAT32", "OF_CONVOLUTIONS"), "float16": ("OF_FLOAT16",)}
"""Values of the module, whose numbers are fitted to layers of a data type: of float16 those that are its own."""
MOST = {"OF_FLOAT32.overlap": 6.0, "OF_FLOAT32.memory_overlap": 6.0, "OF_CONVOLUTIONS.overlap": 6.0}
"""Norms beyond are maxima."""
CLOSE = 0.04
"""Logarithm of a ratio of predictions: of tilings that are so close, the choice may be either."""
CLEARLY_SLOWER = 0.1
"""Logarithm of a ratio of measured times beyond which a choice counts as wrong, not only as slower."""
WRONG = 0.09
ERROR_WEIGHT = 0.12
"""Weight of the predictions' distance from the truth, beside the loss of the choice."""
DRIFT_WEIGHT = 0.004
"""Weight of the constants' distance from where they begin: constants that no measurement determines stay."""


@dataclass(frozen=True)
class Measured:
    """The tilings of one layer at one batch that were measured in one way."""

    points: tuple[Point, ...]
    warm: bool

    @property
    def microseconds(self) -> NDArray[np.float64]:
        """[points]"""
        times = (point.warm_microseconds if self.warm else point.cold_microseconds for point in self.points)
        return np.array([*times], dtype=np.float64)

    @property
    def predicted(self) -> NDArray[np.float64]:
        """[points]: by the constants that the module has now."""
        how = {"cold": not self.warm, "fetched": self.points[0].fetched_ahead}
        kernels = zip(self._divided, self.points, strict=True)
        times = (predict_microseconds(layer, each.images, each.density, **how) for layer, each in kernels)
        return np.array([*times])

    @cached_property
    def _divided(self) -> tuple[AnyTiled, ...]:
        """The divided layer of each kernel, computed once, since it does not depend on the constants."""
        return tuple(tiled(each.spec, each.tiling) for each in self.points)

    @property
    def weight(self) -> float:
        """In a fit: networks run with their code fetched ahead, which was measured last and most."""
        return 3.0 if self.points[0].fetched_ahead and not self.warm else 1.0

    @property
    def slower(self) -> float:
        """Time of the first choice over the time of the fastest."""
        measured = self.microseconds
        return float(measured[self.predicted.argmin()] / measured.min())


@dataclass(frozen=True)
class Quality:
    """Quality of a set of constants on some layers."""

    slower: NDArray[np.float64]
    """[layers]: time of the first choice over the time of the fastest measured."""
    error: NDArray[np.float64]
    """[points]: logarithm of predicted over measured."""

    def __str__(self) -> str:
        loss, within = np.exp(np.log(self.slower).mean()), np.mean(self.slower <= 1.15)
        offset, spread = np.exp(self.error.mean()), np.exp(self.error.std())
        return (
            f"first choice {loss:.3f}x the fastest (geomean of {len(self.slower)} layers), within 15 % in "
            f"{within:.0%}, at most {self.slower.max():.2f}x; predicted / measured {offset:.2f}, spread x{spread:.2f}"
        )


def layers_of(points: Iterable[Point], *, warm: bool = False) -> list[Measured]:
    """The tilings of each layer at each batch that were measured in the same way; `warm`: where they were so too."""
    found: dict[tuple[object, ...], dict[Tiling, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        if not warm or point.warm_microseconds is not None:
            how = point.as_in_network, point.fetched_ahead
            layer = point.network, point.layer, point.images, point.spec.data_type, how
            found[layer][point.tiling].append(point)
    return [Measured(tuple(map(_mean, tilings.values())), warm) for tilings in found.values()]


def _mean(points: Sequence[Point]) -> Point:
    """The mean of the points of one tiling that was measured on several days."""
    return replace(points[0], cold_microseconds=float(np.mean([point.cold_microseconds for point in points])))


def quality(layers: Sequence[Measured]) -> Quality:
    """Quality of the constants that the module has now."""
    error = [np.log(layer.predicted / layer.microseconds) for layer in layers]
    return Quality(np.array([layer.slower for layer in layers]), np.concatenate(error))


def objective(layers: Sequence[Measured]) -> float:
    """Objective that a fit minimises, for the constants that the module has now; smooth in the predictions."""
    losses = [_loss(layer.microseconds, layer.predicted) for layer in layers]
    return float(np.average(losses, weights=[layer.weight for layer in layers]))


def _loss(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    close = np.exp(-np.log(predicted / predicted.min()) / CLOSE)
    slower = np.log(measured / measured.min())
    wrong = WRONG * np.clip((slower - CLEARLY_SLOWER) / CLEARLY_SLOWER, 0, 1)
    error = ERROR_WEIGHT * np.abs(np.log(predicted / measured)).mean()
    return float(np.average(slower + wrong, weights=close) + error)


def constants_now(data_type: str) -> dict[str, float]:
    """By the names of their values and, behind a dot, their own; of float16 those in which it differs from float32."""
    values = {name: getattr(coefficients, name) for name in FITTED[data_type]}
    shared = coefficients.OF_FLOAT32 if data_type == "float16" else None
    return {
        f"{name}.{each.name}": float(number)
        for name, value in values.items()
        for each in fields(value)
        if not isinstance(number := getattr(value, each.name), bool)
        and 0 < number < math.inf
        and number != getattr(shared, each.name, None)
    }


def in_module(constants: Mapping[str, float]) -> dict[str, object]:
    """The module's values for these constants."""
    numbers: dict[str, dict[str, float]] = defaultdict(dict)
    for name, number in constants.items():
        value, _, own = name.partition(".")
        numbers[value][own] = number
    return {value: replace(getattr(coefficients, value), **own) for value, own in numbers.items()}


def search(layers: Sequence[Measured], start: Mapping[str, float], steps: int, seed: int) -> dict[str, float]:
    """The constants that do best: a few are moved at a time, by ever smaller factors."""
    rng = random.Random(seed)

    def judged(constants: Mapping[str, float]) -> float:
        drift = sum(math.log(value / start[name]) ** 2 for name, value in constants.items())
        with patch.multiple(coefficients, **in_module(constants)):
            return objective(layers) + DRIFT_WEIGHT * drift / len(start)

    best = dict(start)
    least = judged(best)
    for step in range(steps):
        width = 0.35 * (1 - step / steps) + 0.02
        moved = rng.sample(sorted(best), rng.choice((1, 1, 2, 3)))
        tried = {
            name: value * math.exp(rng.gauss(0, width)) if name in moved else value for name, value in best.items()
        }
        if all(value <= MOST.get(name, math.inf) for name, value in tried.items()) and (found := judged(tried)) < least:
            best, least = tried, found
    return best


def worst(layers: Sequence[Measured], count: int) -> list[str]:
    """The choices that lose most, with predicted and measured times of what is chosen and of the fastest."""
    lines = []
    for layer in sorted(layers, key=lambda layer: -layer.slower)[:count]:
        measured, predicted = layer.microseconds, layer.predicted
        point = layer.points[0]
        lines.append(
            f"{layer.slower:.2f}x  {point.network} {point.layer}, {point.images} images, {point.spec.data_type}"
        )
        for name, at in (("chosen", predicted.argmin()), ("fastest", measured.argmin())):
            tiling = _words(layer.points[int(at)].tiling)
            lines.append(f"       {name:8}{predicted[at]:8.1f} us predicted{measured[at]:8.1f} measured  {tiling}")
    return lines


def _words(tiling: Tiling) -> str:
    shape = f"{tiling.tile_width}x{tiling.tile_height}x{tiling.images} r{tiling.rows}"
    streams = f"k{tiling.group_outputs} c{tiling.chunk_channels} s{tiling.stages}"
    return f"{shape} {streams} cluster {tiling.cluster} by {tiling.order}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-type", choices=sorted(FITTED), default="float32")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--leave-out", metavar="NETWORK")
    parser.add_argument("--worst", type=int, default=0)
    arguments = parser.parse_args()
    points = [
        each for each in read_points(POINTS) + read_points(MORE_POINTS) if each.spec.data_type == arguments.data_type
    ]
    every = {
        "in networks, code fetched ahead": layers_of(point for point in points if point.fetched_ahead),
        "code from DRAM": layers_of(point for point in points if not point.fetched_ahead),
        "code in the caches": layers_of(points, warm=True),
    }
    for name, layers in every.items():
        print(f"today, {name}: {quality(layers)}")
        print(*worst(layers, arguments.worst), sep="\n", end="\n" * bool(arguments.worst))
    if not arguments.steps:
        return
    layers = [layer for each in every.values() for layer in each]
    fitted = [layer for layer in layers if layer.points[0].network != arguments.leave_out]
    left_out = [layer for layer in layers if layer not in fitted]
    best = search(fitted, constants_now(arguments.data_type), arguments.steps, arguments.seed)
    for name, each in (("fitted to", fitted), (f"{arguments.leave_out}, left out", left_out)):
        if each:
            print(f"{name}, today: {quality(each)}")
            with patch.multiple(coefficients, **in_module(best)):
                print(f"{name}, with these: {quality(each)}")
    for name, value in best.items():
        print(f"{name} = {value:.4g}")


if __name__ == "__main__":
    main()
