"""The claimed jobs: how many cubins of each are still to come, and its results on their way to the ledger."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from codegen.errors import CodegenError
from codegen.sass.qualification import NOTHING_ADMITTED, Admissions
from codegen.toolchain.ptxas import level_of
from codegen.toolchain.tools import Toolchain
from farm.config.units import format_seconds
from farm.jobs.model import Build, BuildResult, Outcome, Status
from farm.ledger import Ledger, TemplateRun
from farm.scheduler.clock import Clock
from farm.scheduler.eta import Prospect
from farm.scheduler.held_job import Claim, FailedCubin
from farm.scheduler.plan import Plan, Target, no_longer_whole, plan, plan_of
from farm.scheduler.progress import Progress, Standing
from farm.scheduler.retry import LOWER_LEVEL, Retries
from farm.scheduler.run import CubinDone, Event, Retried, Submitted, TemplateDone
from farm.worker.messages import CubinRequest, Failure, Fault, TemplateRequest

OUTLOOK_SHARE = 0.05
"""Of the time that is left: the ledger is told of a job's end again when that has moved by more."""
WRITE_SECONDS = 0.5
"""Results are written together, at most this late; as often it is asked which jobs are still ours."""


class Claims:
    """Gives every job what a run tells of it, and notices what others did to the jobs meanwhile."""

    def __init__(
        self,
        ledger: Ledger,
        coordinator: str,
        retries: Retries,
        progress: Progress,
        *,
        timeout_seconds: float,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._coordinator = coordinator
        self._retries = retries
        self._progress = progress
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._claims: dict[str, Claim] = {}
        """Claims on unfinished jobs, by job id."""
        self._results: list[BuildResult] = []
        self._runs: list[TemplateRun] = []
        self._events: list[tuple[str, str, str]] = []
        self._to_cut: list[tuple[Target, str]] = []
        """Layers that cannot be one cubin after all, and why."""
        self._ended: set[str] = set()
        self._ended_cubins = 0
        """Of jobs that have ended since there was none."""
        self._orphans: set[str] = set()
        """Claimed for us, and we were not told: the database went away in that moment."""
        self._written_at = clock.now()

    @property
    def job_ids(self) -> Collection[str]:
        """The jobs that have not ended."""
        return self._claims.keys()

    def begin(self, job_ids: Sequence[str], toolchain: Toolchain) -> Plan:
        """Reads claimed jobs and plans them together. One that cannot be planned ends, and no other with it."""
        begun = []
        for job_id in job_ids:
            claim = Claim(self._ledger.job(job_id), {each.id: each for each in self._ledger.builds(job_id)})
            self._claims[job_id] = claim
            if claim.job.tries > 1:
                self._ledger.forget_results(job_id, holder=self._coordinator)
            admissions = self._admissions([claim])
            for build in list(claim.builds.values()):
                for arch, reason in no_longer_whole(build, claim.job.options, toolchain, admissions):
                    self._cut(claim, build.id, arch, reason)
            begun.append(claim)
        try:
            todo = self._plan(begun, toolchain)
        except CodegenError:
            begun = [claim for claim in begun if self._can_be_planned(claim, toolchain)]
            todo = self._plan(begun, toolchain)
        self._ledger.record_keys("template", todo.template_fields)
        self._ledger.record_keys("cubin", todo.cubin_fields)
        templates = {(target.job, cubin.template.key) for cubin in todo.cubins for target in todo.targets[cubin.key]}
        of_job = Counter(job_id for job_id, _ in templates)
        for claim in begun:
            claim.left = claim.total
            self._say(claim, "info", f"planned: {of_job[claim.job.id]} templates, {claim.left} cubins")
        self._progress.planned([claim.job for claim in begun], _builds(begun), todo)
        return todo

    def _plan(self, claims: Sequence[Claim], toolchain: Toolchain) -> Plan:
        work = [(claim.job, list(claim.builds.values())) for claim in claims]
        return plan(work, toolchain, self._admissions(claims))

    def _admissions(self, claims: Sequence[Claim]) -> Admissions:
        """What is known of direct code, for those who leave the choice to the farm."""
        asked = any(claim.job.options.assembler == "auto" for claim in claims)
        return self._ledger.admissions.known() if asked else NOTHING_ADMITTED

    def _can_be_planned(self, claim: Claim, toolchain: Toolchain) -> bool:
        try:
            self._plan([claim], toolchain)
        except CodegenError as error:
            self._end(claim, Status.FAILED, f"it cannot be planned: {error}", Fault.INPUT)
            return False
        return True

    def take(self, events: Iterable[Event]) -> None:
        """What a run has told, for every job that it is about."""
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

    def _of(self, targets: Sequence[Target]) -> list[Claim]:
        """The jobs of these targets that have not ended, each once."""
        return [
            self._claims[job_id] for job_id in dict.fromkeys(each.job for each in targets) if job_id in self._claims
        ]

    def _take_retried(self, retried: Retried) -> None:
        retry, request = retried.retry, retried.retry.request
        if isinstance(request, TemplateRequest):
            told = [(claim, request.name) for claim in self._of(retried.targets)]
        else:
            found = [(self._claims.get(target.job), target) for target in retried.targets]
            told = [(claim, claim.cubin_name(target)) for claim, target in found if claim is not None]
        if isinstance(retry.again, CubinRequest) and retry.again.key != request.key:
            self._ledger.record_keys("cubin", {retry.again.key: self._retries.fields(retry.again)})
        for claim, name in told:
            self._say(claim, "warning", f"{name}: {retry.text}")
        if retry.failure.fault is Fault.AWAY:
            self._set_waits([claim for claim, _ in told], f"waits for the store: {retry.failure.message}")
        self._progress.retried(retry)

    def _take_template(self, done: TemplateDone) -> None:
        result, name = done.result, done.request.name
        claims = self._of(done.targets)
        if result.failure is None and not result.hit:
            job = claims[0].job.id if claims else ""
            self._runs.append(TemplateRun(uuid.uuid4().hex, result.key, job, result.seconds))
        new = [claim for claim in claims if result.key not in claim.template_seconds]
        for claim in new:
            if result.failure is not None:
                self._say(claim, "error", result.failure.about(name))
            else:
                claim.template_seconds[result.key] = result.seconds
                self._say(claim, "info", f"{name}: {'hit' if result.hit else f'made in {result.seconds:.1f} s'}")
        if result.failure is None:
            self._set_waits(claims, "")
        if new:
            self._progress.template_done(result)

    def cut(self, toolchain: Toolchain) -> list[Plan]:
        """What takes the place of layers that cannot be one cubin: their parts, which ptxas does."""
        plans = []
        for target, reason in self._to_cut:
            if (claim := self._claims.get(target.job)) is not None:
                build = self._cut(claim, target.build, target.arch, reason)
                claim.left += len(build.parts_of(target.arch)) - 1
                plans.append(plan_of(claim.job, build, target.arch, toolchain, self._admissions([claim])))
                self._ledger.record_keys("cubin", plans[-1].cubin_fields)
                self._progress.cut(claim.job, build, plans[-1])
        self._to_cut = []
        return plans

    def _cut(self, claim: Claim, build_id: int, arch: str, reason: str) -> Build:
        build = claim.cut(build_id, arch)
        self._ledger.running.cut(build, claim.total, holder=self._coordinator)
        self._say(claim, "warning", f"{build.layer} {arch}: {len(build.parts)} cubins instead of one: {reason}")
        return build

    def _take_cubin(self, done: CubinDone) -> None:
        if (failure := done.result.failure) is not None and failure.fault is Fault.PARTS:
            self._to_cut += [(target, failure.message) for target in done.targets]
            return
        for i, target in enumerate(done.targets):
            if (claim := self._claims.get(target.job)) is not None:
                # The others get what the first one built.
                self._take_target(claim, target, done, hit=done.result.hit or i > 0)

    def _take_target(self, claim: Claim, target: Target, done: CubinDone, *, hit: bool) -> None:
        request, result = done.request, done.result
        name = claim.cubin_name(target)
        known = BuildResult(
            build=target.build,
            arch=target.arch,
            part=target.part,
            outcome=Outcome.HIT if hit else Outcome.BUILT,
            template_key=request.template.key,
            cubin_key=result.key,
            template_seconds=claim.template_seconds.get(request.template.key, 0.0),
            optimisation=LOWER_LEVEL if result.instead_of else level_of(request.options),
        )
        made = result.made
        if result.warning:
            self._say(claim, "warning", f"{name}: {result.warning}")
        if isinstance(made, Failure):
            if result.instead_of:
                made = replace(made, message=f"{made.message}, at -O{known.optimisation} too")
            build_result = replace(known, outcome=Outcome.FAILED, error=made.message, command=made.command)
            message = f"{name}: {made.message}"
            claim.failed.append(FailedCubin(target.build, target.arch, target.part, made.fault, message))
            self._say(claim, "error", made.about(name))
        else:
            skeleton_seconds = 0.0 if hit else result.skeleton_seconds
            facts = vars(made) | {"fallback": made.fallback or target.left_to_ptxas}
            build_result = replace(known, **facts, skeleton_seconds=skeleton_seconds)
            level = f", at -O{known.optimisation}" if result.instead_of else ""
            how = f"{made.registers} registers, {made.spill_bytes} bytes spilled, {made.assembled}"
            self._say(claim, "info", f"{name}: {known.outcome.value}{level}, {how}")
            self._set_waits([claim], "")
        self._results.append(build_result)
        claim.left -= 1
        self._progress.cubin_done(claim.job, claim.builds[target.build], build_result)

    def at_work(self, jobs: Mapping[str, bool]) -> None:
        """For these jobs something is built: they have begun. The value says whether it is a cubin."""
        for stage, of_cubin in (("template", False), ("assemble", True)):
            claims = [self._claims[job_id] for job_id, cubin in jobs.items() if cubin is of_cubin]
            self._set_stage([claim for claim in claims if of_cubin or not claim.stage], stage)

    def note(self, prospect: Prospect) -> None:
        """Tells where it stands; the ledger too, of jobs for which that has changed."""
        now = self._clock.now()
        changed = {}
        for claim in self._claims.values():
            outlook = prospect.of_jobs[claim.job.id]
            left = math.inf if outlook.left_seconds is None else outlook.left_seconds
            moved = claim.ends_at != now + left and abs(claim.ends_at - now - left) > max(2.0, OUTLOOK_SHARE * left)
            if outlook.running != claim.running or moved:
                claim.running, claim.ends_at = outlook.running, now + left
                changed[claim.job.id] = outlook
        if changed:
            self._ledger.running.set_outlooks(changed, holder=self._coordinator)
        done = self._ended_cubins + sum(claim.total - claim.left for claim in self._claims.values())
        total = self._ended_cubins + sum(claim.total for claim in self._claims.values())
        self._progress.stands(Standing(done, total, prospect))

    def write(self) -> set[str]:
        """Writes what has come once there is some of it, and ends the jobs of which nothing is left.

        Gives the jobs that have ended since, also in another way.
        """
        now = self._clock.now()
        done = [claim for claim in self._claims.values() if not claim.left]
        if now - self._written_at > WRITE_SECONDS or (done and len(done) == len(self._claims)):
            self._flush()
        else:
            done = []  # together with the next ones, soon
        for claim in done:
            if claim.job.id in self._claims:
                self._set_stage([claim], claim.stage)  # it begins now if nothing had to be built for it
                self._end(claim, *claim.end)
        late = [
            each
            for each in self._claims.values()
            if each.began is not None and now - each.began > self._timeout_seconds
        ]
        for claim in late:
            self._flush()
            limit = f"it did not end within {format_seconds(self._timeout_seconds)} (FARM_JOB_TIMEOUT)"
            self._end_early(claim, Status.FAILED, limit, Fault.TIME)
        ended, self._ended = self._ended, set()
        return ended

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
        self._end(claim, status, f"{reason}; {claim.total - claim.left} of {claim.total} cubins were done", fault)

    def _end(self, claim: Claim, status: Status, reason: str, fault: str) -> None:
        job_id = claim.job.id
        self._forget(job_id)
        if self._ledger.finish(job_id, status, reason, holder=self._coordinator, fault=fault):
            self._ledger.add_event(job_id, "info" if status is Status.SUCCEEDED else "error", reason or "succeeded")
        self._progress.job_done(self._ledger.job(job_id))

    def _forget(self, job_id: str) -> None:
        claim = self._claims.pop(job_id)
        self._ended.add(job_id)
        self._ended_cubins = self._ended_cubins + claim.total - claim.left if self._claims else 0

    def _flush(self) -> None:
        """Writes what has come, and lets go of the jobs that were cancelled or taken over: theirs is not written."""
        self._ledger.record_results(self._results, holder=self._coordinator)
        self._ledger.statistics.record_runs(self._runs)
        held = self._ledger.held(self._coordinator)
        self._ledger.add_events([event for event in self._events if event[0] in held])
        self._results, self._runs, self._events = [], [], []
        self._written_at = self._clock.now()
        self._orphans = held - self._claims.keys()
        for job_id in self._claims.keys() - held:
            self._forget(job_id)
            self._progress.job_lost(self._ledger.job(job_id))

    def _say(self, claim: Claim, level: str, text: str) -> None:
        self._events.append((claim.job.id, level, text))

    def _set_stage(self, claims: Sequence[Claim], stage: str) -> None:
        """What runs of these jobs now; the first time, they begin."""
        changed = [claim for claim in claims if claim.stage != stage or claim.began is None]
        for claim in changed:
            claim.stage = stage
            claim.began = self._clock.now() if claim.began is None else claim.began
        if changed:
            ids = [claim.job.id for claim in changed]
            self._ledger.running.set_stage(ids, stage, holder=self._coordinator)

    def _set_waits(self, claims: Sequence[Claim], reason: str) -> None:
        changed = [claim for claim in claims if claim.waits != bool(reason)]
        for claim in changed:
            claim.waits = bool(reason)
        if changed:
            ids = [claim.job.id for claim in changed]
            self._ledger.running.set_reason(ids, reason, holder=self._coordinator)


def _builds(claims: Sequence[Claim]) -> dict[int, Build]:
    return {build.id: build for claim in claims for build in claim.builds.values()}
