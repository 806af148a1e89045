"""One measured kernel, and the file of all of them: a JSON document a line, compressed.

farm tune resnet18 --batch 64 --seconds 160 --force --json > resnet18.json     # on a machine with a GPU
python -m tests.benchmarks.cost_model.points resnet18.json ... [-o FILE]       # adds its measurements to FILE
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codegen.ir.layer_spec import LayerSpec, spec_from_json
from codegen.ir.tiling import Tiling

POINTS = Path(__file__).parent / "h200.jsonl.gz"
MORE_POINTS = POINTS.with_name("h200_tuned.jsonl.gz")
"""Further tilings of five networks' layers, most with their code fetched ahead.

The first points lack registers. A layer "side by side" has the model's first choice and the best tiling known, timed in
turn.
"""


@dataclass(frozen=True)
class Point:
    """A layer of one network at one batch with one tiling."""

    network: str
    layer: str
    spec: LayerSpec
    images: int
    """Rows of a Linear."""
    density: float
    """Non-zeros / weights."""
    rank: int
    """0: the tiling that the cost model of that day put first. Others are in the order in which they were tried."""
    tiling: Tiling
    parts: int
    registers: int
    cubin_bytes: int
    warm_microseconds: float | None
    """Code in the caches, data not: sets of data in turn. None: not measured."""
    cold_microseconds: float
    """Neither code nor data in a cache, but for the input where it is `as_in_network`."""
    as_in_network: bool = False
    """Cold by what other layers move and run (`farm.cuda.measure.other_layers`), not by writing to L2 alone."""
    fetched_ahead: bool = False
    """Then the layer's code was fetched into the L2 cache, as graphs of networks do."""

    def to_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in asdict(self).items() if name not in ("spec", "tiling")}
        return {**fields, "spec": self.spec.to_json(), "tiling": self.tiling.to_json()}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Point:
        fields = dict(value)
        return Point(spec=spec_from_json(fields.pop("spec")), tiling=Tiling(**fields.pop("tiling")), **fields)


def read_points(path: Path = POINTS) -> list[Point]:
    with gzip.open(path, "rt") as lines:
        return [Point.from_json(json.loads(line)) for line in lines]


def write_points(points: Iterable[Point], path: Path = POINTS) -> None:
    with gzip.open(path, "wt") as file:
        for point in points:
            file.write(json.dumps(point.to_json(), separators=(",", ":")) + "\n")


def points_of(document: dict[str, Any], network: str) -> Iterator[Point]:
    """The points that `farm tune --json` measured."""
    for layer in document["layers"]:
        measured = layer["measured"]
        if measured is None:
            continue
        shared = {name: measured[name] for name in ("spec", "images", "density")}
        for rank, kernel in enumerate(measured["kernels"]):
            names = {"network": network, "layer": layer["layer"], "rank": rank}
            names |= {"as_in_network": True, "fetched_ahead": True, "warm_microseconds": None}
            yield Point.from_json({**names, **shared, **kernel})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, default=POINTS)
    arguments = parser.parse_args()
    points = read_points(arguments.output) if arguments.output.exists() else []
    for path in arguments.documents:
        points += points_of(json.loads(path.read_text()), path.stem)
    write_points(points, arguments.output)
    print(f"{arguments.output}: {len(points)} kernels")


if __name__ == "__main__":
    main()
