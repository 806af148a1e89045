"""Exclusive maintenance: one run of a kind at a time, under a lease of the ledger."""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import suppress
from typing import Self

from farm.errors import BusyError, LeaseLostError, LedgerError
from farm.ledger import Ledger

LEASE_SECONDS = 600.0


class Exclusive:
    """Holds a lease inside a `with` block. Entering it raises BusyError while another run holds the lease."""

    def __init__(self, ledger: Ledger, name: str, lease_seconds: float = LEASE_SECONDS) -> None:
        self._ledger = ledger
        self._name = name
        self._lease_seconds = lease_seconds
        self._holder = f"{socket.gethostname()[:64]}, process {os.getpid()}, {uuid.uuid4().hex[:16]}"
        self._renewed_at = time.monotonic()

    def check(self) -> None:
        """Renews the lease when a third of it has passed; to be called before each step that must not overlap.

        Raises LeaseLostError if another run has taken the lease meanwhile.
        """
        at = time.monotonic()
        if at - self._renewed_at < self._lease_seconds / 3:
            return
        if not self._ledger.leases.renew(self._name, self._holder, self._lease_seconds):
            raise LeaseLostError(
                f"lease lost: {self._name} stood still for over {self._lease_seconds:g} s and another run began. "
                "Leave it to that one"
            )
        self._renewed_at = at

    def __enter__(self) -> Self:
        self._renewed_at = time.monotonic()
        holder = self._ledger.leases.acquire(self._name, self._holder, self._lease_seconds)
        if holder != self._holder:
            raise BusyError(
                f"{self._name} is running already ({holder.rpartition(', ')[0]}): wait until it ends, or "
                f"{self._lease_seconds / 60:g} minutes if it was killed"
            )
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(LedgerError):  # the lease ends by itself
            self._ledger.leases.release(self._name, self._holder)
