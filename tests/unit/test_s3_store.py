"""The S3 store's reactions to answers that a healthy server gives rarely."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.errors import NoBucketError, StoreDeniedError, StoreError, StoreUnavailableError
from farm.store.contract import blob_digest
from farm.store.s3 import S3Store

DATA = b"data"
DIGEST = blob_digest(DATA)
SECRET = "a-secret-that-nobody-sees"


def answer(status: str, body: bytes = b"", length: int | None = None, headers: str = "") -> bytes:
    sent = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n{headers}Content-Length: {sent}\r\n\r\n".encode() + body


def error(status: str, code: str) -> bytes:
    return answer(status, f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode())


FOUND = answer("200 OK", DATA)
BROKEN = answer("200 OK", DATA[:2], len(DATA))
MISSING = error("404 Not Found", "NoSuchKey")
BUSY = error("503 Service Unavailable", "ServiceUnavailable")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ada")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@contextmanager
def server(*answers: bytes) -> Iterator[tuple[str, list[str]]]:
    """Gives these answers, one a connection; its address, and the first line of each request so far."""
    seen: list[str] = []

    def serve() -> None:
        for each in answers:
            try:
                connection, _ = listening.accept()
            except OSError:  # the test has ended
                return
            with connection, connection.makefile("rb") as request:
                if not request.peek(1)[:1].isalpha():  # TLS
                    continue
                lines = list(iter(request.readline, b"\r\n"))
                seen.append(lines[0].decode().rpartition(" ")[0])
                header = dict(line.decode().lower().rstrip().split(": ", 1) for line in lines[1:])
                if header.get("expect") == "100-continue":
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.read(int(header.get("content-length", 0)))
                connection.sendall(each)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", seen
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    with server(BROKEN, BROKEN, FOUND) as (endpoint, seen):
        assert S3Store("bucket", endpoint=endpoint).get(DIGEST) == DATA
    assert len(seen) == 3
    with server(BROKEN, BROKEN, BROKEN) as (endpoint, _), pytest.raises(StoreUnavailableError, match="does not answer"):
        S3Store("bucket", endpoint=endpoint).get(DIGEST)


def test_a_busy_server_is_asked_again_and_then_unavailable() -> None:
    with server(BUSY, BUSY, FOUND) as (endpoint, _):
        assert S3Store("bucket", endpoint=endpoint, attempts=3).get(DIGEST) == DATA
    with (
        server(BUSY, BUSY) as (endpoint, seen),
        pytest.raises(StoreUnavailableError, match=r"cannot be read now \(ServiceUnavailable\): try again later"),
    ):
        S3Store("bucket", endpoint=endpoint, attempts=2).get(DIGEST)
    assert len(seen) == 2


@pytest.mark.parametrize(
    "lost", ["412 Precondition Failed PreconditionFailed", "409 Conflict ConditionalRequestConflict"]
)
def test_who_loses_to_another_writer_looks_and_is_content(lost: str) -> None:
    status, _, code = lost.rpartition(" ")
    with server(MISSING, error(status, code), FOUND) as (endpoint, seen):
        assert S3Store("bucket", endpoint=endpoint).put(DATA) == DIGEST
    assert [line.split()[0] for line in seen] == ["GET", "PUT", "GET"]


def test_who_loses_to_a_writer_of_something_else_writes_again() -> None:
    lost, wrong = error("412 Precondition Failed", "PreconditionFailed"), answer("200 OK", b"dada")
    with server(MISSING, lost, wrong, answer("200 OK")) as (endpoint, seen):
        assert S3Store("bucket", endpoint=endpoint).put(DATA) == DIGEST
    assert [line.split()[0] for line in seen] == ["GET", "PUT", "GET", "PUT"]


def test_an_upload_whose_completion_was_answered_into_the_void_is_a_success() -> None:
    begun = answer("200 OK", b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
    part = answer("200 OK", headers='ETag: "e"\r\n')
    gone = error("404 Not Found", "NoSuchUpload")
    with server(MISSING, begun, part, part, BUSY, gone, gone, FOUND) as (endpoint, seen):
        assert S3Store("bucket", endpoint=endpoint, part_bytes=2).put(DATA) == DIGEST
    assert [line.split()[0] for line in seen] == ["GET", "POST", "PUT", "PUT", "POST", "POST", "DELETE", "GET"]


@pytest.mark.parametrize(
    ("status", "code", "kind", "message"),
    [
        ("404 Not Found", "NoSuchBucket", NoBucketError, "bucket bucket does not exist"),
        ("403 Forbidden", "AccessDenied", StoreDeniedError, r"may not be read \(AccessDenied\): check the credentials"),
        ("400 Bad Request", "ExpiredToken", StoreDeniedError, r"\(ExpiredToken\)"),
        (
            "400 Bad Request",
            "AuthorizationHeaderMalformed",
            StoreError,
            r"\(AuthorizationHeaderMalformed\).*FARM_S3_REGION",
        ),
    ],
)
def test_a_refusal_is_an_error_in_our_words(status: str, code: str, kind: type[StoreError], message: str) -> None:
    with server(error(status, code)) as (endpoint, _), pytest.raises(kind, match=message) as caught:
        S3Store("bucket", endpoint=endpoint).get(DIGEST)
    assert not isinstance(caught.value, StoreUnavailableError)  # waiting does not help
    assert SECRET not in str(caught.value)


def test_nobody_listening_is_unavailable_and_names_the_setting() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(StoreUnavailableError, match=r"does not answer \(EndpointConnectionError\).*FARM_S3_ENDPOINT"):
        S3Store("bucket", endpoint=endpoint, attempts=1).get(DIGEST)


def test_a_server_without_tls_under_an_address_with_tls_is_an_error_in_words() -> None:
    with server(FOUND, FOUND) as (endpoint, _), pytest.raises(StoreError, match="TLS fails") as caught:
        S3Store("bucket", endpoint=endpoint.replace("http", "https"), attempts=1).get(DIGEST)
    assert not isinstance(caught.value, StoreUnavailableError)


def test_no_credentials_at_all_are_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with server() as (endpoint, _):
        with pytest.raises(StoreDeniedError, match=r"boto3 finds no credentials .* Set AWS_PROFILE"):
            S3Store("bucket", endpoint=endpoint).get(DIGEST)
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        with pytest.raises(StoreDeniedError, match="ProfileNotFound"):
            S3Store("bucket", endpoint=endpoint).get(DIGEST)


def test_a_name_that_no_bucket_has_is_an_error_in_words() -> None:
    with pytest.raises(StoreError, match=r"\(ParamValidationError\): correct FARM_STORE"):
        S3Store("no bucket", endpoint="http://127.0.0.1:1").get(DIGEST)
