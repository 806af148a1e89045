"""Pruning: jobs that ended long ago are deleted from the ledger."""

from __future__ import annotations

from collections.abc import Iterator

from farm.errors import UsageError
from farm.ledger import Ledger

LEAST_AGE_SECONDS = 3600.0
"""A coordinator writes the last lines of a job's log after the job has ended."""


def prune_jobs(ledger: Ledger, older_than_seconds: float) -> Iterator[int]:
    """Deletes jobs that ended longer ago, in batches; yields the size of each batch.

    Raises UsageError for an age below LEAST_AGE_SECONDS.
    """
    if older_than_seconds < LEAST_AGE_SECONDS:
        raise UsageError("a job that ended within the last hour may still be written to: prune older ones")
    return ledger.retention.prune(older_than_seconds)
