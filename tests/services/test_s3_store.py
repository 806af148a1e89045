"""The contract of stores over a real S3, and what goes wrong there."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from farm.api import Farm
from farm.config.settings import load_settings
from farm.errors import NoBucketError, StoreDeniedError, StoreUnavailableError
from farm.jobs.model import BuildOptions, Status
from farm.maintenance.gc import Limits, collect_garbage
from farm.store import open_store
from farm.store.contract import RecordName, Store, blob_digest
from farm.store.disk import DiskStore
from farm.store.s3 import S3Store
from farm.store.tiered import TieredStore
from farm.testing import laptop_farm
from tests.needs import lacks_toolchain
from tests.samples import checkpoint, layer
from tests.services.ceph import Ceph
from tests.signing_keys import key_file
from tests.store_contract import KEY, Place, SharedStoreContract, blob_name
from tests.verifications import assert_right

PART = 5 * 2**20
"""The least that S3 takes as a part."""


@pytest.fixture
def bucket(ceph: Ceph, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty one, and the credentials where boto3 looks for them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ceph.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ceph.secret_key)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"farm-{uuid.uuid4().hex}"
    ceph.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def behind(ceph: Ceph) -> Iterator[Any]:
    """A client that looks behind the store's back."""
    client = ceph.client()
    yield client
    client.close()


def names(client: Any, bucket: str) -> set[str]:
    return {each["Key"] for each in client.list_objects_v2(Bucket=bucket).get("Contents", [])}


def s3_place(ceph: Ceph, client: Any, bucket: str, opened: Callable[[S3Store, bool], Store]) -> Place:
    def store(read_only: bool) -> Store:
        return opened(S3Store(bucket, "team/a", endpoint=ceph.endpoint, read_only=read_only), read_only)

    return Place(
        open=lambda: store(False),
        open_read_only=lambda: store(True),
        overwrite=lambda name, data: client.put_object(Bucket=bucket, Key=f"team/a/{name}", Body=data),
        remove=lambda name: client.delete_object(Bucket=bucket, Key=f"team/a/{name}"),
        names=lambda: {name.removeprefix("team/a/") for name in names(client, bucket)},
    )


class TestS3(SharedStoreContract):
    @pytest.fixture
    def place(self, ceph: Ceph, behind: Any, bucket: str) -> Place:
        return s3_place(ceph, behind, bucket, lambda s3, _: s3)


class TestS3BehindACache(SharedStoreContract):
    @pytest.fixture
    def place(self, ceph: Ceph, behind: Any, bucket: str, tmp_path: Path) -> Place:
        near = (DiskStore(tmp_path / f"machine{number}") for number in count())
        return s3_place(ceph, behind, bucket, lambda s3, read_only: TieredStore(next(near), s3, read_only=read_only))


def test_a_blob_is_written_by_exactly_one_of_many_writers(ceph: Ceph, bucket: str, behind: Any) -> None:
    data, together, writers = os.urandom(50_000), threading.Barrier(8), 8
    written: list[int] = []

    def write(_: int) -> str:
        store = S3Store(bucket, endpoint=ceph.endpoint)
        store.get(KEY)  # so that the client is made before the race
        store._client.meta.events.register(
            "after-call.s3.PutObject", lambda http_response, **_: written.append(http_response.status_code)
        )
        together.wait()
        return store.put(data)

    with ThreadPoolExecutor(writers) as pool:
        assert set(pool.map(write, range(writers))) == {blob_digest(data)}
    assert written.count(200) == 1
    assert set(written) <= {200, 412}
    assert names(behind, bucket) == {blob_name(blob_digest(data))}


def test_a_large_blob_is_written_in_parts_and_comes_back(ceph: Ceph, bucket: str, behind: Any) -> None:
    store, data = S3Store(bucket, endpoint=ceph.endpoint, part_bytes=PART), os.urandom(3 * PART + 12_345)
    digest = store.put(data)
    assert S3Store(bucket, endpoint=ceph.endpoint).get(digest) == data
    assert behind.head_object(Bucket=bucket, Key=blob_name(digest))["ETag"].strip('"').endswith("-4")
    behind.put_object(Bucket=bucket, Key=blob_name(digest), Body=data[:-1])
    assert store.get(digest) is None
    store.put(data)
    assert store.get(digest) == data


