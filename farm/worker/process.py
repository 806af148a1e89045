"""A worker process: serves requests over a connection, and ends with the process that started it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread

from codegen.errors import CodegenError
from codegen.toolchain.tools import find_toolchain
from farm.config.settings import Settings
from farm.errors import FarmError
from farm.store import open_store
from farm.worker.build import Worker
from farm.worker.messages import Failure, Fault, Request, Result, failed

_MALLOC_PARAMETERS = {-1: 256 * 2**20, -3: 32 * 2**20}
"""glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, in bytes: memory that is kept when it is freed, and the least array
that is mapped alone. Assembling frees megabytes thousands of times, which the kernel would clear again each time."""


def run_worker(connection: Connection) -> None:
    """Receive the settings, then answer each request with a result, until the connection closes."""
    requests: SimpleQueue[Request] = SimpleQueue()
    settings: Settings = connection.recv()
    Thread(target=_receive, args=(connection, requests), daemon=True).start()
    build = _build_by(settings)
    while True:
        connection.send(build(requests.get()))


def _receive(connection: Connection, requests: SimpleQueue[Request]) -> None:
    """Queue requests, and end the process when the other end is gone, even during a build."""
    try:
        while True:
            requests.put(connection.recv())
    finally:
        os._exit(0)  # the kernel ends the tools


def _build_by(settings: Settings) -> Callable[[Request], Result]:
    try:
        return Worker.of(settings, open_store(settings), find_toolchain(settings.nvcc, settings.ptxas)).build
    except (CodegenError, FarmError) as error:
        reason = f"worker cannot start: {error}"
        return lambda request: failed(request, Failure(Fault.FARM, reason))


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, up to a limit; another C library than glibc is left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, size in _MALLOC_PARAMETERS.items():
            mallopt(parameter, size)


def main(descriptor: int) -> None:
    """Entry point; `descriptor` is this end of a connection to the process that started this one."""
    keep_freed_memory()
    run_worker(Connection(descriptor))
