"""What becomes of a request that failed: whether it is tried again, how, and when."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.keys import CubinKey, cubin_key
from codegen.toolchain.ptxas import level_of, ptxas_options
from farm.config.settings import Settings
from farm.worker.messages import CubinRequest, Failure, Fault, Request, Retry

LOWER_LEVEL = 1
"""Optimisation level of ptxas used when the requested one takes too long."""
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 20.0


@dataclass
class Tries:
    """How one request has failed so far."""

    crashes: int = 0
    away: int = 0
    """How often the store did not answer."""
    away_since: float | None = None


class Retries:
    """Decides by the settings, and by how the request has failed before."""

    def __init__(self, settings: Settings, assembler: str) -> None:
        self._settings = settings
        self._assembler = assembler
        """Version of ptxas."""

    def after(self, request: Request, failure: Failure, tries: Tries, now: float) -> Retry | None:
        """How the request goes on, which is noted in its tries; None if the failure is final."""
        match failure.fault:
            case Fault.CRASH if tries.crashes < self._settings.max_retries:
                tries.crashes += 1
                return Retry(request, failure, request)
            case Fault.AWAY:
                return self._when_back(request, failure, tries, now)
            case Fault.MEMORY if request.memory_limit_bytes is None:
                limit = min(2 * self._settings.tool_memory_bytes, self._settings.tool_memory_most_bytes)
                if limit > self._settings.tool_memory_bytes:
                    return Retry(request, failure, replace(request, memory_limit_bytes=limit))
            case Fault.TIME if isinstance(request, CubinRequest) and level_of(request.options) > LOWER_LEVEL:
                return Retry(request, failure, self.lower(request))
        return None

    def fields(self, request: CubinRequest) -> Mapping[str, str]:
        """What goes into the request's key."""
        return self._key(request).fields()

    def lower(self, request: CubinRequest) -> CubinRequest:
        """The same at a lower level of ptxas, under its own key."""
        lower = replace(request, options=ptxas_options(LOWER_LEVEL))
        return replace(lower, key=self._key(lower).digest)

    def _when_back(self, request: Request, failure: Failure, tries: Tries, now: float) -> Retry | None:
        since = tries.away_since = now if tries.away_since is None else tries.away_since
        left = since + self._settings.away_seconds - now
        if left <= 0:
            return None
        longest = min(FIRST_DELAY_SECONDS * 2**tries.away, LONGEST_DELAY_SECONDS)
        tries.away += 1
        # Spread: what failed together must not come back together.
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
