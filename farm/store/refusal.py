"""What an S3 server says when it refuses, in our words."""

from __future__ import annotations

from typing import Any

from farm.errors import NoBucketError, StoreDeniedError, StoreError, StoreUnavailableError

_DENIED = {"AccessDenied", "ExpiredToken", "InvalidToken", "RequestTimeTooSkewed", "TokenRefreshRequired"}
_BUSY = {"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}
_WRITTEN_BY_OTHERS = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload"}
"""The last: an upload whose completion boto3 repeats, because the first answer was lost, is no longer there."""


class WrittenByOthersError(StoreUnavailableError):
    """There is something already, or was a moment ago."""


def refusal(error: Any, place: str, done: str) -> StoreError:
    """The error for a botocore ClientError: `place` was to be `done`, as in read, written."""
    code, status = str(error.response.get("Error", {}).get("Code")), status_of(error)
    if code in _WRITTEN_BY_OTHERS:
        return WrittenByOthersError(f"the store {place} has it from another writer: try again")
    if code == "NoSuchBucket":
        bucket = place.removeprefix("s3://").partition("/")[0].partition(" ")[0]
        return NoBucketError(
            f"the store {place} cannot be {done}, there is no bucket {bucket}: create it, or name another in FARM_STORE"
        )
    if status in (401, 403) or code in _DENIED:
        return StoreDeniedError(
            f"the store {place} may not be {done} ({code}): check the credentials that boto3 finds, their rights "
            "s3:GetObject, s3:PutObject and s3:ListBucket (s3:DeleteObject to remove), and this machine's clock"
        )
    if status >= 500 or status == 429 or code in _BUSY:
        return StoreUnavailableError(f"the store {place} cannot be {done} now ({code}): try again later")
    return StoreError(
        f"the store {place} cannot be {done} ({code}): correct FARM_STORE, FARM_S3_ENDPOINT, FARM_S3_REGION"
    )


def status_of(error: Any) -> int:
    """The HTTP status of an answer that boto3 raised."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
