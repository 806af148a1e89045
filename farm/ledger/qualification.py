"""Queries of qualification records: one row per architecture, ptxas version, data type, assembler and GPU."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import and_, select

from codegen.sass.qualification import Qualifications
from farm.ledger.database import Database
from farm.ledger.tables import qualifications
from farm.qualification.files import shipped_records
from farm.qualification.record import MIN_LAYERS, QualificationRecord, qualifications_of, record_of_json

_KEY = ("arch", "ptxas", "data_type", "sources", "gpu")
_COLUMNS = tuple(column.name for column in qualifications.columns if column.name not in _KEY)


class QualificationTable:
    """Qualification records. Raises LedgerError where the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def records(self) -> list[QualificationRecord]:
        """All readable records; rows of another version's format are skipped."""
        table = qualifications.c
        query = select(qualifications).order_by(table.arch, table.data_type, table.finished_at)
        with self._database.reading() as connection:
            found = [_record_of_row(row) for row in connection.execute(query)]
        return [record for record in found if record is not None]

    def known(self) -> Qualifications:
        """Results of the records here and those shipped with the project, for the installed assembler."""
        return qualifications_of([*self.records(), *shipped_records()])

    def put(self, records: Iterable[QualificationRecord]) -> None:
        """Inserts records, replacing rows of equal key; an inconclusive record never replaces a conclusive one."""
        conclusive: list[dict[str, Any]] = []
        inconclusive: list[dict[str, Any]] = []
        for each in records:
            row = {**each.to_json(), "finished_at": each.finished_at.timestamp()}
            (inconclusive if each.qualification is None else conclusive).append(row)
        is_inconclusive = and_(qualifications.c.wrong == 0, qualifications.c.layers < MIN_LAYERS)
        with self._database.writing() as connection:
            for rows, where in ((conclusive, None), (inconclusive, is_inconclusive)):
                if rows:
                    statement = self._database.insert_or_replace(qualifications, _KEY, _COLUMNS, where=where)
                    connection.execute(statement, rows)


def _record_of_row(row: Any) -> QualificationRecord | None:
    finished_at = datetime.fromtimestamp(row.finished_at, UTC).isoformat()
    try:
        return record_of_json({**row._mapping, "finished_at": finished_at})
    except ValueError:
        return None
