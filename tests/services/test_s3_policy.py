"""The bucket's policy in force on a real server: each role can do its work and nothing else."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from farm.errors import StoreDeniedError
from farm.store.s3 import S3Store
from tests.infra.documents import INFRA
from tests.infra.s3_actions import RIGHTS
from tests.services.ceph import Ceph
from tests.store_contract import KEY, Place, SharedStoreContract, blob_name

ROLES = ("farm-worker", "farm-submitter", "farm-reader", "farm-keeper")
PREFIX = "farm"
PART = 5 * 2**20
RECORD = {"cubin": "ab" * 32}


@pytest.fixture(scope="session")
def roles(ceph: Ceph) -> dict[str, tuple[str, str]]:
    """A user for each role, with key and secret."""
    return {role: ceph.new_user(role) for role in ROLES}


@pytest.fixture
def behind(ceph: Ceph) -> Iterator[Any]:
    client = ceph.client()
    yield client
    client.close()


@pytest.fixture
def bucket(roles: dict[str, tuple[str, str]], behind: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """One with our policy in force, its names replaced."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"policy-{uuid.uuid4().hex}"
    behind.create_bucket(Bucket=name)
    text = (INFRA / "s3-policy.json").read_text().replace("farm-bucket", name)
    for role in ROLES:
        text = text.replace(f"arn:aws:iam::111122223333:role/{role}", f"arn:aws:iam:::user/{role}")
    behind.put_bucket_policy(Bucket=name, Policy=json.dumps(json.loads(text)))
    return name


class As:
    """Opens stores in the name of a role; notes what they call."""

    def __init__(self, ceph: Ceph, bucket: str, roles: dict[str, tuple[str, str]], environment: Any) -> None:
        self._ceph, self._bucket, self._roles, self._environment = ceph, bucket, roles, environment
        self.calls: set[str] = set()

    def store(self, role: str, **options: Any) -> S3Store:
        key, secret = self._roles[role]
        self._environment.setenv("AWS_ACCESS_KEY_ID", key)
        self._environment.setenv("AWS_SECRET_ACCESS_KEY", secret)
        store = S3Store(self._bucket, PREFIX, endpoint=self._ceph.endpoint, **options)
        events = store._client.meta.events  # boto3 takes the credentials now
        events.register("before-call.s3", lambda model, **_: self.calls.add(model.name))
        return store


@pytest.fixture
def opened(ceph: Ceph, bucket: str, roles: Any, monkeypatch: pytest.MonkeyPatch) -> As:
    return As(ceph, bucket, roles, monkeypatch)


class TestS3AsAKeeper(SharedStoreContract):
    """The whole contract of stores, with the rights of a user that also removes."""

    @pytest.fixture
    def place(self, opened: As, behind: Any, bucket: str) -> Place:
        def names() -> set[str]:
            found = behind.list_objects_v2(Bucket=bucket).get("Contents", [])
            return {each["Key"].removeprefix(f"{PREFIX}/") for each in found}

        return Place(
            open=lambda: opened.store("farm-keeper"),
            open_read_only=lambda: opened.store("farm-reader", read_only=True),
            overwrite=lambda name, data: behind.put_object(Bucket=bucket, Key=f"{PREFIX}/{name}", Body=data),
            remove=lambda name: behind.delete_object(Bucket=bucket, Key=f"{PREFIX}/{name}"),
            names=names,
        )


