"""The jobs that this coordinator holds: progress of each, and results buffered for the ledger."""

from __future__ import annotations

import math
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from codegen.errors import CodegenError
from codegen.sass.qualification import NO_QUALIFICATIONS, Qualifications
from codegen.toolchain.ptxas import level_of
from codegen.toolchain.tools import Toolchain
from farm.config.units import counted, format_seconds
from farm.errors import FarmError, UnreachableError, UnreadableJobError
from farm.jobs.model import Build, BuildResult, Outcome, Status, trace_id
from farm.ledger import Ledger, TemplateRun
from farm.scheduler.clock import Clock
from farm.scheduler.eta import Estimate
from farm.scheduler.held_job import FailedCubin, HeldJob
from farm.scheduler.plan import Plan, Target, no_longer_whole, plan, plan_of
from farm.scheduler.progress import Progress, RunStatus
from farm.scheduler.retry import LOWER_LEVEL, RetryPolicy
from farm.scheduler.scheduler import CubinDone, Event, Retried, Submitted, TemplateDone
from farm.scheduler.traces import Traces
from farm.worker.messages import CubinRequest, Failure, Fault, TemplateRequest

OUTLOOK_SHARE = 0.05
"""Share of the remaining time by which an estimated end must move to be recorded in the ledger again."""
MAX_CLAIMS = 3
"""Claims of a job without being planned, after which it ends as CRASHED."""
WRITE_SECONDS = 0.5
"""Longest time that results are buffered, and interval of the check which jobs are still held."""


Result = TypeVar("Result")


