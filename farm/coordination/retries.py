"""What becomes of a request that failed: whether it is tried again, how, and when."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from codegen.assemble import level_of, ptxas_options
from codegen.keys import CubinKey, cubin_key
from farm.settings import Settings
from farm.worker.requests import CubinRequest, Failure, Fault, Request, Retry

LOWER_LEVEL = 1
"""Of ptxas, where the level that was asked for takes too long."""
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 20.0


class Retries:
    """Counts the failures of requests by their keys, as long as these are wanted."""

    def __init__(self, settings: Settings, assembler: str) -> None:
        self._settings = settings
        self._assembler = assembler
        """Version of ptxas."""
        self._crashes: Counter[str] = Counter()
        self._away: dict[str, tuple[float, int]] = {}
        """Since when the store has been away for a request, by the monotonic clock, and how often it was tried."""

    def after(self, request: Request, failure: Failure) -> Retry | None:
        """How the request goes on; None if the failure is final."""
        match failure.fault:
            case Fault.CRASH if self._crashes[request.key] < self._settings.max_retries:
                self._crashes[request.key] += 1
                return Retry(request, failure, request)
            case Fault.AWAY:
                return self._when_back(request, failure)
            case Fault.MEMORY if request.memory_limit_bytes is None:
                limit = min(2 * self._settings.tool_memory_bytes, self._settings.tool_memory_most_bytes)
                if limit > self._settings.tool_memory_bytes:
                    return Retry(request, failure, replace(request, memory_limit_bytes=limit))
            case Fault.TIME if isinstance(request, CubinRequest) and level_of(request.options) > LOWER_LEVEL:
                return Retry(request, failure, self.lower(request))
        return None

    def forget(self, key: str) -> None:
        """The request has ended."""
        self._crashes.pop(key, None)
        self._away.pop(key, None)

    def fields(self, request: CubinRequest) -> Mapping[str, str]:
        """What goes into the request's key."""
        return self._key(request).fields()

    def lower(self, request: CubinRequest) -> CubinRequest:
        """The same at a lower level of ptxas, under its own key."""
        lower = replace(request, options=ptxas_options(LOWER_LEVEL))
        return replace(lower, key=self._key(lower).digest)

    def _when_back(self, request: Request, failure: Failure) -> Retry | None:
        now = time.monotonic()
        since, tries = self._away.get(request.key, (now, 0))
        if now - since >= self._settings.away_seconds:
            return None
        self._away[request.key] = since, tries + 1
        longest = min(FIRST_DELAY_SECONDS * 2**tries, LONGEST_DELAY_SECONDS)
        # Spread: what failed together must not come back together.
        delay = longest * random.uniform(0.5, 1.0)
        return Retry(request, failure, request, min(delay, max(0.0, since + self._settings.away_seconds - now)))

    def _key(self, request: CubinRequest) -> CubinKey:
        return cubin_key(
            request.template.key, request.weights, request.part, request.arch, request.options, self._assembler
        )
