"""Warming: builds templates that later compiles of the same shapes find in the store, for any weights."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from farm.executors.contract import Executor
from farm.maintenance.inventory import Tell, tell_nobody
from farm.scheduler.plan import Plan
from farm.store.contract import Store
from farm.worker.cache_lookup import find_template
from farm.worker.messages import TemplateRequest, TemplateResult

WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Warmed:
    """Result of warming the templates of checkpoints."""

    hits: int
    made: int
    seconds: float
    """Total nvcc time."""
    failures: tuple[str, ...]


def missing_templates(plan: Plan, store: Store, *, recache: bool) -> list[TemplateRequest]:
    """Templates missing in the store."""
    return [request for request in plan.templates if recache or find_template(store, request.key) is None]


def make_templates(
    missing: list[TemplateRequest], executor: Executor, tell: Tell = tell_nobody
) -> list[TemplateResult]:
    """Builds templates outside of any job."""
    waiting, results = deque(missing), list[TemplateResult]()
    executor.foresee(missing)
    while len(results) < len(missing):
        while waiting and len(missing) - len(waiting) - len(results) < executor.capacity:
            executor.submit(waiting.popleft())
        executor.expect(list(waiting))
        if len(missing) - len(waiting) == len(results):
            time.sleep(WAIT_SECONDS)  # no worker has room, and no event will announce it
        results += [each for each in executor.wait(WAIT_SECONDS) if isinstance(each, TemplateResult)]
        tell(f"of {len(missing)} templates", len(results))
    return results


def warmed(plan: Plan, results: list[TemplateResult]) -> Warmed:
    """Counts hits, built templates and failures."""
    made = [each for each in results if each.failure is None and not each.hit]
    failures = tuple(each.failure.message for each in results if each.failure is not None)
    hits = len(plan.templates) - len(made) - len(failures)
    return Warmed(hits, len(made), sum(each.seconds for each in made), failures)
