"""The claimed jobs: what of each is still to come, and its results on their way to the ledger."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from codegen.assemble import level_of
from codegen.errors import CodegenError
from codegen.toolchain import Toolchain
from farm.coordination.plan import Plan, Target, plan
from farm.coordination.progress import Progress
from farm.coordination.retries import Retries
from farm.jobs import Build, BuildResult, Job, Outcome, Status, count_cubins
from farm.ledger import Ledger
from farm.units import format_seconds
from farm.worker.requests import CubinRequest, CubinResult, Failure, Fault, Result, Retry, TemplateResult

WRITE_SECONDS = 0.5
"""Results are written together, at most this late; as often it is asked which jobs are still ours."""


@dataclass
class Claim:
    """One job while it runs."""

    job: Job
    builds: Sequence[Build]
    since: float
    """By the monotonic clock."""
    cubins: set[str] = field(default_factory=set)
    """Keys of those still to come."""
    templates: set[str] = field(default_factory=set)
    stage: str = ""
    waits: bool = False
    """For a store that is away."""
    faults: list[Fault] = field(default_factory=list)
    first_failure: str = ""

    @property
    def total(self) -> int:
        """The layers' parts times architectures."""
        return count_cubins(self.builds, self.job.options)

    @property
    def end(self) -> tuple[Status, str, str]:
        """The final state, once nothing is left, the reason in words, and the fault."""
        if not self.faults:
            return Status.SUCCEEDED, "", ""
        worst = next(
            (fault for fault in (Fault.LOST, *self.faults) if fault in self.faults and not fault.of_input), None
        )
        reason = f"{len(self.faults)} of {self.total} cubins failed: {self.first_failure}"
        return (Status.CRASHED, reason, worst) if worst else (Status.FAILED, reason, self.faults[0])


