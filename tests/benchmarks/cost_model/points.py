"""One measured kernel, and the file of all of them: a JSON document a line, compressed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codegen.spec import LayerSpec, spec_from_json
from codegen.tiling import Tiling

POINTS = Path(__file__).parent / "h200.jsonl.gz"


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
    """0: the tiling that the cost model of that day put first."""
    tiling: Tiling
    parts: int
    registers: int
    cubin_bytes: int
    warm_microseconds: float
    """Code in the caches, data not: sets of data in turn."""
    cold_microseconds: float
    """Neither code nor data in a cache."""

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
