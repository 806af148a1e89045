"""The claimed jobs of one plan: what of each is still to come, and its results on their way to the ledger."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from farm.jobs import Build, BuildResult, Job, Outcome, Status, count_cubins
from farm.ledger import Ledger
from farm.plan import Plan, Target
from farm.progress import Progress
from farm.requests import CubinRequest, CubinResult, Failure, Fault, Result, Retry, TemplateRequest, TemplateResult

WRITE_SECONDS = 0.5
"""Results are written together, at most this late."""


@dataclass
class Claim:
    """One job while it runs."""

    job: Job
    builds: Sequence[Build]
    left: int
    """Cubins still to come."""
    stage: str = ""
    faults: list[Fault] = field(default_factory=list)
    first_failure: str = ""

    @property
    def total(self) -> int:
        """The layers' parts times architectures."""
        return count_cubins(self.builds, self.job.options)

    @property
    def end(self) -> tuple[Status, str]:
        """The final state, once nothing is left, and the reason in words."""
        if not self.faults:
            return Status.SUCCEEDED, ""
        input_only = all(fault is Fault.INPUT for fault in self.faults)
        reason = f"{len(self.faults)} of {self.total} cubins failed: {self.first_failure}"
        return Status.FAILED if input_only else Status.CRASHED, reason