class Claims:
    """Takes the results of a run, gives every job its own, and notices what others did to the jobs meanwhile."""

    def __init__(
        self, ledger: Ledger, coordinator: str, retries: Retries, progress: Progress, *, timeout_seconds: float
    ) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._retries = retries
        self._progress = progress
        self._timeout_seconds = timeout_seconds
        self._claims: dict[str, Claim] = {}
        """Of jobs that have not ended."""
        self._builds: dict[int, Build] = {}
        self._requests: dict[str, CubinRequest] = {}
        """Every cubin still to come, by its key, and who waits for it."""
        self._targets: dict[str, list[Target]] = {}
        self._jobs_of_template: dict[str, set[str]] = defaultdict(set)
        self._template_names: dict[str, str] = {}
        self._template_seconds: dict[str, float] = {}
        self._results: list[BuildResult] = []
        self._events: list[tuple[str, str, str]] = []
        self._unwanted: set[str] = set()
        self._orphans: set[str] = set()
        """Claimed for us, and we were not told: the database went away in that moment."""
        self._written_at = time.monotonic()

    @property
    def job_ids(self) -> Collection[str]:
        """The jobs that have not ended."""
        return self._claims.keys()

    def begin(self, job_ids: Sequence[str], toolchain: Toolchain) -> Plan:
        """Reads claimed jobs and plans them together. One that cannot be planned ends, and no other with it."""
        begun = []
        for job_id in job_ids:
            self._forget(job_id)  # it may have been lost, and claimed again before that was noticed
            claim = Claim(self._ledger.job(job_id), self._ledger.builds(job_id), time.monotonic())
            self._claims[job_id] = claim
            if claim.job.tries > 1:
                self._ledger.forget_results(job_id, holder=self._coordinator)
            begun.append(claim)
        try:
            todo = plan([(claim.job, claim.builds) for claim in begun], toolchain)
        except CodegenError:
            begun = [claim for claim in begun if self._can_be_planned(claim, toolchain)]
            todo = plan([(claim.job, claim.builds) for claim in begun], toolchain)
        self._ledger.record_keys("template", todo.template_fields)
        self._ledger.record_keys("cubin", todo.cubin_fields)
        self._wait_for(todo)
        for claim in begun:
            self._builds |= {build.id: build for build in claim.builds}
            self._say(claim, "info", f"planned: {len(claim.templates)} templates, {len(claim.cubins)} cubins")
        self._set_stage(begun, "template")
        self._progress.planned([claim.job for claim in begun], self._builds, todo)
        return todo

    def _can_be_planned(self, claim: Claim, toolchain: Toolchain) -> bool:
        try:
            plan([(claim.job, claim.builds)], toolchain)
        except CodegenError as error:
            self._end(claim, Status.FAILED, f"it cannot be planned: {error}", Fault.INPUT)
            return False
        return True

    def _wait_for(self, todo: Plan) -> None:
        for template in todo.templates:
            self._template_names[template.key] = f"template {template.spec}, {template.virtual_arch}"
        for request in todo.cubins:
            self._requests[request.key] = request
            self._targets.setdefault(request.key, []).extend(todo.targets[request.key])
            for target in todo.targets[request.key]:
                claim = self._claims[target.job]
                claim.cubins.add(request.key)
                claim.templates.add(request.template.key)
                self._jobs_of_template[request.template.key].add(target.job)

    def take(self, result: Result | Retry) -> None:
        """Gives a result to every job that waits for it."""
        if isinstance(result, Retry):
            self._take_retry(result)
            return
        if isinstance(result, TemplateResult):
            self._take_template(result)
            return
        request = self._requests.pop(result.asked, None)
        for i, target in enumerate(self._targets.pop(result.asked, [])):
            if request is not None and (claim := self._claims.get(target.job)) is not None:
                # The others get what the first one built.
                self._take_cubin(claim, target, request, result, hit=result.hit or i > 0)

    def _take_retry(self, retry: Retry) -> None:
        request = retry.request
        if isinstance(request, CubinRequest):
            targets = self._targets.get(request.key, [])
            whose = [(each.job, self._builds[each.build].cubin_name(each.arch, each.part)) for each in targets]
            if isinstance(retry.again, CubinRequest) and retry.again.key != request.key:
                self._ledger.record_keys("cubin", {retry.again.key: self._retries.fields(retry.again)})
        else:
            whose = [(job, self._template_names[request.key]) for job in self._jobs_of_template[request.key]]
        claims = [(self._claims[job_id], name) for job_id, name in whose if job_id in self._claims]
        for claim, name in claims:
            self._say(claim, "warning", f"{name}: {retry.text}")
        if retry.failure.fault is Fault.AWAY:
            self._set_waits([claim for claim, _ in claims], f"waits for the store: {retry.failure.message}")
        self._progress.retried(retry)

    def _take_template(self, result: TemplateResult) -> None:
        self._template_seconds[result.key] = result.seconds
        name = self._template_names.get(result.key, "template")
        claims = [self._claims[job_id] for job_id in self._jobs_of_template[result.key] if job_id in self._claims]
        for claim in claims:
            if result.failure is not None:
                self._say(claim, "error", _explain(name, result.failure))
            else:
                self._say(claim, "info", f"{name}: {'hit' if result.hit else f'made in {result.seconds:.1f} s'}")
        if result.failure is None:
            self._set_stage(claims, "assemble")
            self._set_waits(claims, "")
        self._progress.template_done(result)

    def _take_cubin(
        self, claim: Claim, target: Target, request: CubinRequest, result: CubinResult, *, hit: bool
    ) -> None:
        build = self._builds[target.build]
        name = build.cubin_name(target.arch, target.part)
        lower = self._retries.lower(request) if result.instead_of else request
        known = BuildResult(
            build=target.build,
            arch=target.arch,
            part=target.part,
            outcome=Outcome.HIT if hit else Outcome.BUILT,
            template_key=request.template.key,
            cubin_key=result.key,
            template_seconds=self._template_seconds.get(request.template.key, 0.0),
            optimisation=level_of(lower.options),
        )
        made = result.made
        if result.warning:
            self._say(claim, "warning", f"{name}: {result.warning}")
        if isinstance(made, Failure):
            if result.instead_of:
                made = replace(made, message=f"{made.message}, at -O{known.optimisation} too")
            build_result = replace(known, outcome=Outcome.FAILED, error=made.message, command=made.command)
            claim.faults.append(made.fault)
            claim.first_failure = claim.first_failure or f"{name}: {made.message}"
            self._say(claim, "error", _explain(name, made))
        else:
            build_result = replace(known, **vars(made))
            level = f", at -O{known.optimisation}" if result.instead_of else ""
            how = f"{made.registers} registers, {made.spill_bytes} bytes spilled, ptxas {made.ptxas_seconds:.2f} s"
            self._say(claim, "info", f"{name}: {known.outcome.value}{level}, {how}")
            self._set_waits([claim], "")
        self._results.append(build_result)
        claim.cubins.discard(request.key)
        self._progress.cubin_done(claim.job, build, build_result)

    def write(self) -> set[str]:
        """Writes what has come once there is some of it, and ends the jobs of which nothing is left.

        Gives the keys of cubins that nobody waits for any more, because their jobs have ended in another way.
        """
        now = time.monotonic()
        ended = [claim for claim in self._claims.values() if not claim.cubins]
        if ended or now - self._written_at > WRITE_SECONDS:
            self._flush()
        for claim in ended:
            if claim.job.id in self._claims:
                self._end(claim, *claim.end)
        for claim in [each for each in self._claims.values() if now - each.since > self._timeout_seconds]:
            self._flush()
            limit = f"it did not end within {format_seconds(self._timeout_seconds)} (FARM_JOB_TIMEOUT)"
            self._end_early(claim, Status.FAILED, limit, Fault.TIME)
        unwanted, self._unwanted = self._unwanted - self._targets.keys(), set()
        return unwanted

    def take_orphans(self) -> list[str]:
        """Jobs that were claimed without an answer, to be begun now."""
        orphans, self._orphans = self._orphans, set()
        return sorted(orphans - self._claims.keys())

    def end_all(self, status: Status, reason: str, fault: Fault) -> None:
        """Ends the jobs that have not ended; what they have so far is kept."""
        self._flush()
        for claim in list(self._claims.values()):
            self._end_early(claim, status, reason, fault)

    def keep(self) -> None:
        """Writes what has come, before an interruption gives the jobs back."""
        self._flush()

    def _end_early(self, claim: Claim, status: Status, reason: str, fault: Fault) -> None:
        done = claim.total - self._left(claim)
        self._end(claim, status, f"{reason}; {done} of {claim.total} cubins were done", fault)

    def _left(self, claim: Claim) -> int:
        return sum(target.job == claim.job.id for key in claim.cubins for target in self._targets[key])

    def _end(self, claim: Claim, status: Status, reason: str, fault: str) -> None:
        job_id = claim.job.id
        self._forget(job_id)
        if self._ledger.finish(job_id, status, reason, holder=self._coordinator, fault=fault):
            self._ledger.add_event(job_id, "info" if status is Status.SUCCEEDED else "error", reason or "succeeded")
        self._progress.job_done(self._ledger.job(job_id))

    def _forget(self, job_id: str) -> None:
        """Nothing is kept of a job that has ended, and nothing is built for it alone."""
        claim = self._claims.pop(job_id, None)
        if claim is None:
            return
        for key in claim.cubins:
            self._targets[key] = [target for target in self._targets[key] if target.job != job_id]
            if not self._targets[key]:
                del self._targets[key], self._requests[key]
                self._unwanted.add(key)
        for key in claim.templates:
            self._jobs_of_template[key].discard(job_id)
            if not self._jobs_of_template[key]:
                del self._jobs_of_template[key]
                self._template_names.pop(key, None)
                self._template_seconds.pop(key, None)
        for build in claim.builds:
            self._builds.pop(build.id, None)

    def _flush(self) -> None:
        """Writes what has come, and lets go of the jobs that were cancelled or taken over: theirs is not written."""
        self._ledger.record_results(self._results, holder=self._coordinator)
        held = self._ledger.held(self._coordinator)
        self._ledger.add_events([event for event in self._events if event[0] in held])
        self._results, self._events = [], []
        self._written_at = time.monotonic()
        self._orphans = held - self._claims.keys()
        for job_id in self._claims.keys() - held:
            self._forget(job_id)
            self._progress.job_lost(self._ledger.job(job_id))

    def _say(self, claim: Claim, level: str, text: str) -> None:
        self._events.append((claim.job.id, level, text))

    def _set_stage(self, claims: Sequence[Claim], stage: str) -> None:
        changed = [claim for claim in claims if claim.stage != stage]
        for claim in changed:
            claim.stage = stage
        if changed:
            ids = [claim.job.id for claim in changed]
            self._ledger.set_running(ids, holder=self._coordinator, stage=stage)

    def _set_waits(self, claims: Sequence[Claim], reason: str) -> None:
        changed = [claim for claim in claims if claim.waits != bool(reason)]
        for claim in changed:
            claim.waits = bool(reason)
        if changed:
            ids = [claim.job.id for claim in changed]
            self._ledger.set_running(ids, holder=self._coordinator, reason=reason)


def _explain(name: str, failure: Failure) -> str:
    """All that is known of a failure, for the log."""
    parts = (f"{name} failed: {failure.message}", failure.command, failure.stderr)
    return "\n".join(part for part in parts if part)