def test_everything_a_worker_does_uses_every_right_it_has(opened: As, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened.store("farm-worker", part_bytes=PART)
    assert store.holds(store.put(os.urandom(2 * PART)))
    assert not store.holds(KEY)
    store.put_record("cubin", KEY, RECORD)
    assert store.get_record("cubin", KEY) == RECORD
    upload_part = store._client.upload_part

    def interrupted(**arguments: Any) -> Any:
        upload_part(**arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(store._client, "upload_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put(os.urandom(2 * PART))
    snake = {"".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_") for name in opened.calls}
    assert set().union(*(RIGHTS[call] for call in snake)) == {
        "s3:GetObject",
        "s3:PutObject",
        "s3:ListBucket",
        "s3:AbortMultipartUpload",
    }


def test_a_submitter_stores_weights_and_no_result(opened: As) -> None:
    store = opened.store("farm-submitter")
    assert store.get(store.put(b"weights")) == b"weights"
    assert store.get_record("cubin", KEY) is None
    with pytest.raises(StoreDeniedError, match="may not be written"):
        store.put_record("cubin", KEY, RECORD)


def test_whoever_reads_finds_what_is_in_the_trash_and_whoever_writes_brings_it_back(opened: As) -> None:
    keeper = opened.store("farm-keeper")
    digest = keeper.put(b"weights")
    assert keeper.trash_blobs([digest], 0) == {digest}
    assert opened.store("farm-reader").get(digest) == b"weights"
    assert not list(keeper.blobs())
    for role in ("farm-worker", "farm-submitter"):
        assert opened.store(role).get(digest) == b"weights"
        assert keeper.trash_blobs([digest], 0) == {digest}


def test_a_blob_that_the_trash_refuses_stays(opened: As, behind: Any, bucket: str) -> None:
    keeper = opened.store("farm-keeper")
    digest = keeper.put(b"weights")
    policy = json.loads(behind.get_bucket_policy(Bucket=bucket)["Policy"])
    trash = f"arn:aws:s3:::{bucket}/{PREFIX}/v1/trash/*"
    policy["Statement"].append({"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": trash})
    behind.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    with pytest.raises(StoreDeniedError, match="may not be written"):
        keeper.trash_blobs([digest], 0)
    assert keeper.get(digest) == b"weights"


def test_a_reader_reads_and_is_told_what_is_missing_and_writes_nothing(opened: As) -> None:
    digest = opened.store("farm-worker").put(b"cubin")
    opened.store("farm-worker").put_record("cubin", KEY, RECORD)
    reader = opened.store("farm-reader")
    assert reader.get(digest) == b"cubin"
    assert reader.get_record("cubin", KEY) == RECORD
    assert reader.get(KEY) is None
    assert not reader.holds(KEY)
    for write in (lambda: reader.put(b"other"), lambda: reader.put_record("cubin", KEY, {})):
        with pytest.raises(StoreDeniedError, match="may not be written"):
            write()


@pytest.mark.parametrize("role", ROLES)
def test_no_role_reaches_what_is_beside_the_prefix(opened: As, behind: Any, bucket: str, role: str) -> None:
    behind.put_object(Bucket=bucket, Key="payroll", Body=b"x")
    client = opened.store(role)._client
    for call in (
        lambda: client.get_object(Bucket=bucket, Key="payroll"),
        lambda: client.put_object(Bucket=bucket, Key="payroll", Body=b"y"),
        lambda: client.delete_object(Bucket=bucket, Key="payroll"),
        lambda: client.list_objects_v2(Bucket=bucket, Prefix="pay"),
        lambda: client.get_bucket_policy(Bucket=bucket),
        lambda: client.put_bucket_policy(Bucket=bucket, Policy="{}"),
    ):
        with pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
            call()
    with suppress(client.exceptions.ClientError):  # a refusal of one object may be in the answer
        client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "payroll"}]})
    assert behind.get_object(Bucket=bucket, Key="payroll")["Body"].read() == b"x"


@pytest.mark.parametrize("role", sorted({*ROLES} - {"farm-keeper"}))
def test_only_a_keeper_removes_anything(opened: As, behind: Any, bucket: str, role: str) -> None:
    behind.put_object(Bucket=bucket, Key=f"{PREFIX}/{blob_name(KEY)}", Body=b"x")
    client = opened.store(role)._client
    with pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
        client.delete_object(Bucket=bucket, Key=f"{PREFIX}/{blob_name(KEY)}")
    with suppress(client.exceptions.ClientError):
        client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": f"{PREFIX}/{blob_name(KEY)}"}]})
    assert behind.head_object(Bucket=bucket, Key=f"{PREFIX}/{blob_name(KEY)}")


def test_the_server_takes_the_lifecycle(behind: Any, bucket: str) -> None:
    rules = json.loads((INFRA / "s3-lifecycle.json").read_text())
    behind.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    found = behind.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert {rule["ID"] for rule in found} == {rule["ID"] for rule in rules["Rules"]}
