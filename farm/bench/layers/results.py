"""Results of benchmarks: one measurement per case and contender, in a file that is valid after every case."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farm.bench.layers.contenders import GENERATED
from farm.cuda.measure.workload import CaseKey
from farm.errors import UsageError

SCHEMA_VERSION = 1
NETWORKS_KIND = "networks"
"""Option `kind` of results whose operators are whole networks."""
CHALLENGE_KIND = "graphchallenge"
"""Option `kind` of results whose operators are networks of the sparse DNN challenge."""
WRONG = "wrong: "
"""Start of the reason of a contender with wrong results."""


@dataclass(frozen=True)
class Measurement:
    """Time of one contender in one case, or the reason why there is none."""

    case: CaseKey
    contender: str
    microseconds: float | None
    """Median of one call on the batch; None if there is none."""
    reason: str = ""
    """Why there is no time; empty if there is one."""
    note: str = ""
    """Remark on the time."""
    relative_error: float | None = None
    """Norm of the error over norm of the float64 reference."""
    roof_microseconds: float | None = None
    predicted_microseconds: float | None = None
    """The cost model's estimate, for generated kernels."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Tiling, registers, sizes and deleted FMAs of generated kernels; spec and non-zeros of the layer."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        fields = asdict(self)
        if self.relative_error is not None and not math.isfinite(self.relative_error):
            fields["relative_error"] = None  # NaN of an unwritten output: JSON has none
        return {**fields.pop("case"), **fields}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Measurement:
        """Reads the output of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        fields = dict(value)
        case = CaseKey(
            str(fields.pop("operator")),
            int(fields.pop("batch")),
            float(fields.pop("sparsity")),
            str(fields.pop("data_type")),
        )
        return Measurement(case=case, **fields)


@dataclass(frozen=True)
class Results:
    """Measurements of a benchmark run, with its environment."""

    environment: Mapping[str, Any]
    """GPU, driver, clocks, versions, date."""
    options: Mapping[str, Any]
    measurements: tuple[Measurement, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "environment": dict(self.environment),
            "options": dict(self.options),
            "measurements": [each.to_json() for each in self.measurements],
        }

    @property
    def of_networks(self) -> bool:
        """Whether its operators are whole networks."""
        return self.options.get("kind") == NETWORKS_KIND

    @property
    def of_challenge(self) -> bool:
        """Whether its operators are networks of the sparse DNN challenge."""
        return self.options.get("kind") == CHALLENGE_KIND

    @property
    def are_right(self) -> bool:
        """Whether no generated kernel has wrong results."""
        return not any(each.reason.startswith(WRONG) for each in self.of(GENERATED).values())

    @property
    def title(self) -> str:
        """GPU and date, for a figure."""
        return f"{self.environment.get('gpu', 'unknown GPU')}, {str(self.environment.get('date', ''))[:10]}"

    def of(self, contender: str) -> dict[CaseKey, Measurement]:
        """Measurements of one contender, by case."""
        return {each.case: each for each in self.measurements if each.contender == contender}


def write_results(path: Path, results: Results) -> None:
    """Writes the file atomically. Raises UsageError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(json.dumps(results.to_json(), indent=1) + "\n")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written ({error.strerror}): name a file in a folder that can be") from None


def read_results(path: Path) -> Results:
    """Reads a file of `farm bench --json`. Raises UsageError."""
    try:
        document = json.loads(path.read_text())
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is not {SCHEMA_VERSION}")
        return Results(
            dict(document["environment"]),
            dict(document["options"]),
            tuple(Measurement.from_json(each) for each in document["measurements"]),
        )
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): name a file that farm bench wrote") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no file of farm bench ({error}): name one that farm bench --json wrote") from None


def cases_of(measurements: Iterable[Measurement]) -> list[CaseKey]:
    """Distinct cases, in the order of the measurements."""
    return list(dict.fromkeys(each.case for each in measurements))
