"""Admission records as a file, and those that ship with the project."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from farm.errors import UsageError
from farm.qualification.record import AdmissionRecord, record_of_json

SCHEMA_VERSION = 1
SHIPPED = "qualifications.json"
"""Beside this module: `farm admit --output` wrote it, on the GPUs that it names."""


def document_of(records: Iterable[AdmissionRecord]) -> dict[str, Any]:
    """What `farm admit --output` writes: in an order that depends on the records alone."""
    ordered = sorted((record.to_json() for record in records), key=lambda each: json.dumps(each, sort_keys=True))
    return {"schema_version": SCHEMA_VERSION, "records": ordered}


def read_records(text: str, name: str) -> tuple[AdmissionRecord, ...]:
    """Reads a document; `name` is the file's, for errors. Raises UsageError if any record in it is bad."""
    way_out = "give a file that farm admit --output wrote"
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON ({error}): {way_out}") from None
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"{name} holds no admission records of version {SCHEMA_VERSION}: {way_out}")
    try:
        return tuple(record_of_json(each) for each in document.get("records", ()))
    except ValueError as error:
        raise UsageError(f"{name}: a record is bad, {error}: {way_out}") from None


@lru_cache(maxsize=1)
def shipped_records() -> Sequence[AdmissionRecord]:
    """The records that ship with the project, read when they are first needed."""
    return read_records(files("farm.qualification").joinpath(SHIPPED).read_text(), SHIPPED)
