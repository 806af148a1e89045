"""Files of tuning records, one JSON line each, and the records shipped with the project."""

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
"""Files beside this module, exported after `farm tune`: `--op all`, with warm times only, and whole networks. The
U-Net is tuned for batch 1, 8, 32 and 64; ResNet-18, ResNet-50, VGG-16 and MobileNetV2 also for 2, 4 and 16, and in
float16 for 128, but for some layers of VGG-16 and of the ResNets.

Records without cubins are the fastest of as many given tilings as `tried` says, measured by scripts.
"""
_WAY_OUT = "give a file written by farm tuning export"


def text_of(records: Iterable[TuningRecord]) -> str:
    """Text of a file: a line with the version, then a line per record, in a canonical order."""
    ordered = sorted(records, key=lambda each: json.dumps(each.to_json(), sort_keys=True))
    lines = [{"schema_version": SCHEMA_VERSION}, *(record.to_json() for record in ordered)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def read_records(text: str, name: str) -> tuple[TuningRecord, ...]:
    """Records of a file's text; `name` is the file name in messages. Raises UsageError if any line is invalid."""
    lines = text.splitlines()
    header = _value(lines[0], 1, name) if lines else None
    if not isinstance(header, dict) or "schema_version" not in header:
        raise UsageError(f"{name} is not a file of tuning records, its first line has no schema_version: {_WAY_OUT}")
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
            raise UsageError(f"{name}: line {number} is invalid, {error}: nothing was imported") from None
    return tuple(records)


def _value(line: str, number: int, name: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: line {number} is not JSON ({error}): {_WAY_OUT}") from None


def _check_spec(record: TuningRecord) -> None:
    """Raises ValueError for a spec that `tuned_spec` never returns: no layer would find the record."""
    spec = record.key.spec
    try:
        sizes = (*spec.weights_shape, *spec.input_shape, *spec.output_shape)
        found = tuned_spec(spec) == spec and all(isinstance(size, int) and size > 0 for size in sizes)
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        found = False
    if not found:
        raise ValueError(f"no layer has its spec {spec}")


@lru_cache(maxsize=1)
def shipped_records() -> Sequence[TuningRecord]:
    """Records shipped with the project, read on first use."""
    folder = files("farm.tuning")
    return tuple(record for name in SHIPPED for record in read_records(folder.joinpath(name).read_text(), name))
