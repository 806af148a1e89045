"""Qualification records for tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from codegen.keys import assembler_digest
from farm.qualification.record import QualificationRecord
from tests.samples import fixed_toolchain


def qualified(**changes: Any) -> QualificationRecord:
    """A passing record of the installed assembler, with changes."""
    record = QualificationRecord(
        arch="sm_90",
        ptxas=fixed_toolchain().ptxas_version,
        data_type="float32",
        sources=assembler_digest(),
        gpu="NVIDIA Made-Up",
        driver="13.0",
        first=0,
        layers=5000,
        shapes=210,
        outputs=10_000_000,
        refused=300,
        wrong=0,
        finished_at=datetime(2026, 11, 22, 12, tzinfo=UTC),
    )
    return replace(record, **changes)
