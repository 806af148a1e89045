"""`make fuzz`: layers whose geometry is drawn too. `python -m tests.differential --help` has the options.

Every failure is printed as the command that runs it again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from codegen.sass.qualification import SUPPORTED_ARCHS
from tests.differential.comparison import agreement
from tests.differential.drawn_layers import DrawnLayer, Recipe, places, recipes
from tests.differential.geometries import Geometry, geometries, wide_convolutions
from tests.differential.machine_code import MachineCode

SECONDS_BETWEEN_LINES = 10


class Fuzz:
    """Compares layers and tells how it goes."""

    def __init__(self, layers: int, archs: Sequence[str] = ()) -> None:
        self.layers = layers
        self.machine_code = MachineCode(archs) if archs else None
        self.compared: Counter[str] = Counter()
        self.by_onnxruntime = 0
        self.worst = 0.0
        self.failures: list[str] = []
        self.told = self.began = time.monotonic()

    def compare(self, layer: DrawnLayer) -> None:
        """Counts and prints what went wrong, and goes on."""
        try:
            seen = self.machine_code.agreement(layer) if self.machine_code else agreement(layer)
            problem = "" if seen.ok else str(seen)
            self.worst = max(self.worst, seen.worst)
            self.by_onnxruntime += seen.of_onnxruntime is not None
        except Exception as error:  # noqa: BLE001 - the next layers are to run whatever this one did
            problem = f"{type(error).__name__}: {error}"
        self.compared[layer.geometry.operator] += 1
        if problem:
            self.failures.append(layer.line)
            print(f"{problem}\n  python -m tests.differential --case '{layer.line}'", flush=True)
        if time.monotonic() - self.told > SECONDS_BETWEEN_LINES:
            self.told = time.monotonic()
            print(f"{self.compared.total()} of about {self.layers} layers, {len(self.failures)} wrong", flush=True)
            if self.machine_code:
                print(self.machine_code, flush=True)

    def __str__(self) -> str:
        kinds = ", ".join(f"{operator} {count}" for operator, count in sorted(self.compared.items()))
        return (
            f"{self.compared.total()} layers ({kinds}), {self.by_onnxruntime} of them by onnxruntime too, in "
            f"{time.monotonic() - self.began:.0f} s: {len(self.failures)} wrong, "
            f"the largest difference {self.worst:.2f} of its bound"
            + (f"\n{self.machine_code}" if self.machine_code else "")
        )


def main() -> int:
    """Runs one case, or draws: 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--layers", type=int, default=5000, help="how many are drawn, about")
    parser.add_argument("--masks", type=int, default=10, help="sets of weights for each geometry")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="draws the same layers again")
    parser.add_argument("--case", help="the one layer to compare, as a failure prints it")
    parser.add_argument("--arch", default="", help="run them as direct machine code too, as sm_80,sm_90 or all")
    options = parser.parse_args()
    named = [each for each in options.arch.split(",") if each]
    fuzz = Fuzz(1 if options.case else options.layers, SUPPORTED_ARCHS if named == ["all"] else named)
    if options.case:
        fuzz.compare(DrawnLayer.from_line(options.case))
    else:
        print(f"python -m tests.differential --seed {options.seed} --layers {options.layers} --masks {options.masks}")
        draw(fuzz, options.layers // options.masks, options.masks, options.seed)
    print(fuzz)
    return 1 if fuzz.failures else 0


def draw(fuzz: Fuzz, count: int, masks: int, number: int) -> None:
    """Draws `count` geometries, each with `masks` sets of weights."""

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(geometries() | wide_convolutions(), st.lists(recipes(), min_size=masks, max_size=masks), places())
    def compare(geometry: Geometry, drawn: list[Recipe], place: float) -> None:
        # Half of them with the tiling that is chosen, half with another.
        for i, recipe in enumerate(drawn):
            fuzz.compare(DrawnLayer(geometry, recipe, place * (i % 2)))

    compare()


if __name__ == "__main__":
    sys.exit(main())