def test_an_old_blob_that_is_asked_for_is_made_young_by_a_copy_within_the_server(
    ceph: Ceph, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, data = S3Store(bucket, endpoint=ceph.endpoint, part_bytes=PART), os.urandom(PART + 1)
    digest, copies = store.put(data), []
    store._client.meta.events.register(
        "after-call.s3.CopyObject", lambda http_response, **_: copies.append(http_response.status_code)
    )
    assert store.get(digest) == data
    assert not copies
    monkeypatch.setattr("farm.store.s3.FRESH_SECONDS", -60)  # so that it counts as old
    assert store.get(digest) == data
    assert store.put(data) == digest
    assert store.holds(digest)
    assert copies == [200] * 3
    assert S3Store(bucket, endpoint=ceph.endpoint, read_only=True).get(digest) == data
    assert len(copies) == 3


def test_a_blob_that_is_removed_while_it_is_asked_for_counts_as_missing_and_is_written_again(
    ceph: Ceph, bucket: str, behind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(bucket, endpoint=ceph.endpoint)
    digest = store.put(b"data")
    monkeypatch.setattr("farm.store.s3.FRESH_SECONDS", -60)

    def remove(**_: object) -> None:
        behind.delete_object(Bucket=bucket, Key=blob_name(digest))

    store._client.meta.events.register("before-call.s3.CopyObject", remove)
    assert store.get(digest) is None
    S3Store(bucket, endpoint=ceph.endpoint).put(b"data")
    assert store.put(b"data") == digest
    assert names(behind, bucket) == {blob_name(digest)}


def test_more_than_a_page_of_blobs_is_listed(ceph: Ceph, bucket: str) -> None:
    store = S3Store(bucket, "team/a", endpoint=ceph.endpoint)
    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(store.put, (b"%d" % i for i in range(1100))))
    assert {blob.digest for blob in store.blobs()} == digests
    assert list(S3Store(bucket, "team/b", endpoint=ceph.endpoint).blobs()) == []


def test_garbage_is_collected_and_what_was_asked_for_since_is_not(
    ceph: Ceph, bucket: str, behind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(bucket, "team/a", endpoint=ceph.endpoint)
    kept, gone = store.put(b"asked for again"), store.put(b"asked for no more")
    store.put_record("cubin", KEY, {"cubin": gone})
    store.put_record("cubin", "1f" * 32, {"cubin": kept})
    beginning = behind.head_object(Bucket=bucket, Key=f"team/a/{blob_name(gone)}")["LastModified"].timestamp()
    # S3's times are whole seconds: a blob of the second that has just ended counts as a month old.
    while True:
        behind.put_object(Bucket=bucket, Key="clock", Body=b"")
        now = behind.head_object(Bucket=bucket, Key="clock")["LastModified"].timestamp()
        if now > beginning + 1:
            break
    monkeypatch.setattr("farm.store.s3._age_seconds", lambda at: 3e6 if at.timestamp() < int(now) else 0.0)
    with laptop_farm(tmp_path) as farm:
        assert store.get(kept) == b"asked for again"
        done = collect_garbage(store, farm._ledger, Limits(older_than_seconds=86_400))
    assert [each.key for each in done.records] == [KEY]
    assert done.blobs == (gone,)
    assert {blob.digest for blob in store.blobs()} == {kept}


@pytest.mark.slow
def test_a_thousand_blobs_or_records_are_removed_by_one_request(ceph: Ceph, bucket: str, behind: Any) -> None:
    store, requests = S3Store(bucket, "team/a", endpoint=ceph.endpoint), list[str]()
    with ThreadPoolExecutor(8) as pool:
        digests = list(pool.map(store.put, (b"%d" % i for i in range(1001))))
    store.put_record("cubin", KEY, {})
    store._client.meta.events.register("before-call.s3", lambda model, **_: requests.append(model.name))
    assert store.remove_blobs(digests, 3600) == frozenset()
    assert "DeleteObjects" not in requests
    assert store.remove_blobs([*digests, KEY], 0) == set(digests)
    store.remove_records([RecordName("cubin", KEY), RecordName("cubin", "ab" * 32)])
    assert [name for name in requests if name.startswith("Delete")] == ["DeleteObjects"] * 3
    assert not names(behind, bucket)


def test_a_removal_that_the_server_refuses_is_an_error(ceph: Ceph, bucket: str, behind: Any) -> None:
    store = S3Store(bucket, endpoint=ceph.endpoint)
    digest = store.put(b"data")
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
    behind.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
    with pytest.raises(StoreDeniedError, match=r"may not be written \(AccessDenied\)"):
        store.remove_blobs([digest], 0)
    assert store.get(digest) == b"data"


def test_an_upload_that_breaks_off_leaves_nothing(
    ceph: Ceph, bucket: str, behind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(bucket, endpoint=ceph.endpoint, part_bytes=PART)
    upload_part = store._client.upload_part

    def second_part_is_interrupted(**arguments: Any) -> Any:
        if arguments["PartNumber"] == 2:
            raise KeyboardInterrupt
        return upload_part(**arguments)

    monkeypatch.setattr(store._client, "upload_part", second_part_is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put(os.urandom(2 * PART))
    assert not names(behind, bucket)
    assert not behind.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_what_is_there_is_not_sent_again(ceph: Ceph, bucket: str, behind: Any) -> None:
    store = S3Store(bucket, endpoint=ceph.endpoint)
    before = behind.head_object(Bucket=bucket, Key=blob_name(store.put(b"data")))["LastModified"]
    time.sleep(1.1)  # the clock of LastModified
    after = behind.head_object(Bucket=bucket, Key=blob_name(store.put(b"data")))["LastModified"]
    assert before == after


def test_a_bucket_that_is_not_there_is_an_error_in_words(ceph: Ceph, bucket: str) -> None:
    store = S3Store(f"{bucket}-not", endpoint=ceph.endpoint)
    message = f"bucket {bucket}-not does not exist. Create it, or name another in FARM_STORE"
    for call in (lambda: store.get(KEY), lambda: store.put(b"x"), lambda: store.put_record("cubin", KEY, {})):
        with pytest.raises(NoBucketError, match=message):
            call()


@pytest.mark.parametrize(
    ("key", "secret", "code"),
    [(Ceph.access_key, "wrong-secret", "SignatureDoesNotMatch"), ("nobody", "wrong-secret", "InvalidAccessKeyId")],
)
def test_wrong_credentials_are_an_error_without_them(
    ceph: Ceph, bucket: str, monkeypatch: pytest.MonkeyPatch, key: str, secret: str, code: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    store = S3Store(bucket, endpoint=ceph.endpoint)
    for call in (lambda: store.get(KEY), lambda: store.holds(KEY), lambda: store.put(b"x")):
        with pytest.raises(StoreDeniedError, match="check the credentials that boto3 finds") as caught:
            call()
        assert key not in str(caught.value)
        assert secret not in str(caught.value)
    with pytest.raises(StoreDeniedError, match=code):
        store.get(KEY)


def test_a_bucket_of_somebody_else_is_denied(ceph: Ceph, bucket: str, behind: Any) -> None:
    behind.put_bucket_policy(
        Bucket=bucket,
        Policy='{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", '
        f'"Resource": "arn:aws:s3:::{bucket}/*"}}]}}',
    )
    store = S3Store(bucket, endpoint=ceph.endpoint)
    assert store.get(KEY) is None
    with pytest.raises(StoreDeniedError, match=r"may not be written \(AccessDenied\)"):
        store.put(b"x")


def test_a_server_that_dies_is_unavailable_and_the_same_store_works_when_it_is_back(ceph: Ceph, bucket: str) -> None:
    store = S3Store(bucket, endpoint=ceph.endpoint, attempts=2)
    digest = store.put(b"before")
    ceph.kill_gateway()
    try:
        for call in (
            lambda: store.get(digest),
            lambda: store.holds(digest),
            lambda: store.put(b"during"),
            lambda: store.get_record("cubin", KEY),
            lambda: store.put_record("cubin", KEY, {}),
        ):
            with pytest.raises(StoreUnavailableError, match=r"does not answer .*: try again later"):
                call()
    finally:
        ceph.start_gateway()
    assert store.get(digest) == b"before"
    assert store.get(store.put(b"after")) == b"after"


def test_a_server_that_is_back_soon_is_waited_for(ceph: Ceph, bucket: str) -> None:
    store = S3Store(bucket, endpoint=ceph.endpoint)
    digest = store.put(b"before")
    ceph.kill_gateway()
    with ThreadPoolExecutor() as pool:
        try:
            waiting = pool.submit(store.get, digest)
            time.sleep(0.3)
            assert not waiting.done()
        finally:
            ceph.start_gateway()
        assert waiting.result() == b"before"


def test_a_server_that_dies_in_the_middle_of_large_writes_leaves_whole_blobs_only(ceph: Ceph, bucket: str) -> None:
    store = S3Store(bucket, endpoint=ceph.endpoint, part_bytes=PART, attempts=1)
    killer = threading.Timer(0.4, ceph.kill_gateway)
    killer.start()
    written: list[bytes] = []

    def write_until_it_dies() -> None:
        while True:
            written.append(os.urandom(3 * PART))
            store.put(written[-1])

    try:
        with pytest.raises(StoreUnavailableError):
            write_until_it_dies()
    finally:
        killer.join()
        ceph.start_gateway()
    assert all(store.get(blob_digest(data)) == data for data in written[:-1])
    assert store.get(store.put(written[-1])) == written[-1]


def test_the_settings_open_it_with_the_machine_s_cache_in_front(ceph: Ceph, bucket: str, tmp_path: Path) -> None:
    environment = {
        "FARM_STORE": f"s3://{bucket}/team/b",
        "FARM_S3_ENDPOINT": ceph.endpoint,
        "FARM_S3_REGION": "eu-central-1",
        "FARM_CACHE_DIR": str(tmp_path / "machine1"),
        "FARM_SIGNING_KEYS": str(key_file(tmp_path / "keys.pem")),
    }
    digest = open_store(load_settings(environment)).put(b"data")
    other = environment | {"FARM_CACHE_DIR": str(tmp_path / "machine2"), "FARM_READ_ONLY": "1"}
    assert open_store(load_settings(other)).get(digest) == b"data"
    assert DiskStore(tmp_path / "machine2").get(digest) == b"data"


@pytest.mark.skipif(lacks_toolchain() is not None, reason="needs the CUDA toolchain")
def test_a_job_compiled_on_one_machine_is_all_hits_on_another(ceph: Ceph, bucket: str, tmp_path: Path) -> None:
    def farm(machine: str) -> Farm:
        return Farm.open(
            load_settings(
                {
                    "FARM_STORE": f"s3://{bucket}",
                    "FARM_S3_ENDPOINT": ceph.endpoint,
                    "FARM_CACHE_DIR": str(tmp_path / machine / "cache"),
                    "FARM_DATABASE_URL": f"sqlite:///{tmp_path / machine / 'farm.db'}",
                    "FARM_EXECUTOR": "inline",
                    "FARM_SIGNING_KEYS": str(key_file(tmp_path / "keys.pem")),
                }
            )
        )

    net, options = checkpoint(layer("conv1")), BuildOptions(("sm_80", "sm_90"))
    with farm("first") as first:
        [job] = first.compile([net], options)
        assert (job.status, job.done, job.hits) == (Status.SUCCEEDED, 2, 0)
    with farm("second") as second:
        [job] = second.compile([net], options)
        assert (job.status, job.done, job.hits) == (Status.SUCCEEDED, 2, 2)
        assert_right(second.verify(job.id))