class HeldJobs:
    """Applies the events of a run to the jobs that they concern, and notices jobs that were cancelled or taken over."""

    def __init__(
        self,
        ledger: Ledger,
        coordinator: str,
        retry_policy: RetryPolicy,
        progress: Progress,
        *,
        timeout_seconds: float,
        clock: Clock,
        traces: Traces | None = None,
    ) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._retry_policy = retry_policy
        self._progress = progress
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._traces = traces
        self._held_jobs: dict[str, HeldJob] = {}
        """Unfinished jobs by id."""
        self._results: list[BuildResult] = []
        self._runs: list[TemplateRun] = []
        self._events: list[tuple[str, str, str]] = []
        self._to_cut: list[tuple[Target, str]] = []
        """Targets whose layer must be split into parts, and why."""
        self._ended: set[str] = set()
        self._ended_cubins = 0
        """Cubins of the jobs that have ended since no job was held."""
        self._orphans: set[str] = set()
        """Jobs held in the ledger only: the database became unreachable before it answered the claim."""
        self._written_at = clock.now()
        self._core_wait = ""
        """The wait for a core that was last reported."""

    @property
    def job_ids(self) -> Collection[str]:
        """Ids of the unfinished jobs."""
        return self._held_jobs.keys()

    def begin(self, job_ids: Sequence[str], toolchain: Toolchain) -> Plan:
        """Read claimed jobs and plan them together. A job that cannot be read or planned ends alone."""
        began = self._clock.now()
        begun = [held for job_id in job_ids if (held := self._read(job_id, toolchain)) is not None]
        try:
            todo = self._plan(begun, toolchain)
        except Exception:  # noqa: BLE001 - the job that raises it is found next
            begun = [held for held in begun if self._alone(held, partial(self._plan, [held], toolchain))]
            todo = self._plan(begun, toolchain)
        self._ledger.running.set_planned([held.job.id for held in begun], holder=self._coordinator)
        self._ledger.record_keys("template", todo.template_fields)
        self._ledger.record_keys("cubin", todo.cubin_fields)
        templates = {(target.job, cubin.template.key) for cubin in todo.cubins for target in todo.targets[cubin.key]}
        of_job = Counter(job_id for job_id, _ in templates)
        for held in begun:
            held.left, held.planned = held.total, True
            needed = counted(of_job[held.job.id], "template")
            self._say(held, "info", f"planned: {needed}, {counted(held.left, 'cubin')}")
        if self._traces is not None:
            self._traces.planned([held.times for held in begun], began)
            for held in begun:
                self._say(held, "info", f"trace {trace_id(held.job.id)}")
        if begun:
            self._progress.planned([held.job for held in begun], _builds(begun), todo)
        return todo

    def _plan(self, held_jobs: Sequence[HeldJob], toolchain: Toolchain) -> Plan:
        work = [(held.job, list(held.builds.values())) for held in held_jobs]
        return plan(work, toolchain, self._qualifications(held_jobs))

    def _qualifications(self, held_jobs: Sequence[HeldJob]) -> Qualifications:
        """The records of qualification, if a job may be assembled directly."""
        asked = any(held.job.options.assembler in ("auto", "direct") for held in held_jobs)
        return self._ledger.qualifications.known() if asked else NO_QUALIFICATIONS

    def _read(self, job_id: str, toolchain: Toolchain) -> HeldJob | None:
        """Read a claimed job; None if it ends here or goes back to PENDING."""
        held = self._held_jobs[job_id] = HeldJob(self._ledger.job(job_id), {})
        claims = held.job.claims
        if claims > MAX_CLAIMS:
            reason = f"{MAX_CLAIMS} coordinators died while they planned it: farm logs {job_id} names them"
            self._end(held, Status.CRASHED, reason, Fault.CRASH)
            return None
        if claims > 1:
            text = f"planned by {self._coordinator}, claim {claims} of {MAX_CLAIMS}"
            self._ledger.add_event(job_id, "warning", text)
        return held if self._alone(held, partial(self._read_builds, held, toolchain)) else None

    def _read_builds(self, held: HeldJob, toolchain: Toolchain) -> bool:
        job = held.job
        if job.unreadable:
            raise UnreadableJobError(job.unreadable)
        held.builds = {each.id: each for each in self._ledger.builds(job.id)}
        if job.tries > 1:
            self._ledger.forget_results(job.id, holder=self._coordinator)
        qualifications = self._qualifications([held])
        for build in list(held.builds.values()):
            for arch, reason in no_longer_whole(build, job.options, toolchain, qualifications):
                self._cut(held, build.id, arch, reason)
        return True

    def _alone(self, held: HeldJob, work: Callable[[], Result]) -> Result | None:
        """The result of work on one job; None if it raises, which ends this job only.

        An unknown exception may be this version's or this machine's fault: before the limit on claims the job goes
        back to PENDING. A job that was planned before ends at once.
        """
        try:
            return work()
        except CodegenError as error:
            self._end(held, Status.FAILED, f"cannot be planned: {error}", Fault.INPUT)
        except UnreachableError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever one job contains, the others go on
            bug = f"planning failed with {type(error).__name__}: {error}"
            reason = str(error) if isinstance(error, FarmError) else bug
            self._ledger.add_event(held.job.id, "error", "".join(traceback.format_exception(error)))
            if held.planned or held.job.claims >= MAX_CLAIMS:
                self._end(held, Status.CRASHED, f"{reason}. farm logs has the trace.", Fault.FARM)
            else:
                self._return_unplanned(held, f"{reason}. It is tried again.")
        return None

    def _return_unplanned(self, held: HeldJob, reason: str) -> None:
        self._forget(held.job.id)
        self._ledger.return_unplanned(held.job.id, reason, holder=self._coordinator)
        self._progress.job_lost(self._ledger.job(held.job.id))

    def take(self, events: Iterable[Event]) -> None:
        """Apply the events of a step to the jobs that they concern."""
        for event in events:
            match event:
                case Submitted():
                    self._progress.submitted(event.request)
                case Retried():
                    self._take_retried(event)
                case TemplateDone():
                    self._take_template(event)
                case CubinDone():
                    self._take_cubin(event)

    def _of(self, targets: Sequence[Target]) -> list[HeldJob]:
        """The unfinished jobs of targets, without duplicates."""
        return [
            self._held_jobs[job_id]
            for job_id in dict.fromkeys(each.job for each in targets)
            if job_id in self._held_jobs
        ]

    def _take_retried(self, retried: Retried) -> None:
        retry, request = retried.retry, retried.retry.request
        if isinstance(request, TemplateRequest):
            told = [(held, request.name) for held in self._of(retried.targets)]
        else:
            found = [(self._held_jobs.get(target.job), target) for target in retried.targets]
            told = [(held, held.cubin_name(target)) for held, target in found if held is not None]
        if isinstance(retry.again, CubinRequest) and retry.again.key != request.key:
            self._ledger.record_keys("cubin", {retry.again.key: self._retry_policy.fields(retry.again)})
        for held, name in told:
            self._say(held, "warning", f"{name}: {retry.text}")
        if retry.failure.fault is Fault.AWAY:
            self._set_waits([held for held, _ in told], f"waiting for the store: {retry.failure.message}")
        self._progress.retried(retry)

    def _take_template(self, done: TemplateDone) -> None:
        result, name = done.result, done.request.name
        held_jobs = self._of(done.targets)
        if result.failure is None and not result.hit:
            job = held_jobs[0].job.id if held_jobs else ""
            self._runs.append(TemplateRun(uuid.uuid4().hex, result.key, job, result.seconds))
        new = [held for held in held_jobs if result.key not in held.template_seconds]
        if self._traces is not None:
            self._traces.template_done([held.times for held in new], done)
        if result.warning:
            self._progress.repaired(name, result.warning)
        for held in new:
            if result.warning:
                self._say(held, "warning", f"{name}: {result.warning}")
            if result.failure is not None:
                self._say(held, "error", result.failure.about(name))
            else:
                held.template_seconds[result.key] = result.seconds
                self._say(held, "info", f"{name}: {'hit' if result.hit else f'made in {result.seconds:.1f} s'}")
        if result.failure is None:
            self._set_waits(held_jobs, "")
        if new:
            self._progress.template_done(result)

    def cut(self, toolchain: Toolchain) -> list[Plan]:
        """Split the layers that cannot be one cubin; returns the plans of their parts, which ptxas assembles."""
        plans = []
        for target, reason in self._to_cut:
            if (held := self._held_jobs.get(target.job)) is not None:
                todo = self._alone(held, partial(self._plan_parts, held, target, reason, toolchain))
                plans += [todo] if todo is not None else []
        self._to_cut = []
        return plans

    def _plan_parts(self, held: HeldJob, target: Target, reason: str, toolchain: Toolchain) -> Plan:
        build = self._cut(held, target.build, target.arch, reason)
        held.left += len(build.parts_of(target.arch)) - 1
        todo = plan_of(held.job, build, target.arch, toolchain, self._qualifications([held]))
        self._ledger.record_keys("cubin", todo.cubin_fields)
        self._progress.cut(held.job, build, todo)
        return todo

    def _cut(self, held: HeldJob, build_id: int, arch: str, reason: str) -> Build:
        build = held.cut(build_id, arch)
        self._ledger.running.cut(build, held.total, holder=self._coordinator)
        self._say(held, "warning", f"{build.layer} {arch}: {len(build.parts)} cubins instead of one: {reason}")
        return build

    def _take_cubin(self, done: CubinDone) -> None:
        if (failure := done.result.failure) is not None and failure.fault is Fault.PARTS:
            self._to_cut += [(target, failure.message) for target in done.targets]
            return
        if self._traces is not None:
            found = [(self._held_jobs.get(target.job), target) for target in done.targets]
            named = [(held.times, held.cubin_name(target)) for held, target in found if held is not None]
            self._traces.cubin_done(named, done)
        for i, target in enumerate(done.targets):
            if (held := self._held_jobs.get(target.job)) is not None:
                # Further targets share the cubin that was built for the first.
                self._take_target(held, target, done, hit=done.result.hit or i > 0)

    def _take_target(self, held: HeldJob, target: Target, done: CubinDone, *, hit: bool) -> None:
        request, result = done.request, done.result
        name = held.cubin_name(target)
        known = BuildResult(
            build=target.build,
            arch=target.arch,
            part=target.part,
            outcome=Outcome.HIT if hit else Outcome.BUILT,
            template_key=request.template.key,
            cubin_key=result.key,
            template_seconds=held.template_seconds.get(request.template.key, 0.0),
            optimisation=LOWER_LEVEL if result.instead_of else level_of(request.options),
        )
        made = result.made
        if result.warning:
            self._say(held, "warning", f"{name}: {result.warning}")
            self._progress.repaired(f"{held.job.name} {name}", result.warning)
        if isinstance(made, Failure):
            if result.instead_of:
                made = replace(made, message=f"{made.message}, at -O{known.optimisation} too")
            build_result = replace(known, outcome=Outcome.FAILED, error=made.message, command=made.command)
            message = f"{name}: {made.message}"
            held.failed.append(FailedCubin(target.build, target.arch, target.part, made.fault, message))
            self._say(held, "error", made.about(name))
        else:
            skeleton_seconds = 0.0 if hit else result.skeleton_seconds
            evidence = target.evidence if made.assembler == "direct" else ""
            fallback = made.fallback or (target.left_to_ptxas if made.assembler == "ptxas" else "")
            # These two stand in the store's record only.
            facts = {name: fact for name, fact in vars(made).items() if name not in ("rewriter", "sampled")}
            facts |= {"fallback": fallback, "evidence": evidence}
            build_result = replace(known, **facts, skeleton_seconds=skeleton_seconds)
            level = f", at -O{known.optimisation}" if result.instead_of else ""
            how = f"{made.registers} registers, {made.spill_bytes} bytes spilled, {made.assembled}"
            how += f", {evidence}" if evidence else ""
            self._say(held, "info", f"{name}: {known.outcome.value}{level}, {how}")
            self._set_waits([held], "")
        self._results.append(build_result)
        held.left -= 1
        self._progress.cubin_done(held.job, held.builds[target.build], build_result)

    def set_active(self, jobs: Mapping[str, bool]) -> None:
        """Record that tasks of these jobs are being built; the value tells whether one of them is a cubin."""
        for stage, of_cubin in (("template", False), ("assemble", True)):
            # A job may have ended since the tasks were asked: one whose layer cannot be split.
            found = [self._held_jobs.get(job_id) for job_id, cubin in jobs.items() if cubin is of_cubin]
            self._set_stage([held for held in found if held is not None and (of_cubin or not held.stage)], stage)

    def report(self, estimate: Estimate, core_wait: str) -> None:
        """Report the estimate and a wait for a core; the ledger records both for jobs for which they changed."""
        now = self._clock.now()
        changed = {}
        for held in self._held_jobs.values():
            outlook = estimate.of_jobs[held.job.id]
            left = math.inf if outlook.left_seconds is None else outlook.left_seconds
            moved = held.ends_at != now + left and abs(held.ends_at - now - left) > max(2.0, OUTLOOK_SHARE * left)
            if outlook.running != held.running or moved:
                held.running, held.ends_at = outlook.running, now + left
                changed[held.job.id] = outlook
        if changed:
            self._ledger.running.set_outlooks(changed, holder=self._coordinator)
        concerned = (held for held in self._held_jobs.values() if held.running or held.waits)
        self._set_waits([held for held in concerned if held.waits in ("", self._core_wait)], core_wait)
        self._core_wait = core_wait
        done = self._ended_cubins + sum(held.total - held.left for held in self._held_jobs.values())
        total = self._ended_cubins + sum(held.total for held in self._held_jobs.values())
        self._progress.status_changed(RunStatus(done, total, estimate, core_wait))

    def write(self) -> set[str]:
        """Write buffered results when they are due, and end finished or overdue jobs.

        Returns the jobs that have ended since the last call, for any reason.
        """
        now = self._clock.now()
        done = [held for held in self._held_jobs.values() if not held.left]
        if now - self._written_at > WRITE_SECONDS or (done and len(done) == len(self._held_jobs)):
            self._flush()
        else:
            done = []  # ended with the next write
        for held in done:
            if held.job.id in self._held_jobs:
                self._set_stage([held], held.stage)  # a job of cache hits only starts here
                self._end(held, *held.end)
        if any(self._is_late(held, now) for held in self._held_jobs.values()):
            self._flush()  # which drops the late ones that were cancelled
        for held in [each for each in self._held_jobs.values() if self._is_late(each, now)]:
            limit = f"timed out after {format_seconds(self._timeout_seconds)} (FARM_JOB_TIMEOUT)"
            self._end_early(held, Status.FAILED, limit, Fault.TIME)
        ended, self._ended = self._ended, set()
        return ended

    def _is_late(self, held: HeldJob, now: float) -> bool:
        return held.began is not None and now - held.began > self._timeout_seconds

    def take_orphans(self) -> list[str]:
        """Jobs whose claim succeeded without an answer; the caller begins them."""
        orphans, self._orphans = self._orphans, set()
        return sorted(orphans - self._held_jobs.keys())

    def end_all(self, status: Status, reason: str, fault: Fault) -> None:
        """End all unfinished jobs; their results so far are kept."""
        self._flush()
        for held in list(self._held_jobs.values()):
            self._end_early(held, status, reason, fault)

    def keep(self) -> None:
        """Write buffered results, before an interruption releases the jobs."""
        self._flush()

    def _end_early(self, held: HeldJob, status: Status, reason: str, fault: Fault) -> None:
        done = held.total - held.left if held.planned else 0
        self._end(held, status, f"{reason}; {done} of {held.total} cubins were done", fault)

    def _end(self, held: HeldJob, status: Status, reason: str, fault: str) -> None:
        job_id = held.job.id
        self._forget(job_id)
        if self._ledger.finish(job_id, status, reason, holder=self._coordinator, fault=fault):
            self._ledger.add_event(job_id, "info" if status is Status.SUCCEEDED else "error", reason or "succeeded")
            if self._traces is not None:
                self._traces.ended(self._ledger.job(job_id), held.times)
        job = self._ledger.job(job_id)
        # The status tells who ended it: a call that is repeated after an outage finds its own end.
        (self._progress.job_done if job.status is status else self._progress.job_lost)(job)

    def _forget(self, job_id: str) -> None:
        held = self._held_jobs.pop(job_id)
        self._ended.add(job_id)
        self._ended_cubins = self._ended_cubins + held.total - held.left if self._held_jobs else 0

    def _flush(self) -> None:
        """Write the buffer and drop jobs that were cancelled or taken over; the ledger rejects results of those."""
        self._ledger.record_results(self._results, holder=self._coordinator)
        self._ledger.statistics.record_runs(self._runs)
        ours = self._ledger.held(self._coordinator)
        self._ledger.add_events([event for event in self._events if event[0] in ours])
        self._results, self._runs, self._events = [], [], []
        self._written_at = self._clock.now()
        self._orphans = ours - self._held_jobs.keys()
        for job_id in self._held_jobs.keys() - ours:
            self._forget(job_id)
            self._progress.job_lost(self._ledger.job(job_id))

    def _say(self, held: HeldJob, level: str, text: str) -> None:
        self._events.append((held.job.id, level, text))

    def _set_stage(self, held_jobs: Sequence[HeldJob], stage: str) -> None:
        """Record the stage of jobs; the first stage of a job starts it."""
        changed = [held for held in held_jobs if held.stage != stage or held.began is None]
        for held in changed:
            held.stage = stage
            held.began = self._clock.now() if held.began is None else held.began
        if changed:
            ids = [held.job.id for held in changed]
            self._ledger.running.set_stage(ids, stage, holder=self._coordinator)

    def _set_waits(self, held_jobs: Sequence[HeldJob], reason: str) -> None:
        changed = [held for held in held_jobs if held.waits != reason]
        for held in changed:
            held.waits = reason
        if changed:
            ids = [held.job.id for held in changed]
            self._ledger.running.set_reason(ids, reason, holder=self._coordinator)


def _builds(held_jobs: Sequence[HeldJob]) -> dict[int, Build]:
    return {build.id: build for held in held_jobs for build in held.builds.values()}
