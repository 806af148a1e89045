"""HTTP endpoints: /metrics for Prometheus, /livez and /readyz for probes. The only importer of prometheus_client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from farm.errors import FarmError, UsageError
from farm.extras import way_out
from farm.http_server import HttpServer, PageHandler
from farm.jobs.model import Status
from farm.ledger import Ledger

HOST = "127.0.0.1"
"""Default host: reachable from this machine only."""
KEEP_SECONDS = 5.0
"""Lifetime of a cached page, so that frequent requests do not load the database."""


class LedgerCollector:
    """Collector of the ledger's numbers, read on request.

    All are gauges: a retry or `farm db prune` removes results, and a falling counter would look like a restart.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Any]:
        """Metrics for prometheus_client. Raises LedgerError."""
        from prometheus_client.core import GaugeMetricFamily

        counts, statistics = self._ledger.counts(), self._ledger.statistics.read(all_time=True)
        jobs = GaugeMetricFamily("farm_jobs", "Jobs in the ledger by state.", labels=["status"])
        for status in Status:
            jobs.add_metric([status], counts.get(status, 0))
        yield jobs
        stages = {"template": statistics.template, "cubin": statistics.cubin}
        for name, words in (
            ("hits", "Look-ups that the store answered."),
            ("misses", "Look-ups after which something was made."),
            ("spent_seconds", "Seconds of nvcc (template) and ptxas (cubin)."),
            ("saved_seconds", "Seconds of nvcc and ptxas that hits saved."),
        ):
            of_stage = GaugeMetricFamily(f"farm_cache_{name}", words, labels=["stage"])
            for stage, values in stages.items():
                of_stage.add_metric([stage], getattr(values, name))
            yield of_stage
        cubins = GaugeMetricFamily("farm_cubin_bytes", "Bytes of cubins by how they came to be.", labels=["outcome"])
        cubins.add_metric(["built"], statistics.built_bytes)
        cubins.add_metric(["hit"], statistics.hit_bytes)
        yield cubins
        yield GaugeMetricFamily("farm_cubins_failed", "Cubins that could not be made.", value=statistics.failed)
        fmas = GaugeMetricFamily("farm_fmas", "Multiply-adds of all cubins.", labels=["fate"])
        fmas.add_metric(["kept"], statistics.fmas_kept)
        fmas.add_metric(["deleted"], statistics.fmas_deleted)
        yield fmas
        alive = [each for each in self._ledger.coordinators.all() if each.alive]
        yield GaugeMetricFamily("farm_coordinators", "Coordinators that are alive.", value=len(alive))
        workers = [worker for each in alive for worker in each.workers]
        for name, words in (
            ("running", "Builds that run."),
            ("pending", "Builds that workers have and do not run yet."),
            ("finished", "Builds that ended, of coordinators that are alive."),
            ("failed", "Builds that ended without what was asked for."),
        ):
            value = sum(int(worker.get(name, 0)) for worker in workers)
            yield GaugeMetricFamily(f"farm_builds_{name}", words, value=value)


class MetricsServer(HttpServer):
    """HTTP server of the metrics, active inside a `with` block.

    /livez answers while the process does: without the database, whose absence a coordinator waits out. /readyz asks
    the database.
    Port 0 picks a free port. Raises UsageError without prometheus_client, UnreachableError for an unavailable port.
    """

    def __init__(self, ledger: Ledger, port: int, host: str = HOST) -> None:
        try:
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import CONTENT_TYPE_LATEST
        except ImportError as error:
            raise UsageError(
                f"metrics need prometheus_client, which cannot be imported ({error}): {way_out('metrics')}"
            ) from None
        registry = CollectorRegistry()
        registry.register(LedgerCollector(ledger))
        page = _Page(ledger, registry, CONTENT_TYPE_LATEST)
        super().__init__("metrics", page.handler(), host, port)


class _Page:
    """A page, cached for KEEP_SECONDS."""

    def __init__(self, ledger: Ledger, registry: Any, content_type: str) -> None:
        self._ledger = ledger
        self._registry = registry
        self._content_type = content_type
        self._asking = threading.Lock()
        self._kept = b""
        self._kept_until = 0.0

    def metrics(self) -> bytes:
        from prometheus_client import generate_latest

        with self._asking:
            if time.monotonic() >= self._kept_until:
                self._kept = generate_latest(self._registry)
                self._kept_until = time.monotonic() + KEEP_SECONDS
            return self._kept

    def alive(self) -> bytes:
        return b"ok\n"

    def ready(self) -> bytes:
        self._ledger.coordinators.any_serves()
        return b"ok\n"

    def handler(self) -> type[PageHandler]:
        answers = {
            "/metrics": (self.metrics, self._content_type),
            "/livez": (self.alive, "text/plain"),
            "/readyz": (self.ready, "text/plain"),
        }

        class Handler(PageHandler):
            def serve(self) -> None:
                """Serves the pages; other paths are 404."""
                make, content_type = answers.get(self.path.partition("?")[0], (None, "text/plain"))
                if make is None:
                    self.answer(404, b"there are /metrics, /livez and /readyz\n", "text/plain")
                    return
                try:
                    self.answer(200, make(), content_type)
                except FarmError as error:
                    self.answer(503, f"{error}\n".encode(), "text/plain")

        return Handler
