"""Writes of blobs in threads, while their digests are used already."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from types import TracebackType
from typing import Protocol, Self

from farm.store.contract import Store, blob_digest

PUTS_AT_ONCE = 8
"""Blobs written concurrently, which also limits those in memory: a disk's sync or a bucket's answer takes long."""


class BlobWriter(Protocol):
    """A store, as far as blobs are only written to it."""

    def put(self, data: bytes) -> str:
        """Writes a blob and returns its digest."""


class BackgroundPuts:
    """Writes blobs to a store in threads; leaving the `with` block waits until all are written.

    Raises the first error of the store at a later `put`, or at the end of the block.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(PUTS_AT_ONCE)
        self._room = BoundedSemaphore(PUTS_AT_ONCE)
        self._begun: deque[Future[str]] = deque()

    def put(self, data: bytes) -> str:
        """Begins to write a blob, once fewer than PUTS_AT_ONCE are being written; returns its digest."""
        self._room.acquire()
        future = self._pool.submit(self._store.put, data)
        future.add_done_callback(lambda _: self._room.release())
        self._begun.append(future)
        while self._begun and self._begun[0].done():
            self._begun.popleft().result()
        return blob_digest(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=error is not None)
        if error is None:
            for future in self._begun:
                future.result()
