"""The errors of the farm. A message has the fact, the reason and the way out; each class has an exit code."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text with a space for each line break, control character and invisible mark, such as those of direction."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


class FarmError(Exception):
    """Base class of all errors that the farm reports."""

    exit_code = 1


class UsageError(FarmError):
    """The request is invalid: an option, a value or a file."""

    exit_code = 2


class NothingToCompileError(UsageError):
    """No layer of a model can be compiled, or should be."""


class BundleError(UsageError):
    """A bundle that is missing, damaged, or not written by this version of farm."""


class UnreachableError(FarmError):
    """The farm, its store or its database is unreachable, or no worker can serve the request."""

    exit_code = 32


class StoreError(UnreachableError):
    """The store cannot be read or written."""


class StoreUnavailableError(StoreError):
    """The store does not answer for the moment; a retry may succeed."""


class StoreDeniedError(StoreError):
    """Access to the store was denied."""


class NoBucketError(StoreError):
    """The store's bucket does not exist."""


class LedgerError(UnreachableError):
    """The database cannot be used."""


class LedgerAwayError(LedgerError):
    """The database does not answer for the moment; a retry may succeed."""


class LeaseLostError(LedgerError):
    """A coordinator, or a run of maintenance, lost its lease: another may have taken its work over."""


class BusyError(UnreachableError):
    """Another process is doing this at the moment."""


class UnreadableJobError(FarmError):
    """This version cannot read a job that is in the ledger."""

    exit_code = 32


class NoWorkerError(UnreachableError):
    """No worker can serve the job."""


class BlobLostError(FarmError):
    """The store has lost a blob that the ledger refers to."""

    exit_code = 39


class JobFailedError(FarmError):
    """The job failed."""

    exit_code = 100


class UnfinishedError(FarmError):
    """The job has not finished."""

    exit_code = 101


class NotFoundError(FarmError):
    """The requested job or submission does not exist."""

    exit_code = 102


class CancelledError(FarmError):
    """The job was cancelled."""

    exit_code = 103
