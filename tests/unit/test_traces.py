from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli.report.job_page import report_page
from farm.errors import UsageError
from farm.jobs.model import JobSet, Status, trace_id
from farm.scheduler.held_jobs import WRITE_SECONDS
from farm.worker.messages import CubinRequest, CubinResult, Failure, Fault, Request, Result
from tests.unit.farmyard import Farmyard, PlayedExecutor
from tests.unit.reported import report

pytest.importorskip("opentelemetry.proto")


class Receiver(HTTPServer):
    """An OTLP receiver over HTTP, which decodes and keeps all spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.paths: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        asked = ExportTraceServiceRequest()
        asked.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.paths.add(self.path)
        self.server.spans += [span for of in asked.resource_spans for scope in of.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def yard(tmp_path: Path, receiver: Receiver) -> Farmyard:
    yard = Farmyard(tmp_path)
    yard.settings = replace(yard.settings, otlp_endpoint=f"http://127.0.0.1:{receiver.server_port}/")
    return yard


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def names(receiver: Receiver) -> list[str]:
    return sorted(span.name for span in receiver.spans)


def test_a_job_s_trace_has_each_stage_and_the_wait_before_it(yard: Farmyard, receiver: Receiver) -> None:
    [job_id] = yard.submit("a", archs=("sm_90",))
    [job] = yard.run([job_id], capacity=1)
    assert receiver.paths == {"/v1/traces"}
    assert {span.trace_id.hex() for span in receiver.spans} == {trace_id(job_id)}
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans)
    [root] = [span for span in receiver.spans if not span.parent_span_id]
    assert root.name == "job"
    assert (attributes(root)["farm.job"], attributes(root)["farm.status"]) == (job_id, "SUCCEEDED")
    assert job.finished_at is not None
    assert root.start_time_unix_nano / 1e9 == pytest.approx(job.submitted_at.timestamp(), abs=1e-3)
    assert root.end_time_unix_nano / 1e9 == pytest.approx(job.finished_at.timestamp(), abs=1e-3)
    by_name = {name: [span for span in receiver.spans if span.name == name] for name in names(receiver)}
    assert [len(by_name[name]) for name in ("planning", "template", "cubin", "rewrite", "ptxas")] == [1, 2, 2, 2, 2]
    waits = [attributes(span) for span in by_name["wait"]]
    assert {"planning", "template", "cubin"} == {each["farm.stage"] for each in waits}
    assert {"conv1 sm_90", "conv2 sm_90"} == {attributes(span)["farm.task"] for span in by_name["cubin"]}


def test_the_log_and_the_report_name_the_trace(yard: Farmyard, tmp_path: Path) -> None:
    [job_id] = yard.submit("a")
    yard.run([job_id])
    assert f"trace {trace_id(job_id)}" in [event.text for event in yard.ledger.events(job_id)]
    assert f"trace {trace_id(job_id)}" in report_page(report(yard, job_id))
    untraced = Farmyard(tmp_path / "untraced")
    [job_id] = untraced.submit("a")
    untraced.run([job_id])
    assert not [event.text for event in untraced.ledger.events(job_id) if event.text.startswith("trace")]
    assert trace_id(job_id) not in report_page(report(untraced, job_id))


def test_every_span_lies_within_its_parent(yard: Farmyard, receiver: Receiver) -> None:
    yard.run(yard.submit("a", "b"))
    spans = {(span.trace_id, span.span_id): span for span in receiver.spans}
    children = [span for span in receiver.spans if span.parent_span_id]
    assert children
    for span in children:
        parent = spans[span.trace_id, span.parent_span_id]
        assert parent.start_time_unix_nano <= span.start_time_unix_nano
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_a_failed_job_has_a_trace_and_its_retry_another_span_of_it(yard: Farmyard, receiver: Receiver) -> None:
    def refuse(request: Request) -> Result | None:
        refused = isinstance(request, CubinRequest)
        return CubinResult(request.key, Failure(Fault.INPUT, "no registers")) if refused else None

    [job_id] = yard.submit("a")
    yard.run([job_id], refuse)
    yard.ledger.retry(JobSet((job_id,)), "again")
    yard.run([job_id])
    roots = [span for span in receiver.spans if not span.parent_span_id]
    assert [attributes(span)["farm.status"] for span in roots] == ["FAILED", "SUCCEEDED"]
    assert len({span.trace_id for span in roots}) == 1
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans)


def test_a_job_that_was_taken_over_has_one_trace(yard: Farmyard, receiver: Receiver) -> None:
    [job_id] = yard.submit("a")
    second = yard.coordinator(PlayedExecutor(yard.store))

    def taken_over(request: Request) -> Result | None:
        if isinstance(request, CubinRequest) and not taken:
            taken.append(request.key)
            yard.ledger.release(first.name)
            other.start()
        return None

    taken: list[str] = []
    other = threading.Thread(target=second.run, args=([job_id],))
    first = yard.coordinator(PlayedExecutor(yard.store, taken_over))
    [job] = first.run([job_id])
    other.join(30)
    assert job.status is Status.SUCCEEDED
    assert taken
    assert names(receiver).count("job") == 1
    assert names(receiver).count("planning") == 1


def test_a_hit_is_no_stage_after_the_request_of_a_cancelled_job(yard: Farmyard, receiver: Receiver) -> None:
    first_cubin: list[str] = []

    def cancelled(request: Request) -> Result | None:
        if isinstance(request, CubinRequest) and not first_cubin:
            first_cubin.append(request.key)
            for each in executor.submitted:
                executor.build(each)  # as another coordinator might
            yard.ledger.cancel(JobSet((job_id,)), "no longer wanted")
            next_ids.extend(yard.submit("b"))
            time.sleep(2 * WRITE_SECONDS)  # until the coordinator asks whether the job is still its own
        return None

    [job_id] = yard.submit("a")
    next_ids: list[str] = []
    executor = PlayedExecutor(yard.store, cancelled, capacity=8)
    yard.coordinator(executor).serve(drain=True)
    assert executor.dropped
    assert [yard.ledger.job(each).status for each in (job_id, *next_ids)] == [Status.CANCELLED, Status.SUCCEEDED]
    assert {"template", "cubin"}.isdisjoint(names(receiver))


def test_a_receiver_that_is_away_leaves_the_job_alone(yard: Farmyard, receiver: Receiver) -> None:
    yard.settings = replace(yard.settings, otlp_endpoint="http://127.0.0.1:9")
    [job] = yard.run(yard.submit("a"))
    assert job.status is Status.SUCCEEDED


def test_without_an_endpoint_nothing_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from tests.unit.farmyard import Farmyard; "
        f"yard = Farmyard(pathlib.Path({str(tmp_path)!r})); yard.run(yard.submit('a')); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_library_is_said_before_a_job_is_claimed(yard: Farmyard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    [job_id] = yard.submit("a")
    with pytest.raises(UsageError, match=r"traces need opentelemetry.*\[otel\]"):
        yard.run([job_id])
    assert yard.ledger.job(job_id).status is Status.PENDING
