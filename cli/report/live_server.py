"""HTTP server of the live page: read-only, with server-sent events, and a token where other machines can reach it."""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import threading
import time
from functools import partial
from importlib.resources import files
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from cli.report.job_page import report_page
from cli.report.live_page import live_page, live_view
from farm.errors import FarmError, NotFoundError, UsageError
from farm.http_server import HttpServer, PageHandler

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.config.price import Price

EVERY_SECONDS = 2.0
"""Interval at which the ledger is read while somebody watches, for all of them together."""
ALIVE_SECONDS = 15.0
"""Interval of words to a watcher to whom nothing new is sent, so that a connection that is gone is noticed."""
MOST_STREAMS = 32
"""Streams of events at once; each occupies a connection."""
LEAST_TOKEN = 16
COOKIE = "farm_token"
HTML = "text/html; charset=utf-8"
_JOB = re.compile(r"/jobs/([0-9A-Za-z-]{1,64})")
_HEADERS = {
    "Content_Security_Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X_Content_Type_Options": "nosniff",
    "X_Frame_Options": "DENY",
    "Referrer_Policy": "no-referrer",
    "Cross_Origin_Resource_Policy": "same-origin",
    "Cache_Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def checked_token(token: str) -> str:
    """A token that is long enough. Raises UsageError, without the token."""
    if not re.fullmatch(rf"[A-Za-z0-9_.~-]{{{LEAST_TOKEN},}}", token):
        raise UsageError(f"FARM_HTTP_TOKEN is too weak: expected {LEAST_TOKEN} or more of A-Z a-z 0-9 _ . ~ -")
    return token


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(32)


class LiveServer(HttpServer):
    """The live page at / and the report of each job at /jobs/ID, served inside a `with` block.

    Raises UnreachableError for an unavailable address.
    """

    def __init__(self, farm: Farm, host: str, port: int, *, token: str | None, price: Price | None = None) -> None:
        if token is None and not is_loopback(host):
            raise UsageError(f"the page at {host}:{port} is open to other machines: set FARM_HTTP_TOKEN")
        self._pages = _Pages(farm, price, token, host)
        super().__init__("page", partial(_Handler, self._pages), host, port)

    def __exit__(self, *error: object) -> None:
        self._pages.stopping.set()
        super().__exit__(*error)


class _Pages:
    """State that all connections share."""

    def __init__(self, farm: Farm, price: Price | None, token: str | None, host: str) -> None:
        self.stopping = threading.Event()
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self._farm = farm
        self._price = price
        self._token = token
        self._names = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        self._reading, self._reporting = threading.Lock(), threading.Lock()
        self._view = ""
        self._view_until = 0.0

    def view(self) -> str:
        """The part of the page that changes, read anew every few seconds. Raises FarmError."""
        with self._reading:
            if time.monotonic() >= self._view_until:
                self._view = live_view(self._farm, self._price)
                self._view_until = time.monotonic() + EVERY_SECONDS
            return self._view

    def page(self) -> str:
        """The live page. Raises FarmError."""
        with self._reading:
            return live_page(self._farm, self._price)

    def report(self, job_id: str) -> str:
        """The page of a job; one at a time is made. Raises FarmError."""
        with self._reporting:
            return report_page(self._farm.report(job_id))

    def is_host(self, header: str) -> bool:
        """Whether a Host header names this machine: a page of somebody else whose name was rebound to it does not.

        Addresses always do, since nobody can rebind them.
        """
        name = re.sub(r":\d*$", "", header.strip().lower())
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name in self._names
        return True

    def is_token(self, given: str) -> bool:
        """Whether a text equals the token; without a token every text does."""
        return self._token is None or hmac.compare_digest(given.encode(), self._token.encode())


class _Handler(PageHandler):
    def __init__(self, pages: _Pages, *arguments: Any) -> None:
        self._pages = pages
        super().__init__(*arguments)

    def serve(self) -> None:
        """Serves a page to clients with the token, under a name of this machine."""
        path, _, query = self.path.partition("?")
        if not self._pages.is_host(self.headers.get("Host", "")):
            self._say(421, "this name is not this machine's: use its address")
        elif not self._pages.is_token(self._token()):
            self._log_in(path, query)
        else:
            self._serve_path(path)

    def _serve_path(self, path: str) -> None:
        try:
            if path == "/":
                self.answer(200, self._pages.page().encode(errors="replace"), HTML, **_HEADERS)
            elif path == "/live.js":
                script = (files("cli.report") / "live.js").read_bytes()
                self.answer(200, script, "text/javascript; charset=utf-8", **_HEADERS)
            elif path == "/events":
                self._stream()
            elif job := _JOB.fullmatch(path):
                self.answer(200, self._pages.report(job[1]).encode(errors="replace"), HTML, **_HEADERS)
            else:
                self._say(404, "there are / and /jobs/ID")
        except (NotFoundError, UsageError) as error:
            self._say(404, str(error))
        except FarmError as error:
            self._say(503, str(error))

    def _token(self) -> str:
        """The token of the request's header or cookie; empty without one."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
        pairs = (each.strip().partition("=") for each in self.headers.get("Cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == COOKIE), "")

    def _log_in(self, path: str, query: str) -> None:
        """Turns a token in the address into a cookie, so that the address that stays on the screen is without it."""
        token = parse_qs(query).get("token", [""])[0]
        if (path == "/" or _JOB.fullmatch(path)) and self._pages.is_token(token):
            cookie = f"{COOKIE}={token}; HttpOnly; SameSite=Lax; Path=/"
            self.answer(303, b"", HTML, Location=path, Set_Cookie=cookie, **_HEADERS)
        else:
            self._say(401, "a token is needed: open the address with ?token=TOKEN", WWW_Authenticate="Bearer")

    def _say(self, status: int, text: str, **headers: str) -> None:
        self.answer(status, f"{text}\n".encode(errors="replace"), "text/plain; charset=utf-8", **_HEADERS, **headers)

    def _stream(self) -> None:
        if not self._pages.streams.acquire(blocking=False):
            self._say(503, "too many watch: close another page")
            return
        try:
            self._send_events()
        finally:
            self._pages.streams.release()

    def _send_events(self) -> None:
        """Sends the view whenever it has changed, until the client is gone or the server stops."""
        self.send_response(200)
        for name, value in {"Content_Type": "text/event-stream", **_HEADERS}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        sent, sent_at = "", time.monotonic()
        while True:
            try:
                event = f"data: {json.dumps(self._pages.view())}\n\n"
            except FarmError as error:
                event = f"event: trouble\ndata: {json.dumps(str(error))}\n\n"
            if event != sent:
                self.wfile.write(event.encode())
                sent, sent_at = event, time.monotonic()
            elif time.monotonic() - sent_at >= ALIVE_SECONDS:
                self.wfile.write(b": nothing new\n\n")
                sent_at = time.monotonic()
            if self._pages.stopping.wait(EVERY_SECONDS):
                return
