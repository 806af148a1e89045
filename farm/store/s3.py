"""A store in an S3 bucket, with the same names below its prefix as a folder has. The only importer of boto3."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from farm.errors import StoreDeniedError, StoreError, StoreUnavailableError
from farm.store.contract import (
    FRESH_SECONDS,
    Record,
    StoredBlob,
    StoredRecord,
    blob_digest,
    check_beginning,
    check_name,
    is_name,
)
from farm.store.refusal import WrittenByOthersError, refusal, status_of

PART_BYTES = 16 * 2**20
"""Larger blobs are written in parts of this size (S3 takes 5 MiB to 5 GiB, and 10,000 parts)."""
PARTS_AT_ONCE = 4
"""One connection to S3 carries 50 to 100 MB/s."""
ATTEMPTS = 9
"""Attempts per request: boto3's standard mode waits at random between them, up to 0.05, 0.1, 0.2 ... 6.4 s; up to 1, 2,
4 ... 20 s if the server says that it is busy."""
CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
BODY_ATTEMPTS = 3
"""boto3 repeats a request, but not the reading of its answer when the connection breaks in the middle."""


@dataclass(frozen=True)
class _Object:
    data: bytes
    modified: datetime | None


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
        key = self._blob(digest)
        found = self._read(key)
        if found is None or blob_digest(found.data) != digest:
            return None
        return found.data if self._refresh(key, found.modified) else None

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
        found = self._head(key)
        return found is not None and self._refresh(key, found.get("LastModified"))

    def get_record(self, stage: str, key: str) -> Record | None:
        """The action record; None where it is missing or damaged."""
        found = self._read(self._record(stage, key))
        try:
            record = None if found is None else json.loads(found.data)
        except ValueError:
            return None
        return record if isinstance(record, dict) else None

    def put_record(self, stage: str, key: str, record: Record) -> None:
        """Writes an action record; the last one wins."""
        self._write(self._record(stage, key), json.dumps(record, sort_keys=True).encode())

    def blobs(self, beginning: str = "") -> Iterator[StoredBlob]:
        """Every blob whose digest begins so, right or damaged."""
        check_beginning(beginning)
        for name, size_bytes, modified in self._list("v1/cas/", _below(beginning)):
            digest = name.rpartition("/")[2]
            if is_name("blob", digest) and name == self._blob(digest):
                yield StoredBlob(digest, size_bytes, _age_seconds(modified))

    def records(self, beginning: str = "") -> Iterator[StoredRecord]:
        """Every action record whose key begins so, of all stages."""
        check_beginning(beginning)
        for stage in self._stages():
            for name, size_bytes, modified in self._list(f"v1/ac/{stage}/", _below(beginning)):
                key = name.rpartition("/")[2].removesuffix(".json")
                if is_name(stage, key) and name == self._record(stage, key):
                    yield StoredRecord(stage, key, size_bytes, _age_seconds(modified))

    def is_damaged(self, digest: str) -> bool:
        """Whether there is a blob with other bytes than its digest says."""
        found = self._read(self._blob(digest))
        return found is not None and blob_digest(found.data) != digest

    def remove_blob(self, digest: str, unused_seconds: float) -> bool:
        """Removes a blob unless it was written or asked for within that time; whether it did."""
        self._check_removal()
        key = self._blob(digest)
        found = self._head(key)
        if found is None or _age_seconds(found["LastModified"]) < unused_seconds:
            return False
        self._delete(key)
        return True

    def remove_damaged(self, digest: str) -> bool:
        """Removes a blob if it is damaged; whether it did."""
        self._check_removal()
        if not self.is_damaged(digest):
            return False
        self._delete(self._blob(digest))
        return True

    def remove_record(self, stage: str, key: str) -> None:
        """Removes an action record, if it is there."""
        self._check_removal()
        self._delete(self._record(stage, key))

    def remove_leftovers(self, unused_seconds: float) -> int:  # noqa: ARG002 - Store has it
        """Nothing: unfinished uploads are left to the bucket's rule for them."""
        self._check_removal()
        return 0

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

    def _list(self, folder: str, beginning: str) -> Iterator[tuple[str, int, datetime]]:
        """Name, bytes and last change of every object there."""
        with self._errors("read"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}{folder}{beginning}"):
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
        """What S3 says of an object; None where there is none."""
        with self._errors("read"):
            try:
                return self._client.head_object(Bucket=self._bucket, Key=key)
            except self._client.exceptions.ClientError as error:
                if status_of(error) == 404:
                    return None
                raise

    def _refresh(self, key: str, modified: datetime | None) -> bool:
        """Makes a blob young again, by a copy within the server; False if it is no longer there."""
        if self._read_only or modified is None or _age_seconds(modified) <= FRESH_SECONDS:
            return True
        source = {"Bucket": self._bucket, "Key": key}
        # Who may not write has no job for which anything must be kept.
        with suppress(StoreDeniedError), self._errors("written"):
            try:
                self._client.copy_object(**source, CopySource=source, MetadataDirective="REPLACE")
            except self._client.exceptions.ClientError as error:
                if status_of(error) == 404:
                    return False
                raise
        return True

    def _check_removal(self) -> None:
        if self._read_only:
            raise StoreError(f"the store {self.describe()} is read-only here: unset FARM_READ_ONLY to remove something")

    def _delete(self, key: str) -> None:
        with self._errors("written"):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def _read(self, key: str) -> _Object | None:
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
                        return _Object(bytes(body.read()), answer.get("LastModified"))
                except (HTTPClientError, IncompleteReadError):
                    if attempt == BODY_ATTEMPTS:
                        raise
        return None

    def _write_new(self, key: str, data: bytes) -> bool:
        """False if there is something under this key."""
        try:
            self._write(key, data, IfNoneMatch="*")
        except WrittenByOthersError:
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

        def send(number: int) -> dict[str, Any]:
            body = data[(number - 1) * self._part_bytes : number * self._part_bytes]
            made = client.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
            return {"PartNumber": number, "ETag": made["ETag"]}

        try:
            # The pool ends before the upload does: a part that arrived after an abort would stay.
            with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                parts = list(pool.map(send, range(1, -(-len(data) // self._part_bytes) + 1)))
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
            raise refusal(error, place, done) from None
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


def _below(beginning: str) -> str:
    """What the names of all objects begin with whose digest or key begins so."""
    return f"{beginning[:2]}/{beginning}" if len(beginning) >= 2 else beginning


def _age_seconds(modified: datetime) -> float:
    """S3 refuses whose clock differs from its own by more than 15 minutes."""
    return time.time() - modified.timestamp()
