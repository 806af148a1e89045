"""Queries of tuning records: one row for each key and GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select

from farm.ledger.database import Database
from farm.ledger.tables import tuning
from farm.tuning.record import TuningRecord, record_of_json

_KEY = ("key", "gpu")
_COLUMNS = tuple(column.name for column in tuning.columns if column.name not in _KEY)


class TuningTable:
    """Tuning records. Raises LedgerError if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def records(self, archs: Sequence[str] | None = None) -> list[TuningRecord]:
        """All readable records, or those for some architectures (without a letter); others' formats are skipped."""
        query = select(tuning).order_by(tuning.c.gpu, tuning.c.key)
        if archs is not None:
            query = query.where(tuning.c.arch.in_(set(archs)))
        with self._database.reading() as connection:
            found = [_record_of_row(row) for row in connection.execute(query)]
        return [record for record in found if record is not None]

    def put(self, record: TuningRecord) -> None:
        """Writes a record, replacing the one of the same key and GPU."""
        with self._database.writing() as connection:
            connection.execute(self._database.insert_or_replace(tuning, _KEY, _COLUMNS), [_row(record)])

    def merge(self, records: Iterable[TuningRecord]) -> int:
        """Writes all records or none, keeping the better of two with the same key and GPU; returns how many changed."""
        best: dict[tuple[str, str], TuningRecord] = {}
        for record in records:
            name = record.key.digest, record.gpu
            if name not in best or record.beats(best[name]):
                best[name] = record
        with self._database.writing() as connection:
            known = {(row.key, row.gpu): _record_of_row(row) for row in connection.execute(select(tuning))}
            # Sorted, so that two concurrent merges do not deadlock.
            better = [_row(best[name]) for name in sorted(best) if _beats(best[name], known.get(name))]
            if better:
                connection.execute(self._database.insert_or_replace(tuning, _KEY, _COLUMNS), better)
        return len(better)


def _beats(record: TuningRecord, known: TuningRecord | None) -> bool:
    return known is None or record.beats(known)


def _row(record: TuningRecord) -> dict[str, Any]:
    return {
        **record.to_json(),
        "key": record.key.digest,
        "microseconds": record.microseconds,
        "model_microseconds": record.model_microseconds,
        "cold_microseconds": record.cold_microseconds,
        "model_cold_microseconds": record.model_cold_microseconds,
        "measured_at": record.measured_at.timestamp(),
    }


def _record_of_row(row: Any) -> TuningRecord | None:
    values = {name: value for name, value in row._mapping.items() if name != "key"}
    try:
        return record_of_json({**values, "measured_at": datetime.fromtimestamp(row.measured_at, UTC).isoformat()})
    except ValueError:
        return None
