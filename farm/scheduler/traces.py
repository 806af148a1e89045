"""Traces of jobs: a span for each stage and for the wait before it. The only importer of opentelemetry.

A trace is exported by the coordinator that ends its job, so a job that was taken over has one trace, of its last try.
A cancelled job has none, since no coordinator ends it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from farm.config.settings import redacted
from farm.errors import UsageError
from farm.extras import way_out
from farm.jobs.model import Job, trace_id
from farm.scheduler.clock import Clock
from farm.scheduler.scheduler import CubinDone, TemplateDone
from farm.worker.messages import CubinResult, Failure

EXPORT_SECONDS = 5.0
"""Longest time that one export of spans may take, with its retries."""
QUEUED_SPANS = 100_000
"""Most spans that wait for a slow receiver; further ones are dropped."""


@dataclass(frozen=True)
class Stage:
    """A stage of a job; times are a coordinator's clock."""

    name: str
    ready: float
    """Time from which the stage waited to begin."""
    began: float
    ended: float
    attributes: Mapping[str, str]
    steps: tuple[tuple[str, float], ...] = ()
    """Tools of the stage and their seconds, in order; the last one ends with the stage."""


@dataclass(frozen=True)
class SpanTimes:
    """A span before it has an id; times in seconds since 1970."""

    name: str
    began: float
    ended: float
    attributes: Mapping[str, str | int]
    children: tuple[SpanTimes, ...] = ()


@dataclass
class JobTimes:
    """The stages of a job that a coordinator holds, so far."""

    planned: float = -math.inf
    templates: dict[str, float] = field(default_factory=dict)
    """Moment at which each template was there, by key."""
    stages: list[Stage] = field(default_factory=list)


class Traces:
    """Collects the stages of a coordinator's jobs, and exports the trace of each when it ends.

    Raises UsageError without opentelemetry.
    """

    def __init__(self, endpoint: str, clock: Clock) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise UsageError(
                f"traces need opentelemetry, which cannot be imported ({error}): {way_out('otel')}, "
                "or unset FARM_OTLP_ENDPOINT"
            ) from None
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
        self._processor = BatchSpanProcessor(exporter, max_queue_size=QUEUED_SPANS)
        self._clock = clock

    def planned(self, jobs: Iterable[JobTimes], began: float) -> None:
        """The planning of jobs that were claimed at `began` has ended."""
        now = self._clock.now()
        for job in jobs:
            job.planned = now
            job.stages.append(Stage("planning", -math.inf, began, now, {}))

    def template_done(self, jobs: Iterable[JobTimes], done: TemplateDone) -> None:
        """A template is there or has failed; a cache hit is no stage."""
        now = self._clock.now()
        for job in jobs:
            job.templates[done.request.key] = now
            if done.submitted_at is not None:
                began = max(done.submitted_at, job.planned)
                job.stages.append(Stage("template", job.planned, began, now, {"farm.task": done.request.name}))

    def cubin_done(self, jobs: Iterable[tuple[JobTimes, str]], done: CubinDone) -> None:
        """A cubin is there or has failed; the texts are its display names in the jobs. A cache hit is no stage."""
        if done.submitted_at is None:
            return
        now = self._clock.now()
        for job, name in jobs:
            ready = job.templates.get(done.request.template.key, job.planned)
            began = max(done.submitted_at, ready)
            job.stages.append(Stage("cubin", ready, began, now, {"farm.task": name}, _steps(done.result)))

    def ended(self, job: Job, times: JobTimes) -> None:
        """Exports the trace of a job that this coordinator has just ended."""
        if job.finished_at is not None:  # else somebody has already started it again
            finished = job.finished_at.timestamp()
            self._export(job, _job_span(job, times.stages, finished, finished - self._clock.now()))

    def close(self) -> None:
        """Exports what is still queued; waits for a receiver that does not answer for a few seconds."""
        self._processor.shutdown()

    def _export(self, job: Job, root: SpanTimes) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, TraceFlags

        resource = Resource.create({"service.name": "farm"})
        number = 0

        def export(span: SpanTimes, parent: SpanContext | None) -> None:
            nonlocal number
            digest = hashlib.sha256(f"{job.id} {job.tries} {number}".encode()).digest()
            number += 1
            span_id = int.from_bytes(digest[:8], "big")
            context = SpanContext(int(trace_id(job.id), 16), span_id, False, TraceFlags(TraceFlags.SAMPLED))
            times = {"start_time": int(span.began * 1e9), "end_time": int(span.ended * 1e9)}
            self._processor.on_end(ReadableSpan(span.name, context, parent, resource, dict(span.attributes), **times))
            for child in span.children:
                export(child, context)

        export(root, None)


@contextmanager
def open_traces(endpoint: str | None, clock: Clock) -> Iterator[Traces | None]:
    """The traces of a coordinator; None without an endpoint, which then imports nothing."""
    if endpoint is None:
        yield None
        return
    traces = Traces(endpoint, clock)
    try:
        yield traces
    finally:
        traces.close()


def _steps(result: CubinResult) -> tuple[tuple[str, float], ...]:
    made = result.made
    if isinstance(made, Failure) or result.hit:
        return ()
    steps = (
        ("skeleton", result.skeleton_seconds),
        ("rewrite", made.rewrite_seconds),
        (made.assembler, made.ptxas_seconds),
    )
    return tuple((name, seconds) for name, seconds in steps if seconds > 0)


def _job_span(job: Job, stages: Sequence[Stage], finished: float, offset: float) -> SpanTimes:
    """The span of a job with those of its stages; `offset` leads from the coordinator's clock to the database's."""
    submitted = job.submitted_at.timestamp()
    children: list[SpanTimes] = []
    for stage in stages:
        ready, began, ended = (max(submitted, offset + at) for at in (stage.ready, stage.began, stage.ended))
        if began > ready:
            children.append(SpanTimes("wait", ready, began, {"farm.stage": stage.name, **stage.attributes}))
        steps, at = [], ended
        for name, seconds in reversed(stage.steps):
            steps.append(SpanTimes(name, max(began, at - seconds), at, {}))
            at = max(began, at - seconds)
        children.append(SpanTimes(stage.name, began, ended, stage.attributes, tuple(reversed(steps))))
    attributes: dict[str, str | int] = {
        "farm.job": job.id,
        "farm.name": job.name,
        "farm.status": job.status.value,
        "farm.reason": redacted(job.reason),
        "farm.try": job.tries,
        "farm.cubins": job.total,
        "farm.hits": job.hits,
    }
    return SpanTimes("job", submitted, finished, attributes, tuple(children))
