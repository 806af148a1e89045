"""Conversions between rows of the tables and values."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from codegen.ir.launch import Launch
from codegen.ir.layer_spec import SkippedLayer, spec_from_json
from codegen.ir.tiling import Part, Tiling
from farm.jobs.model import (
    JOB_FORMAT,
    NO_COORDINATOR,
    Build,
    BuildOptions,
    BuildResult,
    Event,
    Job,
    NewJob,
    Outcome,
    Status,
    TilingChoice,
    count_cubins,
)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def job_row(job: NewJob, submission: str, at: float) -> dict[str, Any]:
    """The row of a new job; `at` in seconds since 1970."""
    return {
        "id": job.id,
        "submission": submission,
        "name": job.name,
        "model": job.model,
        "model_digest": job.model_digest,
        "request_digest": job.request_digest,
        "network": job.network,
        "options": job.options.to_json(),
        "skipped": [asdict(layer) for layer in job.skipped],
        "status": Status.PENDING,
        "reason": "",
        "fault": "",
        "stage": "",
        "done": 0,
        "total": count_cubins(job.builds, job.options),
        "hits": 0,
        "running": 0,
        "tries": 0,
        "claims": 0,
        "format": JOB_FORMAT,
        "submitted_at": at,
    }


def job_of_row(row: Any) -> Job:
    """The job of a row; one that this version cannot read has no options, so that other jobs can still be listed."""
    status = Status(row.status)
    options, skipped, unreadable = BuildOptions(()), tuple[SkippedLayer, ...](), ""
    try:
        options = BuildOptions.from_json(row.options)
        skipped = tuple(SkippedLayer(**layer) for layer in row.skipped)
    except Exception as error:  # noqa: BLE001 - another version may have written anything
        unreadable = unreadable_text(row.id, error)
    return Job(
        id=row.id,
        submission=row.submission,
        submitter=row.submitter,
        name=row.name,
        model=row.model,
        model_digest=row.model_digest,
        network=row.network,
        options=options,
        status=status,
        reason=_reason(row, status),
        fault=row.fault,
        stage=row.stage,
        done=row.done,
        total=row.total,
        hits=row.hits,
        running=row.running,
        tries=row.tries,
        submitted_at=datetime.fromtimestamp(row.submitted_at, UTC),
        started_at=_moment(row.started_at),
        ends_at=_moment(row.ends_at),
        finished_at=_moment(row.finished_at),
        skipped=skipped,
        claims=row.claims,
        unreadable=unreadable,
    )


def unreadable_text(job_id: str, error: Exception) -> str:
    """The message about a job that cannot be read because of an exception."""
    return f"job {job_id} cannot be read ({type(error).__name__}: {error}): use the version of farm that submitted it"


def _reason(row: Any, status: Status) -> str:
    """The recorded reason; for an unfinished job else the one that follows from the live coordinators."""
    served = row.served_format is not None and row.served_format >= row.format
    if status is Status.PENDING and not served:
        if row.served_format is not None or row.format > JOB_FORMAT:
            return f"waits for a coordinator of format {row.format}"
        return str(row.reason) or (NO_COORDINATOR if row.tries else "")
    if status is Status.RUNNING and row.lease_until is not None and row.lease_until < row.now:
        seconds = f"{row.now - row.lease_until:.0f} s"
        if served:
            return f"its coordinator died {seconds} ago: another one takes over"
        return NO_COORDINATOR.replace(":", f" for {seconds}:", 1)
    return str(row.reason)


def build_row(build: Build, job_id: str) -> dict[str, Any]:
    """The row of a build; the database gives it an id."""
    return {
        "job": job_id,
        "position": build.position,
        "layer": build.layer,
        "input": build.input,
        "output": build.output,
        "spec": build.spec.to_json(),
        "tiling": build.tiling.to_json(),
        "weights": build.weights,
        "nonzeros": build.nonzeros,
        "mask": build.mask,
        "parts": parts_json(build),
        "residual": build.residual,
        "rows": build.rows or 0,
        "folded": list(build.folded),
        "choices": [asdict(choice) for choice in build.choices],
        "gate": build.gate,
    }


def parts_json(build: Build) -> Any:
    """The parts of a build as JSON: an object if the layer is whole for some architectures, else a list."""
    parts = [[part.first, part.end] for part in build.parts]
    return {"parts": parts, "whole": list(build.whole)} if build.whole else parts


def build_of_row(row: Any) -> Build:
    """The build of a row."""
    parts = row.parts if isinstance(row.parts, dict) else {"parts": row.parts, "whole": []}
    return Build(
        id=row.id,
        job=row.job,
        position=row.position,
        layer=row.layer,
        input=row.input,
        output=row.output,
        spec=spec_from_json(row.spec),
        tiling=Tiling(**row.tiling),
        weights=row.weights,
        nonzeros=row.nonzeros,
        mask=row.mask,
        parts=tuple(Part(first, end) for first, end in parts["parts"]),
        whole=tuple(parts["whole"]),
        residual=row.residual,
        rows=row.rows or None,
        folded=tuple(row.folded),
        choices=tuple(map(_choice_of_json, row.choices)),
        gate=row.gate,
    )


def _choice_of_json(value: dict[str, Any]) -> TilingChoice:
    measured = tuple((rows, microseconds) for rows, microseconds in value["measured"])
    return TilingChoice(**{**value, "batches": tuple(value["batches"]), "measured": measured})


def result_row(result: BuildResult, job_id: str, at: float) -> dict[str, Any]:
    """The row of a result of that job; `at` in seconds since 1970."""
    launch = None if result.launch is None else result.launch.to_json()
    return {**vars(result), "launch": launch, "job": job_id, "recorded_at": at}


def result_of_row(row: Any) -> BuildResult:
    """The result of a row."""
    values = {name: value for name, value in row._mapping.items() if name not in ("job", "recorded_at")}
    launch = None if row.launch is None else Launch.from_json(row.launch)
    return BuildResult(**{**values, "outcome": Outcome(values["outcome"]), "launch": launch})


def event_of_row(row: Any) -> Event:
    """The log line of a row."""
    return Event(row.id, datetime.fromtimestamp(row.at, UTC), row.level, row.text)
