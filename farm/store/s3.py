"""A store in an S3 bucket, with the same names below its prefix as a folder has. The only importer of boto3."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from farm.errors import NoBucketError, StoreDeniedError, StoreError, StoreUnavailableError
from farm.store.contract import Record, blob_digest, check_name

PART_BYTES = 16 * 2**20
"""Larger blobs are written in parts of this size (S3 takes 5 MiB to 5 GiB, and 10,000 parts)."""
ATTEMPTS = 9
"""Of one request: boto3's standard mode waits at random between them, up to 0.05, 0.1, 0.2 ... 6.4 s, where the server
says that it is busy up to 1, 2, 4 ... 20 s."""
CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
BODY_ATTEMPTS = 3
"""boto3 repeats a request, but not the reading of its answer when the connection breaks in the middle."""

_DENIED = {"AccessDenied", "ExpiredToken", "InvalidToken", "RequestTimeTooSkewed", "TokenRefreshRequired"}
_BUSY = {"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}
_WRITTEN_BY_OTHERS = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload"}
"""The last: an upload whose completion boto3 repeats, because the first answer was lost, is no longer there."""


class S3Store:
    """Any number of processes and machines may use the bucket at once: a blob has one writer, the others lose.

    Credentials come from boto3's own chain. May be used by several threads.
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
        """The blob; None where it is missing or damaged."""
        data = self._read(self._blob(digest))
        return data if data is not None and blob_digest(data) == digest else None

    def put(self, data: bytes) -> str:
        """Writes a blob once and gives its digest; replaces one that is damaged."""
        digest = blob_digest(data)
        # Who loses to another writer looks at what that one wrote. A blob that is there and still not to be had is
        # damaged: it is replaced, and whoever else replaces it writes the same bytes.
        if self.get(digest) is None and not self._write_new(self._blob(digest), data) and self.get(digest) is None:
            self._write(self._blob(digest), data)
        return digest

    def holds(self, digest: str) -> bool:
        """Whether there is a blob, right or damaged."""
        key = self._blob(digest)
        with self._errors("read"):
            try:
                self._client.head_object(Bucket=self._bucket, Key=key)
            except self._client.exceptions.ClientError as error:
                if _status(error) == 404:
                    return False
                raise
        return True

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record; None where it is missing or damaged."""
        data = self._read(self._record(stage, key))
        try:
            record = None if data is None else json.loads(data)
        except ValueError:
            return None
        return record if isinstance(record, dict) else None

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Writes an action record; the last one wins."""
        self._write(self._record(stage, key), json.dumps(record, sort_keys=True).encode())

    def describe(self) -> str:
        """Where it is, for people."""
        place = f"s3://{self._bucket}/{self._prefix}".rstrip("/")
        return f"{place} at {self._endpoint}" if self._endpoint else place

    def _blob(self, digest: str) -> str:
        check_name("blob", digest)
        return f"{self._prefix}v1/cas/{digest[:2]}/{digest}"

    def _record(self, stage: str, key: str) -> str:
        check_name(stage, key)
        return f"{self._prefix}v1/ac/{stage}/{key[:2]}/{key}.json"

    def _read(self, key: str) -> bytes | None:
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        with self._errors("read"):
            for attempt in range(1, BODY_ATTEMPTS + 1):
                try:
                    answer = self._client.get_object(Bucket=self._bucket, Key=key)
                except self._client.exceptions.NoSuchKey:
                    return None
                try:
                    # Not `with answer["Body"] as body`: that body would be urllib3's, with errors of its own.
                    with closing(answer["Body"]) as body:
                        return bytes(body.read())
                except (HTTPClientError, IncompleteReadError):
                    if attempt == BODY_ATTEMPTS:
                        raise
        return None

    def _write_new(self, key: str, data: bytes) -> bool:
        """False if there is something under this key."""
        try:
            self._write(key, data, IfNoneMatch="*")
        except _WrittenByOthers:
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
        """Nothing can be read under the key before the last part is there."""
        client, where = self._client, {"Bucket": self._bucket, "Key": key}
        upload = client.create_multipart_upload(**where)["UploadId"]
        try:
            parts = []
            for number, start in enumerate(range(0, len(data), self._part_bytes), 1):
                body = data[start : start + self._part_bytes]
                made = client.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
                parts.append({"PartNumber": number, "ETag": made["ETag"]})
            client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts}, **conditions)
        except BaseException:
            # What cannot be removed now is left to the bucket's rule for unfinished uploads.
            with suppress(Exception):
                client.abort_multipart_upload(**where, UploadId=upload)
            raise

    @property
    def _client(self) -> Any:
        with self._opening:  # boto3's clients may be shared by threads, but must not be made by several at once
            if self._opened is None:
                self._opened = self._open()
        return self._opened

    def _open(self) -> Any:
        import boto3
        from botocore.config import Config

        # Servers other than Amazon's know a bucket as part of the path, and not all of them boto3's checksums: blobs
        # have digests of their own.
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
        """What boto3 raises, in our words: its own may hold the name of a key."""
        from botocore import exceptions as boto

        place = self.describe()
        try:
            yield
        except boto.ClientError as error:
            raise self._refusal(error, done) from None
        except (
            boto.NoCredentialsError,
            boto.PartialCredentialsError,
            boto.CredentialRetrievalError,
            boto.ProfileNotFound,
            boto.TokenRetrievalError,
            boto.SSOError,
        ) as error:
            raise StoreDeniedError(
                f"the store {place} cannot be {done}, boto3 finds no credentials ({type(error).__name__}): "
                "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from None
        except boto.SSLError:
            raise StoreError(
                f"the store {place} cannot be {done}, TLS with it fails: name its certificate's authority in "
                "AWS_CA_BUNDLE, or correct FARM_S3_ENDPOINT"
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

    def _refusal(self, error: Any, done: str) -> Exception:
        code, status, place = str(error.response.get("Error", {}).get("Code")), _status(error), self.describe()
        if code in _WRITTEN_BY_OTHERS:
            return _WrittenByOthers(f"the store {place} has it from another writer: try again")
        if code == "NoSuchBucket":
            return NoBucketError(
                f"the store {place} cannot be {done}, there is no bucket {self._bucket}: create it, or name another in "
                "FARM_STORE"
            )
        if status in (401, 403) or code in _DENIED:
            return StoreDeniedError(
                f"the store {place} may not be {done} ({code}): check the credentials that boto3 finds, their rights "
                "s3:GetObject, s3:PutObject and s3:ListBucket, and this machine's clock"
            )
        if status >= 500 or status == 429 or code in _BUSY:
            return StoreUnavailableError(f"the store {place} cannot be {done} now ({code}): try again later")
        return StoreError(
            f"the store {place} cannot be {done} ({code}): correct FARM_STORE, FARM_S3_ENDPOINT, FARM_S3_REGION"
        )


class _WrittenByOthers(StoreUnavailableError):
    """There is something already, or was a moment ago."""


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
