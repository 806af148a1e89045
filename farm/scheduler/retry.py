"""Retries of failed requests: whether, how and when."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.keys import CubinKey, cubin_key
from codegen.toolchain.ptxas import level_of, ptxas_options
from farm.config.settings import Settings
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Retry

LOWER_LEVEL = 1
"""Optimisation level of ptxas after a timeout at the requested level."""
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 20.0


@dataclass
class Attempts:
    """Failed attempts of one request."""

    crashes: int = 0
    away: int = 0
    """Attempts that failed because the store was unreachable."""
    away_since: float | None = None
    """Time of the first of them."""


class RetryPolicy:
    """Decides about retries by the settings, the fault and the earlier attempts."""

    def __init__(self, settings: Settings, assembler: str) -> None:
        self._settings = settings
        self._assembler = assembler
        """Version of ptxas, part of a cubin's key."""

    def after(self, request: Request, failure: Failure, attempts: Attempts, now: float) -> Retry | None:
        """The next attempt, recorded in `attempts`; None if the failure is final."""
        match failure.fault:
            case Fault.CRASH if attempts.crashes < self._settings.max_retries:
                attempts.crashes += 1
                return Retry(request, failure, request)
            case Fault.AWAY:
                return self._after_outage(request, failure, attempts, now)
            case Fault.MEMORY if request.memory_limit_bytes is None:
                limit = min(2 * self._settings.tool_memory_bytes, self._settings.tool_memory_most_bytes)
                if limit > self._settings.tool_memory_bytes:
                    return Retry(request, failure, replace(request, memory_limit_bytes=limit))
            case Fault.TIME if isinstance(request, CubinRequest) and level_of(request.options) > LOWER_LEVEL:
                return Retry(request, failure, self.lower(request))
        return None

    def given_up(self, attempts: Attempts) -> Failure | None:
        """The failure of a request that crashed too often under earlier coordinators to be tried again."""
        if attempts.crashes <= self._settings.max_retries:
            return None
        return Failure(Fault.CRASH, f"its worker or coordinator died {attempts.crashes} times while it was built")

    def fields(self, request: CubinRequest) -> Mapping[str, str]:
        """The fields of the request's key."""
        return self._key(request).fields()

    def lower(self, request: CubinRequest) -> CubinRequest:
        """The request at the lower optimisation level, with its own key."""
        lower = replace(request, options=ptxas_options(LOWER_LEVEL), patch_template="")
        return replace(lower, key=self._key(lower).digest)

    def _after_outage(self, request: Request, failure: Failure, attempts: Attempts, now: float) -> Retry | None:
        since = attempts.away_since = now if attempts.away_since is None else attempts.away_since
        left = since + self._settings.away_seconds - now
        if left <= 0:
            return None
        longest = min(FIRST_DELAY_SECONDS * 2**attempts.away, LONGEST_DELAY_SECONDS)
        attempts.away += 1
        # Jitter: requests that failed together must not retry together.
        return Retry(request, failure, request, min(longest * random.uniform(0.5, 1.0), left))

    def _key(self, request: CubinRequest) -> CubinKey:
        return cubin_key(
            request.template.key,
            request.weights,
            request.part,
            request.arch,
            request.options,
            self._assembler,
            made_by=request.assembler,
        )
