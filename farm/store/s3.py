"""A store in an S3 bucket, with the names of the disk store below its prefix. The only importer of boto3."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from farm.errors import NoBucketError, StoreDeniedError, StoreError, StoreUnavailableError
from farm.store.contract import (
    FRESH_SECONDS,
    Record,
    RecordName,
    StoredBlob,
    StoredRecord,
    blob_digest,
    check_name,
    check_prefix,
    is_name,
    read_record,
    record_bytes,
)

PART_BYTES = 16 * 2**20
"""Part size of multi-part uploads, for larger blobs (S3 allows 5 MiB to 5 GiB, and 10,000 parts)."""
PARTS_AT_ONCE = 4
"""Parts uploaded concurrently: one connection to S3 carries 50 to 100 MB/s."""
ATTEMPTS = 9
"""Attempts per request. Between them boto3's standard mode waits a random time of up to 0.05, 0.1, 0.2 ... 6.4 s, or of
up to 1, 2, 4 ... 20 s if the server is busy."""
DELETED_AT_ONCE = 1000
"""Objects deleted in one request: S3's limit."""
HEADS_AT_ONCE = 8
CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
BODY_ATTEMPTS = 3
"""Attempts to read an answer: boto3 repeats requests, but not the reading of a body whose connection breaks."""


_DENIED = {"AccessDenied", "ExpiredToken", "InvalidToken", "RequestTimeTooSkewed", "TokenRefreshRequired"}
_BUSY = {"InternalError", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}
_WRITTEN_BY_OTHERS = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload"}
"""NoSuchUpload: boto3 repeated the completion of an upload, since the first answer was lost."""


class _WrittenByOthersError(StoreUnavailableError):
    """Another writer has written the object, or is writing it."""


@dataclass(frozen=True)
class _Object:
    data: bytes
    modified: datetime | None


