"""The live page over real connections: what it shows, and to whom."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import cli.report.live_server
import farm.http_server
from cli.main import run
from cli.report.live_server import LiveServer, checked_token, is_loopback
from farm.api import Farm
from farm.config.price import Price
from farm.errors import UsageError
from tests.unit.farmyard import Farmyard
from tests.unit.reported import HOSTILE

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Farmyard]:
    yard = Farmyard(tmp_path)
    yield yard
    yard.ledger.close()


@pytest.fixture
def live(yard: Farmyard, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr(cli.report.live_server, "EVERY_SECONDS", 0.05)
    with LiveServer(of(yard), "127.0.0.1", 0, token=None) as server:
        yield server


@pytest.fixture
def guarded(yard: Farmyard) -> Iterator[LiveServer]:
    with LiveServer(of(yard), "0.0.0.0", 0, token=TOKEN) as server:
        yield server


def of(yard: Farmyard) -> Farm:
    return Farm(yard.settings, yard.store, yard.ledger)


class Answer:
    """An answer that was read to its end."""

    def __init__(self, server: LiveServer, path: str, method: str = "GET", **headers: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.address).port, timeout=10)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        self.status, self.headers, self.text = answer.status, answer.headers, answer.read().decode()
        connection.close()


def events(server: LiveServer) -> Iterator[str]:
    """The views of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(server.address).port, timeout=10)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    try:
        while line := answer.readline().decode():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))
    finally:
        connection.close()


def test_the_page_shows_jobs_workers_and_the_cache(yard: Farmyard) -> None:
    yard.run(yard.submit("one", "two"))
    [waits] = yard.submit("waits")
    yard.ledger.coordinators.register("c", "node-7", serves=True, lease_seconds=60)
    worker = {"node": "node-8", "cpus": 16, "running": 3, "pending": 2, "finished": 7, "failed": 1, "reason": "is full"}
    yard.ledger.coordinators.beat("c", 60, [worker])
    with LiveServer(of(yard), "127.0.0.1", 0, token=None, price=Price(3600, "EUR")) as server:
        page = Answer(server, "/")
    assert page.status == 200
    assert page.text.count('class="job"') == 4
    assert f'href="/jobs/{waits}"' in page.text
    assert "4 of 4 cubins, 4 from the cache" in page.text
    assert "16 CPUs, 3 running, 2 pending, 7 finished, 1 failed; is full" in page.text
    assert "50.0%" in page.text
    assert "EUR) spent" in page.text


def test_names_are_escaped_and_the_browser_may_load_nothing_from_elsewhere(yard: Farmyard, live: LiveServer) -> None:
    yard.submit(HOSTILE)
    for page in (Answer(live, "/"), Answer(live, "/jobs/latest"), Answer(live, f"/jobs/{HOSTILE[1:7]}")):
        assert "<script>document" not in page.text
        assert "<img src=x" not in page.text
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert page.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in page.headers
    assert "<script>document" not in next(events(live))


def test_a_watcher_is_sent_what_changes(yard: Farmyard, live: LiveServer) -> None:
    views = events(live)
    assert "No jobs yet" in next(views)
    yard.submit("arrives")
    assert "arrives" in next(views)


def test_a_jobs_page_is_its_report_and_there_is_nothing_else(yard: Farmyard, live: LiveServer) -> None:
    [job] = yard.submit("one")
    yard.run([job])
    assert "<h2>Layers</h2>" in Answer(live, f"/jobs/{job}").text
    for path in ("/jobs/", "/jobs/ffffffff", "/jobs/..", "/jobs/../../etc/passwd", "//evil.example", "/page.py", "/x"):
        assert Answer(live, path).status == 404, path
    for method in ("POST", "PUT", "DELETE", "TRACE", "OPTIONS"):
        assert Answer(live, "/", method).status == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *[(name, 200) for name in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8080", "10.0.0.7")],
        *[(name, 421) for name in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil")],
    ],
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(live: LiveServer, host: str, status: int) -> None:
    assert Answer(live, "/", Host=host).status == status


def test_other_machines_need_the_token(guarded: LiveServer) -> None:
    for path in ("/", "/events", "/live.js", "/jobs/latest", "/?token=", "/?token=wrong", "/x"):
        assert Answer(guarded, path).status == 401, path
    for headers in ({"Authorization": "Bearer wrong"}, {"Cookie": "farm_token="}, {"Cookie": "a; farm_token"}):
        assert Answer(guarded, "/", **headers).status == 401
    assert Answer(guarded, "/", Authorization=f"Bearer {TOKEN}").status == 200


def test_a_token_in_the_address_becomes_a_cookie(guarded: LiveServer) -> None:
    answer = Answer(guarded, f"/?token={TOKEN}")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax"} <= set(attributes)
    assert Answer(guarded, "/", Cookie=f"other=1; {cookie}").status == 200
    assert Answer(guarded, f"//evil.example?token={TOKEN}").status == 401


def test_a_token_is_never_printed(guarded: LiveServer, capfd: pytest.CaptureFixture[str]) -> None:
    for path in (f"/?token={TOKEN}", f"/x?token={TOKEN}", f"/jobs/{TOKEN}"):
        assert TOKEN not in Answer(guarded, path, Authorization=f"Bearer {TOKEN}").text or path.startswith("/jobs")
    assert TOKEN not in "".join(capfd.readouterr())


@pytest.mark.parametrize("token", ["", "short", "with space in the middle", "semicolon;semicolon;", "new\nline" * 4])
def test_a_weak_token_is_refused_without_being_told(token: str) -> None:
    with pytest.raises(UsageError, match="expected 16 or more") as caught:
        checked_token(token)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("node", False)],
)
def test_only_loopback_is_this_machine_alone(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


def test_streams_and_connections_are_bounded(yard: Farmyard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.report.live_server, "MOST_STREAMS", 2)
    monkeypatch.setattr(farm.http_server, "MOST_CONNECTIONS", 4)
    with LiveServer(of(yard), "127.0.0.1", 0, token=None) as server, ExitStack() as stack:
        streams = [events(server) for _ in range(2)]
        for stream in streams:
            next(stream)
        assert Answer(server, "/events").status == 503
        port = urlsplit(server.address).port
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", port or 0)))
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            Answer(server, "/")
        for stream in streams:
            stream.close()  # type: ignore[attr-defined] # a generator


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("0.0.0.0:0", "open to other machines: set FARM_HTTP_TOKEN"),
        ("127.0.0.1", "--http 127.0.0.1: expected HOST:PORT"),
        ("127.0.0.1:99999", "expected HOST:PORT"),
        ("http://127.0.0.1:80", "expected HOST:PORT"),
    ],
)
def test_serving_to_others_without_a_token_or_nowhere_is_an_error(
    address: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_STORE", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("FARM_DATABASE_URL", f"sqlite:///{tmp_path / 'farm.db'}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("FARM_HTTP_TOKEN", raising=False)
    assert run(["serve", "--drain", "--http", address]) == 2
    assert words in capsys.readouterr().err
