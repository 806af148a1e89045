"""Files of qualification records, and the records shipped with the project."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from farm.errors import UsageError
from farm.qualification.record import QualificationRecord, record_of_json, same_code_of_json

SCHEMA_VERSION = 1
SHIPPED = "qualifications.json"
"""File beside this module, written by `farm qualify --output`."""


def document_of(records: Iterable[QualificationRecord]) -> dict[str, Any]:
    """JSON document of records, in an order that depends on the records alone."""
    ordered = sorted((record.to_json() for record in records), key=lambda each: json.dumps(each, sort_keys=True))
    return {"schema_version": SCHEMA_VERSION, "records": ordered}


def read_records(text: str, name: str) -> tuple[QualificationRecord, ...]:
    """Records of a JSON document, and those that count for later sources which make the same code.

    `name` is the file's name in messages. Raises UsageError.
    """
    way_out = "give a file written by farm qualify --output"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON ({error}): {way_out}") from None
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"{name} is not a file of qualification records, version {SCHEMA_VERSION}: {way_out}")
    listed, claimed = document.get("records", []), document.get("same_code", [])
    if not isinstance(listed, list) or not isinstance(claimed, list):
        raise UsageError(f"{name}: records and same_code are not lists: {way_out}")
    try:
        records = tuple(record_of_json(each) for each in listed)
        claims = [same_code_of_json(each) for each in claimed]
        return records + tuple(carried for each in claims for carried in each.carry(records))
    except ValueError as error:
        raise UsageError(f"{name}: invalid record, {error}: {way_out}") from None


@lru_cache(maxsize=1)
def shipped_records() -> Sequence[QualificationRecord]:
    """Records shipped with the project, read on first use."""
    return read_records(files("farm.qualification").joinpath(SHIPPED).read_text(), SHIPPED)