class S3Store:
    """A store in an S3 bucket, for any number of concurrent machines: of several writers of a blob one wins.

    Credentials come from boto3's own chain. Threads may share it.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        read_only: bool = False,
        attempts: int = ATTEMPTS,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = endpoint
        self._region = region
        self._read_only = read_only
        self._attempts = attempts
        self._part_bytes = part_bytes
        self._opened: Any = None
        self._opening = threading.Lock()

    def get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest; None if it is missing or damaged."""
        data = self._get(digest)
        if data is None:
            trashed = self._read(self._trashed(digest))
            if trashed is not None and blob_digest(trashed.data) == digest:
                self._restore(digest)
                data = trashed.data
        return data

    def put(self, data: bytes) -> str:
        """Writes a blob unless it exists undamaged, and returns its digest."""
        digest = blob_digest(data)
        # If another writer wins, its blob is checked. A blob that exists but cannot be read is damaged, and replaced;
        # others that replace it write the same bytes.
        if self._get(digest) is None and not self._write_new(self._blob(digest), data) and self._get(digest) is None:
            self._write(self._blob(digest), data)
        return digest

    def holds(self, digest: str, size_bytes: int | None = None) -> bool:
        """Whether the blob exists, and has that size if one is given; its bytes are not read."""
        key = self._blob(digest)
        found = self._head(key)
        if found is None:
            trashed = self._head(self._trashed(digest))
            return trashed is not None and size_bytes in (None, trashed["ContentLength"]) and self._restore(digest)
        return size_bytes in (None, found["ContentLength"]) and self._refresh(key, found.get("LastModified"))

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record; None if it is missing or damaged."""
        found = self._read(self._record(stage, key))
        return read_record(None if found is None else found.data)

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Writes an action record; the last writer wins."""
        self._write(self._record(stage, key), record_bytes(record))

    def blobs(self, prefix: str = "") -> Iterator[StoredBlob]:
        """All blobs whose digests have that prefix, damaged ones too."""
        check_prefix(prefix)
        for name, size_bytes, modified in self._list("v1/cas/", _below(prefix)):
            digest = name.rpartition("/")[2]
            if is_name("blob", digest) and name == self._blob(digest):
                yield StoredBlob(digest, size_bytes, _age_seconds(modified))

    def records(self, prefix: str = "") -> Iterator[StoredRecord]:
        """All action records, of all stages, whose keys have that prefix."""
        check_prefix(prefix)
        for stage in self._stages():
            for name, size_bytes, modified in self._list(f"v1/ac/{stage}/", _below(prefix)):
                key = name.rpartition("/")[2].removesuffix(".json")
                if is_name(stage, key) and name == self._record(stage, key):
                    yield StoredRecord(stage, key, size_bytes, _age_seconds(modified))

    def is_damaged(self, digest: str) -> bool:
        """Whether the blob exists and its bytes do not match its digest."""
        found = self._read(self._blob(digest))
        return found is not None and blob_digest(found.data) != digest

    def remove_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Removes the blobs that were neither written nor read within that time, and returns them."""
        self._check_removal()
        return self._each_unused(digests, unused_seconds, lambda _: True)

    def trash_blobs(self, digests: Sequence[str], unused_seconds: float) -> frozenset[str]:
        """Moves the blobs that were neither written nor read within that time into the trash, and returns them."""
        self._check_removal()

        def trash(digest: str) -> bool:
            return self._copy(self._blob(digest), self._trashed(digest))

        return self._each_unused(digests, unused_seconds, trash)

    def empty_trash(self, trashed_seconds: float) -> int:
        """Removes what has been in the trash for that time for good; returns its size in bytes."""
        self._check_removal()
        freed_bytes = 0
        listed = self._list("v1/trash/", "")
        while batch := list(islice(listed, DELETED_AT_ONCE)):
            old = {
                name: size_bytes
                for name, size_bytes, modified in batch
                if is_name("blob", name.rpartition("/")[2]) and _age_seconds(modified) >= trashed_seconds
            }
            self._delete(list(old))
            freed_bytes += sum(old.values())
        return freed_bytes

    def _each_unused(
        self, digests: Sequence[str], unused_seconds: float, prepare: Callable[[str], bool]
    ) -> frozenset[str]:
        """Deletes the blobs that were not used within that time and for which `prepare` succeeds, and returns them."""

        def is_old(digest: str) -> bool:
            found = self._head(self._blob(digest))
            return found is not None and _age_seconds(found["LastModified"]) >= unused_seconds and prepare(digest)

        removed: set[str] = set()
        for first in range(0, len(digests), DELETED_AT_ONCE):
            batch = digests[first : first + DELETED_AT_ONCE]
            with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
                old = [digest for digest, goes in zip(batch, pool.map(is_old, batch), strict=True) if goes]
            self._delete([self._blob(digest) for digest in old])
            removed.update(old)
        return frozenset(removed)

    def remove_damaged(self, digest: str) -> bool:
        """Removes a blob if it is damaged; returns whether it did."""
        self._check_removal()
        if not self.is_damaged(digest):
            return False
        self._delete([self._blob(digest)])
        return True

    def remove_records(self, records: Sequence[RecordName]) -> None:
        """Removes those action records that exist."""
        self._check_removal()
        keys = [self._record(stage, key) for stage, key in records]
        for first in range(0, len(keys), DELETED_AT_ONCE):
            self._delete(keys[first : first + DELETED_AT_ONCE])

    def remove_leftovers(self, unused_seconds: float) -> int:  # noqa: ARG002 - Store has it
        """Removes nothing: the bucket's lifecycle rule removes unfinished uploads."""
        self._check_removal()
        return 0

    def describe(self) -> str:
        """The store's location, for messages."""
        place = f"s3://{self._bucket}/{self._prefix}".rstrip("/")
        return f"{place} at {self._endpoint}" if self._endpoint else place

    def _blob(self, digest: str) -> str:
        check_name("blob", digest)
        return f"{self._prefix}v1/cas/{digest[:2]}/{digest}"

    def _trashed(self, digest: str) -> str:
        check_name("blob", digest)
        return f"{self._prefix}v1/trash/{digest[:2]}/{digest}"

    def _record(self, stage: str, key: str) -> str:
        check_name(stage, key)
        return f"{self._prefix}v1/ac/{stage}/{key[:2]}/{key}.json"

    def _list(self, folder: str, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        """Name, size and last change of the objects in a folder whose names have that prefix."""
        with self._errors("read"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}{folder}{prefix}"):
                for each in page.get("Contents", []):
                    yield each["Key"], each["Size"], each["LastModified"]

    def _stages(self) -> list[str]:
        folder = f"{self._prefix}v1/ac/"
        with self._errors("read"):
            pages = self._client.get_paginator("list_objects_v2")
            found = pages.paginate(Bucket=self._bucket, Prefix=folder, Delimiter="/")
            prefixes = [each["Prefix"] for page in found for each in page.get("CommonPrefixes", [])]
        return [prefix.removeprefix(folder).rstrip("/") for prefix in prefixes]

    def _head(self, key: str) -> Any:
        """The metadata of an object; None if it does not exist."""
        with self._errors("read"):
            try:
                return self._client.head_object(Bucket=self._bucket, Key=key)
            except self._client.exceptions.ClientError as error:
                if _status_of(error) == 404:
                    return None
                raise

    def _get(self, digest: str) -> bytes | None:
        """The blob, checked against its digest, unless it is in the trash."""
        key = self._blob(digest)
        found = self._read(key)
        if found is None or blob_digest(found.data) != digest:
            return None
        return found.data if self._refresh(key, found.modified) else None

    def _refresh(self, key: str, modified: datetime | None) -> bool:
        """Refreshes a blob's age by a copy within the server; False if it no longer exists."""
        if modified is None or _age_seconds(modified) <= FRESH_SECONDS:
            return True
        return self._copy_for_reader(key, key)

    def _restore(self, digest: str) -> bool:
        """Copies a blob out of the trash, which is emptied later; False if it is no longer there."""
        return self._copy_for_reader(self._trashed(digest), self._blob(digest))

    def _copy_for_reader(self, source: str, key: str) -> bool:
        """Copies an object unless this reader may not write: then it has no job for which a blob must be kept."""
        if not self._read_only:
            with suppress(StoreDeniedError):
                return self._copy(source, key)
        return True

    def _copy(self, source: str, key: str) -> bool:
        """Copies an object within the server; False if it does not exist."""
        with self._errors("written"):
            try:
                self._client.copy_object(
                    Bucket=self._bucket,
                    Key=key,
                    CopySource={"Bucket": self._bucket, "Key": source},
                    MetadataDirective="REPLACE",
                )
            except self._client.exceptions.ClientError as error:
                if _status_of(error) == 404:
                    return False
                raise
        return True

    def _check_removal(self) -> None:
        if self._read_only:
            raise StoreError(f"the store {self.describe()} is read-only here: unset FARM_READ_ONLY to remove something")

    def _delete(self, keys: Sequence[str]) -> None:
        """Deletes up to DELETED_AT_ONCE objects in one request; those that do not exist are no error."""
        if not keys:
            return
        with self._errors("written"):
            objects = [{"Key": key} for key in keys]
            answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
            for error in answer.get("Errors", []):
                raise self._client.exceptions.ClientError({"Error": error}, "DeleteObjects")

    def _read(self, key: str) -> _Object | None:
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        with self._errors("read"):
            for attempt in range(1, BODY_ATTEMPTS + 1):
                try:
                    answer = self._client.get_object(Bucket=self._bucket, Key=key)
                except self._client.exceptions.NoSuchKey:
                    return None
                try:
                    # `with answer["Body"] as body` would give urllib3's body, which raises other errors.
                    with closing(answer["Body"]) as body:
                        return _Object(bytes(body.read()), answer.get("LastModified"))
                except (HTTPClientError, IncompleteReadError):
                    if attempt == BODY_ATTEMPTS:
                        raise
        return None

    def _write_new(self, key: str, data: bytes) -> bool:
        """Writes an object unless the key exists; returns whether it did."""
        try:
            self._write(key, data, IfNoneMatch="*")
        except _WrittenByOthersError:
            return False
        return True

    def _write(self, key: str, data: bytes, **conditions: str) -> None:
        if self._read_only:
            raise StoreError(f"the store {self.describe()} is read-only here: unset FARM_READ_ONLY to build something")
        with self._errors("written"):
            if len(data) <= self._part_bytes:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=data, **conditions)
            else:
                self._write_parts(key, data, **conditions)

    def _write_parts(self, key: str, data: bytes, **conditions: str) -> None:
        """Writes an object in parts. It becomes visible when the upload is complete."""
        client, where = self._client, {"Bucket": self._bucket, "Key": key}
        upload = client.create_multipart_upload(**where)["UploadId"]

        def send(number: int) -> dict[str, Any]:
            body = data[(number - 1) * self._part_bytes : number * self._part_bytes]
            made = client.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
            return {"PartNumber": number, "ETag": made["ETag"]}

        try:
            # The pool ends before an abort: a part that arrives after it would stay.
            with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                parts = list(pool.map(send, range(1, -(-len(data) // self._part_bytes) + 1)))
            client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts}, **conditions)
        except BaseException:
            # If this fails, the bucket's lifecycle rule removes the unfinished upload.
            with suppress(Exception):
                client.abort_multipart_upload(**where, UploadId=upload)
            raise

    @property
    def _client(self) -> Any:
        with self._opening:  # threads may share a boto3 client, but must not make clients concurrently
            if self._opened is None:
                self._opened = self._open()
        return self._opened

    def _open(self) -> Any:
        import boto3
        from botocore.config import Config

        # Servers other than Amazon's take the bucket in the path, and not all of them know boto3's checksums, which are
        # not needed: blobs have digests.
        config = Config(
            retries={"mode": "standard", "total_max_attempts": self._attempts},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            tcp_keepalive=True,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if self._endpoint else "auto"},
        )
        return boto3.Session().client("s3", endpoint_url=self._endpoint, region_name=self._region, config=config)

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Translates errors of boto3, whose own messages may contain the name of an access key."""
        from botocore import exceptions as boto

        place = self.describe()
        try:
            yield
        except boto.ClientError as error:
            raise _refusal(error, place, done) from None
        except (
            boto.NoCredentialsError,
            boto.PartialCredentialsError,
            boto.CredentialRetrievalError,
            boto.ProfileNotFound,
            boto.TokenRetrievalError,
            boto.SSOError,
        ) as error:
            raise StoreDeniedError(
                f"the store {place} cannot be {done}: boto3 finds no credentials ({type(error).__name__}). "
                "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from None
        except boto.SSLError:
            raise StoreError(
                f"the store {place} cannot be {done}: TLS fails. Name its certificate authority in AWS_CA_BUNDLE, "
                "or correct FARM_S3_ENDPOINT"
            ) from None
        except (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError) as error:
            raise StoreUnavailableError(
                f"the store {place} does not answer ({type(error).__name__}): try again later, or correct "
                "FARM_S3_ENDPOINT"
            ) from None
        except boto.BotoCoreError as error:
            raise StoreError(
                f"the store {place} cannot be {done} ({type(error).__name__}): correct FARM_STORE, FARM_S3_ENDPOINT, "
                "FARM_S3_REGION"
            ) from None


def _below(prefix: str) -> str:
    """The prefix of the object names whose digests or keys have that prefix."""
    return f"{prefix[:2]}/{prefix}" if len(prefix) >= 2 else prefix


def _age_seconds(modified: datetime) -> float:
    """The age by this machine's clock; S3 refuses clients whose clock differs by more than 15 minutes."""
    return time.time() - modified.timestamp()


def _refusal(error: Any, place: str, done: str) -> StoreError:
    """The error for a botocore ClientError. `done` is the attempted access: read or written."""
    code, status = str(error.response.get("Error", {}).get("Code")), _status_of(error)
    if code in _WRITTEN_BY_OTHERS:
        return _WrittenByOthersError(f"the store {place} is being written by another process: try again")
    if code == "NoSuchBucket":
        bucket = place.removeprefix("s3://").partition("/")[0].partition(" ")[0]
        return NoBucketError(
            f"the store {place} cannot be {done}: bucket {bucket} does not exist. "
            "Create it, or name another in FARM_STORE"
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


def _status_of(error: Any) -> int:
    """The HTTP status of a botocore ClientError."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