class Claims:
    """Takes the results of a run, and gives every job its own."""

    def __init__(self, ledger: Ledger, job_ids: Sequence[str], progress: Progress) -> None:
        self._ledger = ledger
        self._progress = progress
        self._claims: dict[str, Claim] = {}
        """Of jobs that have not ended."""
        for job_id in job_ids:
            job, builds = ledger.job(job_id), ledger.builds(job_id)
            self._claims[job_id] = Claim(job, builds, left=count_cubins(builds, job.options))
        self._builds = {build.id: build for claim in self._claims.values() for build in claim.builds}
        self._template_seconds: dict[str, float] = {}
        self._results: list[BuildResult] = []
        self._events: list[tuple[str, str, str]] = []
        self._written_at = time.monotonic()

    def work(self) -> list[tuple[Job, Sequence[Build]]]:
        """What is to be planned."""
        return [(claim.job, claim.builds) for claim in self._claims.values()]

    def start(self, plan: Plan) -> None:
        """Must come before the first result."""
        self._plan = plan
        self._cubins = {request.key: request for request in plan.cubins}
        self._templates = {
            request.key: f"template {request.spec}, {request.virtual_arch}" for request in plan.templates
        }
        self._jobs_of_template: dict[str, set[str]] = defaultdict(set)
        for request in plan.cubins:
            self._jobs_of_template[request.template.key] |= {target.job for target in plan.targets[request.key]}
        self._ledger.record_keys("template", plan.template_fields)
        self._ledger.record_keys("cubin", plan.cubin_fields)
        text = f"planned: {len(plan.templates)} templates, {len(plan.cubins)} cubins"
        for claim in self._claims.values():
            if claim.job.tries > 1:
                self._ledger.forget_results(claim.job.id)
            self._say(claim, "info", text)
            self._set_stage(claim, "template")
        self._progress.planned([claim.job for claim in self._claims.values()], self._builds, plan)

    def take(self, result: Result | Retry) -> None:
        """Gives a result to every job that waits for it."""
        if isinstance(result, Retry):
            self._take_retry(result)
            return
        if isinstance(result, TemplateResult):
            self._take_template(result)
            return
        request = self._cubins[result.key]
        for i, target in enumerate(self._plan.targets[result.key]):
            if (claim := self._claims.get(target.job)) is not None:
                # The others get what the first one built.
                self._take_cubin(claim, target, request, result, hit=result.hit or i > 0)

    def _take_retry(self, retry: Retry) -> None:
        request, again = retry.request, f"tried again: {retry.failure.message}"
        if isinstance(request, TemplateRequest):
            whose = [(job, self._templates[request.key]) for job in self._jobs_of_template[request.key]]
        else:
            targets = self._plan.targets[request.key]
            whose = [(each.job, self._builds[each.build].cubin_name(each.arch, each.part)) for each in targets]
        for job_id, name in whose:
            if job_id in self._claims:
                self._say(self._claims[job_id], "warning", f"{name}: {again}")
        self._progress.retried(request, retry.failure)

    def _take_template(self, result: TemplateResult) -> None:
        self._template_seconds[result.key] = result.seconds
        for job_id in self._jobs_of_template[result.key] & self._claims.keys():
            claim, name = self._claims[job_id], self._templates[result.key]
            if result.failure is not None:
                self._say(claim, "error", _explain(name, result.failure))
            else:
                self._say(claim, "info", f"{name}: {'hit' if result.hit else f'made in {result.seconds:.1f} s'}")
                self._set_stage(claim, "assemble")
        self._progress.template_done(result)

    def _take_cubin(
        self, claim: Claim, target: Target, request: CubinRequest, result: CubinResult, *, hit: bool
    ) -> None:
        build = self._builds[target.build]
        name = build.cubin_name(target.arch, target.part)
        known = BuildResult(
            build=target.build,
            arch=target.arch,
            part=target.part,
            outcome=Outcome.HIT if hit else Outcome.BUILT,
            template_key=request.template.key,
            cubin_key=request.key,
            template_seconds=self._template_seconds.get(request.template.key, 0.0),
        )
        made = result.made
        if isinstance(made, Failure):
            build_result = replace(known, outcome=Outcome.FAILED, error=made.message, command=made.command)
            claim.faults.append(made.fault)
            claim.first_failure = claim.first_failure or f"{name}: {made.message}"
            self._say(claim, "error", _explain(name, made))
        else:
            build_result = replace(known, **made.to_json())
            how = f"{made.registers} registers, {made.spill_bytes} bytes spilled, ptxas {made.ptxas_seconds:.2f} s"
            self._say(claim, "info", f"{name}: {known.outcome.value}, {how}")
        self._results.append(build_result)
        claim.left -= 1
        self._progress.cubin_done(claim.job, build, build_result)

    def write(self) -> None:
        """Writes what has come once there is some of it, and ends the jobs of which nothing is left."""
        ended = [claim for claim in self._claims.values() if not claim.left]
        if ended or time.monotonic() - self._written_at > WRITE_SECONDS:
            self._flush()
        for claim in ended:
            self._end(claim, *claim.end)

    def end_all(self, status: Status, reason: str) -> None:
        """Ends the jobs that have not ended; what they have so far is kept."""
        self._flush()
        for claim in list(self._claims.values()):
            self._end(claim, status, f"{reason}; {claim.total - claim.left} of {claim.total} cubins were done")

    def keep(self) -> None:
        """Writes what has come, before an interruption gives the jobs back."""
        self._flush()

    def _end(self, claim: Claim, status: Status, reason: str) -> None:
        self._ledger.add_event(claim.job.id, "info" if status is Status.SUCCEEDED else "error", reason or "succeeded")
        self._ledger.finish(claim.job.id, status, reason)
        del self._claims[claim.job.id]
        self._progress.job_done(self._ledger.job(claim.job.id))

    def _flush(self) -> None:
        self._ledger.record_results(self._results)
        self._ledger.add_events(self._events)
        self._results, self._events = [], []
        self._written_at = time.monotonic()

    def _say(self, claim: Claim, level: str, text: str) -> None:
        self._events.append((claim.job.id, level, text))

    def _set_stage(self, claim: Claim, stage: str) -> None:
        if claim.stage != stage:
            claim.stage = stage
            self._ledger.set_stage(claim.job.id, stage)


def _explain(name: str, failure: Failure) -> str:
    """All that is known of a failure, for the log."""
    parts = (f"{name} failed: {failure.message}", failure.command, failure.stderr)
    return "\n".join(part for part in parts if part)
