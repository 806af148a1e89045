"""The queries of admission records: one row for each architecture, version of ptxas, data type, assembler and GPU."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import and_, select

from codegen.sass.qualification import Admissions
from farm.ledger.database import Database
from farm.ledger.tables import admissions
from farm.qualification.files import shipped_records
from farm.qualification.record import LEAST_LAYERS, AdmissionRecord, admissions_of, record_of_json

_KEY = ("arch", "ptxas", "data_type", "sources", "gpu")
_COLUMNS = tuple(column.name for column in admissions.columns if column.name not in _KEY)


class AdmissionTable:
    """Admission records. Raises LedgerError where the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def records(self) -> list[AdmissionRecord]:
        """All of them; what another version wrote is left out."""
        query = select(admissions).order_by(admissions.c.arch, admissions.c.data_type, admissions.c.tried_at)
        with self._database.reading() as connection:
            found = [_record_of_row(row) for row in connection.execute(query)]
        return [record for record in found if record is not None]

    def known(self) -> Admissions:
        """What they and those that ship with the project say to the assembler that is here."""
        return admissions_of([*self.records(), *shipped_records()])

    def put(self, records: Iterable[AdmissionRecord]) -> None:
        """Writes records in the place of those of the same key, but none that says nothing in that of one that does."""
        telling: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for each in records:
            row = {**each.to_json(), "tried_at": each.tried_at.timestamp()}
            (others if each.admission is None else telling).append(row)
        says_nothing = and_(admissions.c.wrong == 0, admissions.c.layers < LEAST_LAYERS)
        with self._database.writing() as connection:
            for rows, where in ((telling, None), (others, says_nothing)):
                if rows:
                    statement = self._database.insert_or_replace(admissions, _KEY, _COLUMNS, where=where)
                    connection.execute(statement, rows)


def _record_of_row(row: Any) -> AdmissionRecord | None:
    try:
        return record_of_json({**row._mapping, "tried_at": datetime.fromtimestamp(row.tried_at, UTC).isoformat()})
    except ValueError:
        return None
