"""HTTP server in threads of its own, for pages beside a coordinator: bounded, silent, read-only."""

from __future__ import annotations

import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from farm.errors import UnreachableError

MOST_CONNECTIONS = 64
"""Connections at once; later ones are closed unanswered."""


class PageHandler(BaseHTTPRequestHandler, ABC):
    """A connection, which serves one GET request (HTTP/1.0)."""

    timeout = 10.0  # for a silent client, and for the whole request of one that sends it bit by bit
    server_version, sys_version = "farm", ""

    @abstractmethod
    def serve(self) -> None:
        """Answers the request for `path`."""

    def handle(self) -> None:
        """Serves the connection; closes it if the request takes too long to arrive."""
        self._limit = threading.Timer(self.timeout, self._cut)
        self._limit.daemon = True
        self._limit.start()
        try:
            super().handle()
        finally:
            self._limit.cancel()

    def _cut(self) -> None:
        with suppress(OSError):  # it has ended at this moment
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Answers a GET request, which may take any time; other methods are refused."""
        self._limit.cancel()
        self.serve()

    def log_message(self, *_: Any) -> None:
        """Keeps requests, and tokens in their addresses, off the coordinator's stderr."""

    def answer(self, status: int, body: bytes, content_type: str, **headers: str) -> None:
        """Sends a whole answer; underscores in names of headers stand for hyphens."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


class HttpServer:
    """Serves a handler's pages inside a `with` block.

    Port 0 picks a free port. Raises UnreachableError for an unavailable address; `purpose` begins its message.
    """

    def __init__(self, purpose: str, handler: Callable[..., PageHandler], host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), handler)
        except (OSError, OverflowError) as error:
            raise UnreachableError(
                f"{purpose} cannot be served at {host}:{port} ({error}): name another port"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name=purpose, daemon=True)

    @property
    def address(self) -> str:
        """Address such as http://127.0.0.1:9400."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: Callable[..., PageHandler]) -> None:
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection, or closes it where there are too many."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of clients that went away; other errors are the program's own."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
