"""Tuning records as a file: written, read back whole or not at all, and those that ship with the project."""

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
"""Version of the file, raised whenever it would mislead a reader of the old one. JSON Schema: tuning.schema.json."""
SHIPPED = ("h200.json", "h200_networks.json")
"""Beside this module; exported after `farm tune` on the GPU that each is named after: `--op all`, and of networks.

Records without cubins are of the measurements in tests/benchmarks/cost_model: of each layer the best of six tilings,
where the cost model's present choice is one of them; cold was made by writing to the L2 cache. One in `h200.json` is of
ResNet's first layer with its pool, the best of 57 tilings with their code in the caches. Those of float16 are of
kernels measured as `farm tune` does, with tilings that it was given, six of them in the network.
"""


def document_of(records: Iterable[TuningRecord]) -> dict[str, Any]:
    """What `farm tuning export` writes: in an order that depends on the records alone."""
    ordered = sorted((record.to_json() for record in records), key=lambda each: json.dumps(each, sort_keys=True))
    return {"schema_version": SCHEMA_VERSION, "records": ordered}


def read_records(text: str, name: str) -> tuple[TuningRecord, ...]:
    """Reads a document; `name` is the file's, for errors. Raises UsageError if any record in it is bad."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON ({error}): give a file that farm tuning export wrote") from None
    if not isinstance(document, dict) or not isinstance(document.get("records"), list):
        raise UsageError(f"{name} holds no tuning records: give a file that farm tuning export wrote")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"{name} has schema_version {document.get('schema_version')!r}, this program reads {SCHEMA_VERSION}: "
            "export it again with this version of farm"
        )
    records = []
    for number, each in enumerate(document["records"], 1):
        try:
            record = record_of_json(each)
            _check_spec(record)
            records.append(record)
        except ValueError as error:
            raise UsageError(f"{name}: record {number} is bad, {error}: nothing was imported") from None
    return tuple(records)


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
