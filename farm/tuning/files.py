"""Tuning records in a file of JSON lines: its writer, its reader, and the records that ship with the project."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from farm.errors import UsageError
from farm.tuning.book import tuned_spec
from farm.tuning.record import TuningRecord, record_of_json

SCHEMA_VERSION = 1
"""Version of the file format, in its first line. JSON Schema of each line: tuning.schema.json."""
SHIPPED = ("h200.jsonl", "h200_networks.jsonl")
"""Files beside this module, exported after `farm tune` on the GPU that each is named after: `--op all`, and networks.

Records without cubins are from the measurements in tests/benchmarks/cost_model: the best of six tilings of each layer,
one of them the choice of the present cost model; for cold times the L2 cache was overwritten. One record in
`h200.jsonl` is of ResNet's first layer with its pool, the best of 57 tilings with their code in the caches. Records
of float16 are of kernels measured as by `farm tune`, with given tilings, six of them in the network.
"""
_WAY_OUT = "give a file that farm tuning export wrote"


def text_of(records: Iterable[TuningRecord]) -> str:
    """A file's text: a line with the version, then one line for each record, in an order given by the records alone."""
    ordered = sorted(records, key=lambda each: json.dumps(each.to_json(), sort_keys=True))
    lines = [{"schema_version": SCHEMA_VERSION}, *(record.to_json() for record in ordered)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def read_records(text: str, name: str) -> tuple[TuningRecord, ...]:
    """Reads a file's text; `name` is the file's, for errors. Raises UsageError if any line is invalid."""
    lines = text.splitlines()
    header = _value(lines[0], 1, name) if lines else None
    if not isinstance(header, dict) or "schema_version" not in header:
        raise UsageError(f"{name} holds no tuning records: its first line has no schema_version; {_WAY_OUT}")
    if header != {"schema_version": SCHEMA_VERSION}:
        found = header["schema_version"]
        raise UsageError(
            f"{name} has schema_version {found!r}, not {SCHEMA_VERSION}: export it again with this version of farm"
        )
    records = []
    for number, line in enumerate(lines[1:], 2):
        try:
            record = record_of_json(_value(line, number, name))
            _check_spec(record)
            records.append(record)
        except ValueError as error:
            raise UsageError(f"{name}: line {number} is bad, {error}: nothing was imported") from None
    return tuple(records)


def _value(line: str, number: int, name: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UsageError(f"{name}: line {number} is not JSON ({error}): {_WAY_OUT}") from None


def _check_spec(record: TuningRecord) -> None:
    """Records are found by the spec that `tuned_spec` gives. Raises ValueError."""
    spec = record.key.spec
    try:
        sizes = (*spec.weights_shape, *spec.input_shape, *spec.output_shape)
        found = tuned_spec(spec) == spec and all(isinstance(size, int) and size > 0 for size in sizes)
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        found = False
    if not found:
        raise ValueError(f"its spec {spec} is of no layer")


@lru_cache(maxsize=1)
def shipped_records() -> Sequence[TuningRecord]:
    """The records that ship with the project, read when they are first needed."""
    folder = files("farm.tuning")
    return tuple(record for name in SHIPPED for record in read_records(folder.joinpath(name).read_text(), name))
