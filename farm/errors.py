"""The errors of the farm. Each message has the fact, the reason and the way out; each kind its exit code."""

from __future__ import annotations


class FarmError(Exception):
    """Anything that the farm reports."""

    exit_code = 1


class UsageError(FarmError):
    """What was asked makes no sense: an option, a value, a file."""

    exit_code = 2


class UnreachableError(FarmError):
    """The farm, its store or its database cannot be reached, or has no worker for this."""

    exit_code = 32


class StoreError(UnreachableError):
    """The store cannot be read or written."""


class StoreUnavailableError(StoreError):
    """The store does not answer now; later it may."""


class StoreDeniedError(StoreError):
    """The store does not let us."""


class NoBucketError(StoreError):
    """The store's bucket does not exist."""


class LedgerError(UnreachableError):
    """The database cannot be used."""


class LedgerAwayError(LedgerError):
    """The database does not answer now: the same call may do later."""


class LeaseLostError(LedgerError):
    """A coordinator could not keep its jobs, and others may have them by now."""


class NoWorkerError(UnreachableError):
    """No worker can serve the job."""


class BlobLostError(FarmError):
    """The store no longer holds a blob that the ledger knows."""

    exit_code = 39


class JobFailedError(FarmError):
    """The job failed."""

    exit_code = 100


class UnfinishedError(FarmError):
    """The job has not finished."""

    exit_code = 101


class NotFoundError(FarmError):
    """There is no such job."""

    exit_code = 102


class CancelledError(FarmError):
    """The job was cancelled."""

    exit_code = 103
