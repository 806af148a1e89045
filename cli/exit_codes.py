"""Exit codes, which scripts can rely on."""

from __future__ import annotations

from codegen.errors import ArchError, CheckpointError, CodegenError, DeviceError, TilingError, ToolchainError
from farm.errors import FarmError
from farm.jobs.model import Job, Status

OK = 0
INTERNAL = 1
USAGE = 2
UNREACHABLE = 32
BLOB_LOST = 39
JOB_FAILED = 100
UNFINISHED = 101
NOT_FOUND = 102
CANCELLED = 103
PARTIAL = 104
INTERRUPTED = 130

MEANINGS = {
    OK: "success",
    INTERNAL: "internal error: a bug in farm",
    USAGE: "usage error: an option, a value or a model file is wrong",
    UNREACHABLE: "the farm, its store, its database, its toolchain or a GPU is unreachable, or no worker can do this",
    BLOB_LOST: "the store has lost a blob, or a bundle a file",
    JOB_FAILED: "a job failed, or a layer has wrong results",
    UNFINISHED: "the job has not finished, or the qualification has too few layers",
    NOT_FOUND: "no such job, submission, layer, key or blob",
    CANCELLED: "the job was cancelled",
    PARTIAL: "the bundle is incomplete: `farm fetch --partial` of a failed job",
    INTERRUPTED: "interrupted by Ctrl-C or SIGTERM",
}
"""For the reference, in ascending order."""


def exit_code_of(error: BaseException) -> int | None:
    """The exit code of an error that the farm raises on purpose; None for any other, which is a bug."""
    match error:
        case FarmError():
            return error.exit_code
        case CheckpointError() | ArchError() | TilingError():
            return USAGE
        case ToolchainError() | DeviceError():
            return UNREACHABLE
        case CodegenError():
            return INTERNAL
        case _:
            return None


def exit_code_of_job(job: Job) -> int:
    """The exit code that stands for a job's status."""
    match job.status:
        case Status.SUCCEEDED:
            return OK
        case Status.FAILED:
            return JOB_FAILED
        case Status.CRASHED:
            return BLOB_LOST if job.fault == "lost" else UNREACHABLE
        case Status.CANCELLED:
            return CANCELLED
        case _:
            return UNFINISHED
