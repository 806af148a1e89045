"""What a caller's script can rely on."""

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
"""As a shell reports a program ended by Ctrl-C."""


def exit_code_of(error: BaseException) -> int | None:
    """The exit code of an error that says itself what to do; None for any other."""
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
    """How a job stands, as an exit code."""
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
