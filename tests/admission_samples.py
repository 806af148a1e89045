"""Admission records for tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from codegen.keys import assembler_digest
from farm.qualification.record import AdmissionRecord
from tests.samples import fixed_toolchain


def admission(**changes: Any) -> AdmissionRecord:
    """One of this assembler that admits, but for the changes."""
    record = AdmissionRecord(
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
        tried_at=datetime(2026, 11, 22, 12, tzinfo=UTC),
    )
    return replace(record, **changes)
