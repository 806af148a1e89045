"""The address of a Ray cluster."""

from __future__ import annotations

import re
import socket

CONNECT_SECONDS = 10.0


def host_and_port(address: str) -> tuple[str, int] | None:
    """Host and port of ray://HOST:PORT or HOST:PORT; None if it is neither."""
    match = re.fullmatch(r"(?:ray://)?\[?([^/\]]+)\]?:(\d+)", address)
    return (match[1], int(match[2])) if match else None


def knock(address: str) -> None:
    """Raises OSError where nobody listens: Ray itself would try for minutes, and say so on stderr."""
    if place := host_and_port(address):
        socket.create_connection(place, timeout=CONNECT_SECONDS).close()
