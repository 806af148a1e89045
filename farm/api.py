"""Farm: the Python API of the compile farm, one method per operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from codegen.frontend.model_file import read_model
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.sass.qualification import NO_QUALIFICATIONS
from codegen.target.arch import check_archs, check_gpus, check_shared
from codegen.target.device_model import device_named
from codegen.toolchain.tools import Toolchain, find_toolchain
from farm.config.settings import Settings, load_settings
from farm.errors import CancelledError, JobFailedError, StoreError, UnreadableJobError, UsageError
from farm.executors import open_executor, open_gpu
from farm.executors.contract import Notice, no_notice
from farm.jobs.completeness import MissingLayer, whole_part
from farm.jobs.model import (
    BuildOptions,
    BuildResult,
    Event,
    Job,
    JobDetail,
    JobSet,
    NewJob,
    NewSubmission,
    Outcome,
    Status,
    batches_of,
    trace_id,
)
from farm.jobs.submission import (
    Submission,
    empty_layers_warning,
    fixed_images_warning,
    joined_notes,
    new_id,
    new_job,
)
from farm.ledger import CoordinatorState, Ledger, Statistics, Which, open_ledger
from farm.maintenance.gc import Limits, Sweep, collect_garbage
from farm.maintenance.inventory import Inventory, Tell, open_inventory, tell_nobody
from farm.maintenance.prune import prune_jobs
from farm.maintenance.remove import Stored, read_blob, remove_cached
from farm.maintenance.scheduled import ScheduledMaintenance
from farm.maintenance.scrub import Damage, scrub
from farm.maintenance.warm import Warmed, make_templates, missing_templates, warmed
from farm.reports.coverage import coverage_of, coverage_warning
from farm.reports.explanation import Explanation, explain
from farm.reports.job_report import JobReport, job_report
from farm.reports.sweep_points import sweep_points
from farm.reports.sweep_report import SweepReport
from farm.reports.trust import TrustSaving, trust_savings
from farm.scheduler.coordinator import Coordinator, open_coordinator
from farm.scheduler.plan import assembler_of, plan
from farm.scheduler.progress import Progress
from farm.signing import MAKE_KEY, Keyring, read_keyring
from farm.store import open_store
from farm.store.background import BackgroundPuts, BlobWriter
from farm.store.contract import Store
from farm.store.signed import SignedStore, check_signs
from farm.tuning.book import NO_RECORDS, TuningBook
from farm.tuning.files import shipped_records
from farm.tuning.rankings import KeptRankings
from farm.tuning.record import plain_arch
from farm.worker.cache_lookup import CUBIN_STAGE, known_toolchain, unasked_toolchain

if TYPE_CHECKING:
    from farm.bundle.model import CompiledModel
    from farm.qualification.qualify import QualificationOutcome, QualificationPlan, QualificationProgress
    from farm.reports import doctor
    from farm.reports.forecast import Forecast
    from farm.reports.metrics import MetricsServer
    from farm.verify.layers import LayerVerification
    from farm.verify.network import NetworkQuestion, NetworkVerification


class Farm:
    """The compile farm: a store, a ledger, and the coordinator that runs jobs.

    Every method may raise FarmError and CodegenError; their messages name the way out.
    """

    def __init__(self, settings: Settings, store: Store, ledger: Ledger) -> None:
        self._settings = settings
        self._store = store
        self._ledger = ledger

    @staticmethod
    def open(settings: Settings | None = None) -> Farm:
        """Opens the store and ledger of the settings; the default is what `farm config show` prints."""
        settings = load_settings() if settings is None else settings
        return Farm(settings, open_store(settings), open_ledger(settings))

    def close(self) -> None:
        """Closes the connections to the ledger."""
        self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @cached_property
    def toolchain(self) -> Toolchain:
        """nvcc and ptxas, located on first use. Raises ToolchainError."""
        return known_toolchain(find_toolchain(self._settings.nvcc, self._settings.ptxas), self._store)

    @cached_property
    def _rankings(self) -> KeptRankings:
        """The cost model's rankings, computed once per Farm and kept in the store."""
        settings = self._settings
        return KeptRankings(
            self._store, namespace=settings.namespace, writes=not settings.read_only, recache=settings.recache
        )

    def read(
        self,
        path: Path | str,
        input_shapes: Mapping[str, tuple[int | None, ...]] | None = None,
        input_values: Mapping[str, float] | None = None,
    ) -> Checkpoint:
        """Reads an ONNX file or a network in TSV files. Raises CheckpointError.

        `input_shapes` sets sizes of inputs that an ONNX file leaves open; None leaves one open.
        """
        return read_model(path, input_shapes, input_values)

    def submit(
        self, checkpoints: Iterable[Checkpoint], options: BuildOptions, *, name: str | None = None
    ) -> Submission:
        """Submits one job per checkpoint, named `name` or after its file; nothing runs yet.

        `checkpoints` may be a generator: the weights of one are in memory at a time. An unfinished job with equal name
        and input is reused. Raises ArchError and UsageError before any job is submitted.
        """
        from farm.runtime.planner import refusal_of

        notes: list[tuple[str, str]] = []
        asked = set()

        def note(checkpoint: Checkpoint, job: NewJob) -> None:
            fixed = fixed_images_warning(checkpoint, options.batches)
            notes.extend((checkpoint.path, note) for note in (*checkpoint.notes, fixed) if note)
            compiled = frozenset(build.layer for build in job.builds)
            network = (compiled, *((layer.name, layer.spec) for layer in checkpoint.layers))
            if network not in asked and (refusal := refusal_of(checkpoint, compiled)):  # those of a sweep are alike
                notes.append((checkpoint.path, refusal))
            asked.add(network)

        with BackgroundPuts(self._store) as writer:
            jobs = self._new_jobs(checkpoints, options, name, writer, self.toolchain, self._rankings, note)
        asked_for = NewSubmission(new_id(), self._settings.submitter, tuple(jobs))
        empty = empty_layers_warning(build for job in jobs for build in job.builds)
        coverages = (coverage_warning(job.name, coverage_of(job.builds, job.skipped)) for job in jobs)
        warnings = dict.fromkeys(filter(None, (*joined_notes(notes), empty, *coverages)))
        recorded = tuple(self._ledger.record_submission(asked_for))
        is_new = any(job.submission == asked_for.id for job in recorded)
        known = asked_for.id if is_new or not recorded else recorded[0].submission
        return Submission(known, recorded, tuple(warnings), is_new)

    def compile(
        self,
        checkpoints: Sequence[Checkpoint],
        options: BuildOptions,
        *,
        name: str | None = None,
        progress: Progress | None = None,
    ) -> list[Job]:
        """Submits jobs and runs them to their end. Raises the errors of `check_builds` and `submit`."""
        self.check_builds()
        submission = self.submit(checkpoints, options, name=name)
        return self.run([job.id for job in submission.jobs], progress)

    def compile_model(
        self,
        model: Path | str,
        archs: Sequence[str],
        *,
        batch: int | Sequence[int] = 64,
        input_shapes: Mapping[str, tuple[int | None, ...]] | None = None,
    ) -> CompiledModel:
        """Compiles an ONNX file, using the cache, and returns its cubins by layer and architecture.

        `batch` is the batch size to be fast at; with several, a layer has kernels for each (`CompiledLayer.parts_for`).
        Raises CheckpointError, ArchError and every error of `compiled`.
        """
        [job] = self.compile([self.read(model, input_shapes)], BuildOptions(tuple(archs), batches_of(batch)))
        return self.compiled(job.id)

    def forecast(
        self, checkpoints: Sequence[Checkpoint], options: BuildOptions, *, name: str | None = None
    ) -> Forecast:
        """Forecasts the cache hits, builds and time of `compile`; starts no tool and stores nothing.

        Raises ArchError and UsageError.
        """
        from farm.reports.forecast import forecast
        from farm.reports.shared_archs import apart

        toolchain = unasked_toolchain(find_toolchain(self._settings.nvcc, self._settings.ptxas), self._store)
        recache = self._settings.recache
        rankings = KeptRankings(self._store, writes=False, recache=recache)
        jobs = self._new_jobs(checkpoints, options, name, None, toolchain, rankings)
        own = apart(jobs[0].options, toolchain.archs) if jobs else None
        return forecast(
            jobs,
            checkpoints,
            toolchain,
            self._store,
            recache=recache,
            qualifications=self._ledger.qualifications.known(),
            own_jobs=self._new_jobs(checkpoints, own, name, None, toolchain, rankings) if own else (),
        )

    def warm(
        self,
        checkpoints: Sequence[Checkpoint],
        options: BuildOptions,
        tell: Tell = tell_nobody,
        notice: Notice = no_notice,
    ) -> Warmed:
        """Compiles the missing templates of checkpoints into the store, without jobs or weights.

        Raises ArchError, UsageError and StoreError before any tool runs.
        """
        self._check_writable("make templates")
        jobs = self._new_jobs(checkpoints, options, None, None, self.toolchain, self._rankings)
        todo = plan([(job, job.builds) for job in jobs], self.toolchain)
        self._ledger.record_keys("template", todo.template_fields)
        missing = missing_templates(todo, self._store, recache=self._settings.recache)
        if not missing:
            return warmed(todo, [])
        with open_executor(self._settings, self._store, self.toolchain, notice=notice) as executor:
            return warmed(todo, make_templates(missing, executor, tell))

    def _new_jobs(
        self,
        checkpoints: Iterable[Checkpoint],
        options: BuildOptions,
        name: str | None,
        store: BlobWriter | None,
        toolchain: Toolchain,
        rankings: KeptRankings,
        note: Callable[[Checkpoint, NewJob], None] = lambda *_: None,
    ) -> list[NewJob]:
        archs = check_archs(options.archs, toolchain)
        named = [device.name for device in map(device_named, options.archs) if device]
        gpus = tuple(dict.fromkeys((*check_gpus(options.gpus, archs), *named)))
        shared = options.shared or check_shared(options.archs, toolchain)
        trust = options.trust or self._settings.trust
        options = replace(options, archs=archs, gpus=gpus, shared=shared, trust=trust)
        book = replace(self.tuning_book(options.archs) if options.tuning else NO_RECORDS, ranking=rankings)

        qualifications = self._ledger.qualifications.known() if options.assembler == "auto" else NO_QUALIFICATIONS

        def is_direct(spec: LayerSpec, tiling: Tiling, arch: str) -> bool:
            return assembler_of(options, spec, tiling, arch, toolchain, qualifications)[0] == "direct"

        namespace = self._settings.namespace
        common = partial(new_job, options=options, namespace=namespace, store=store, book=book, is_direct=is_direct)
        jobs = []
        for checkpoint in checkpoints:
            jobs.append(common(checkpoint, name=name or checkpoint.name))
            note(checkpoint, jobs[-1])
        return jobs

    def tuning_book(self, archs: Sequence[str]) -> TuningBook:
        """Best tuning record per kind of layer, for these architectures."""
        return TuningBook.of(self._ledger.tuning.records([plain_arch(arch) for arch in archs]), shipped_records())

    def check_builds(self) -> None:
        """Raises UsageError if this machine cannot sign results: its jobs would stay PENDING."""
        check_signs(self._store)

    def run(self, job_ids: Sequence[str], progress: Progress | None = None) -> list[Job]:
        """Runs jobs with these full ids to their end, in this process and its workers; a failed job is no exception.

        Raises NotFoundError for an unknown id.
        """
        with self._coordinator(progress) as coordinator:
            return coordinator.run(job_ids)

    def serve(self, progress: Progress | None = None, *, drain: bool = False) -> None:
        """Runs pending jobs until interrupted or, with `drain`, until none is pending.

        Waits for workers without limit or, with `drain`, up to the limit in the settings. Raises UnreachableError;
        the jobs it held are then PENDING again, as after KeyboardInterrupt.
        """
        with self._coordinator(progress, None if drain else math.inf) as coordinator:
            coordinator.serve(drain=drain)

    def _coordinator(
        self, progress: Progress | None, patience_seconds: float | None = None
    ) -> AbstractContextManager[Coordinator]:
        return open_coordinator(self._settings, self._store, self._ledger, self.toolchain, progress, patience_seconds)

    def maintenance(self, progress: Progress) -> ScheduledMaintenance:
        """Hourly retention and garbage collection, active inside a `with` block."""
        return ScheduledMaintenance(self._settings, self._store, self._ledger, progress)

    def cancel(self, which: JobSet) -> list[str]:
        """Cancels the unfinished jobs of a set and returns their ids; finished cubins are kept."""
        return self._ledger.cancel(which, f"cancelled by {self._settings.submitter}")

    def retry(self, which: JobSet) -> list[str]:
        """Resets the unsuccessful jobs of a set to PENDING and returns their ids."""
        return self._ledger.retry(which, f"to be tried again, asked by {self._settings.submitter}")

    def coordinators(self) -> list[CoordinatorState]:
        """Coordinators that are alive or died recently, oldest first."""
        return self._ledger.coordinators.all()

    def is_served(self) -> bool:
        """Whether a `farm serve` is alive, which runs every pending job."""
        return self._ledger.coordinators.any_serves()

    def jobs(self, *, limit: int | None = None, **which: Unpack[Which]) -> list[Job]:
        """Jobs that match the filters, newest first."""
        return self._ledger.jobs(limit=limit, **which)

    def counts(self) -> dict[Status, int]:
        """Number of jobs in each state."""
        return self._ledger.counts()

    def count_claimed(self) -> int:
        """Number of running jobs that are claimed but not started."""
        return self._ledger.count_claimed()

    def job(self, job_id: str) -> Job:
        """The job with a unique id prefix, or "latest". Raises NotFoundError and UsageError."""
        return self._ledger.job(job_id)

    def jobs_by_id(self, ids: Collection[str]) -> list[Job]:
        """Existing jobs with these full ids, oldest first."""
        return sorted(self._ledger.jobs_by_id(ids).values(), key=lambda job: (job.submitted_at, job.id))

    def unfinished(self, ids: Collection[str]) -> set[str]:
        """The given full ids whose jobs have not ended."""
        return self._ledger.unfinished(ids)

    def check_submission(self, submission: str) -> None:
        """Raises NotFoundError for an unknown submission."""
        self._ledger.check_submission(submission)

    def inspect(self, job_id: str) -> JobDetail:
        """A job with its layers and cubins. Raises NotFoundError, UsageError and UnreadableJobError."""
        job = self.job(job_id)
        if job.unreadable:
            raise UnreadableJobError(job.unreadable)
        return JobDetail(job, tuple(self._ledger.builds(job.id)), tuple(self._ledger.results(job.id)))

    def trust_savings(self, details: Sequence[JobDetail]) -> tuple[TrustSaving, ...]:
        """Time that trust `checked` would have saved in the cubins that these jobs built."""
        built = [each for detail in details for each in detail.results if each.outcome is Outcome.BUILT]
        if not any(each.fallback for each in built):
            return ()
        todo = plan(
            [(detail.job, detail.builds) for detail in details], self.toolchain, self._ledger.qualifications.known()
        )
        return trust_savings(todo, {each.cubin_key: each.ptxas_seconds for each in built})

    def report(self, job_id: str) -> JobReport:
        """Report of a job: zeros, code size and kernel time per layer."""
        detail = self.inspect(job_id)
        trace = trace_id(detail.job.id) if self._settings.otlp_endpoint else ""
        return job_report(detail, self._ledger, self._store, trace)

    def sweep_report(self, submission: str) -> SweepReport:
        """Report of a submission: its checkpoints compared, and their runs over time. Raises NotFoundError."""
        self.check_submission(submission)
        jobs = self.jobs(submission=submission)[::-1]
        runs = tuple(self._ledger.statistics.timeline(submission))
        points = sweep_points(self.inspect(job.id) for job in jobs if not job.unreadable)
        return SweepReport(submission, tuple(jobs), runs, datetime.now(UTC), tuple(points))

    def logs(self, job_id: str, after_id: int = 0) -> list[Event]:
        """Events of a job after the event with that id, oldest first."""
        return self._ledger.events(self.job(job_id).id, after_id)

    def explain(self, build: str) -> tuple[Job, list[Explanation]]:
        """Why a build, JOB/LAYER or JOB/LAYER/ARCH, was a cache hit or miss. Raises NotFoundError, UnfinishedError."""
        job_id, _, what = build.partition("/")
        detail = self.inspect(job_id)
        return detail.job, explain(self._ledger, detail.job, detail.builds, detail.results, what)

    def statistics(self) -> Statistics:
        """Cache statistics since the last `zero_statistics`."""
        return self._ledger.statistics.read()

    def zero_statistics(self) -> datetime:
        """Resets the statistics and returns the time of the reset."""
        return self._ledger.statistics.zero()

    def metrics(self, port: int, host: str = "127.0.0.1") -> MetricsServer:
        """Prometheus endpoint, active inside a `with` block. Raises UsageError, UnreachableError."""
        from farm.reports.metrics import MetricsServer  # slow import: a web server

        return MetricsServer(self._ledger, port, host)

    def doctor(self) -> Iterator[doctor.Check]:
        """Checks every requirement of a compile, one after another."""
        from farm.reports import doctor

        return doctor.checks(self._settings)

    def compiled(self, job_id: str) -> CompiledModel:
        """Cubins of a job that succeeded, by layer and architecture.

        Raises NotFoundError, UnfinishedError, CancelledError, JobFailedError, BlobLostError.
        """
        from farm.bundle.model import compiled_model

        return compiled_model(self._succeeded(job_id), self._store)

    def fetch(
        self, job_id: str, directory: Path, *, partial: bool = False, ptx: bool = False, sign: bool = False
    ) -> Path:
        """Writes the bundle of a job that succeeded; returns the path of its manifest or of the `.farm` file.

        `partial` also accepts a job that failed or was cancelled, and writes its complete layers. `ptx` adds each
        kernel's PTX for the newest virtual architecture. `sign` verifies the layers as `verify` does, and signs the
        statement about the bundle. Raises BlobLostError and UsageError; JobFailedError or CancelledError for a job
        without a complete layer; JobFailedError for a layer that is wrong.
        """
        from farm.bundle.model import check_succeeded
        from farm.bundle.ptx import newest_ptx
        from farm.bundle.writer import write_bundle

        detail = self.inspect(job_id)
        whole, missing = whole_part(detail)
        try:
            check_succeeded(detail)
        except (JobFailedError, CancelledError) as error:
            if not whole.results:
                raise
            if not partial:
                layers = len({build.position for build in whole.builds})
                raise type(error)(
                    f"{error}; farm fetch --partial writes what there is: {layers} of "
                    f"{len({build.position for build in detail.builds})} layers"
                ) from None
            detail = whole
        tools = self._tool_versions(detail.results)
        kernels = newest_ptx(detail, self._store) if ptx else ()
        return write_bundle(
            directory,
            detail.job,
            detail.builds,
            detail.results,
            tools,
            self._store,
            missing,
            kernels,
            keys=self._signing_keys() if sign else None,
            verification=self._verified(detail) if sign else (),
        )

    def _signing_keys(self) -> Keyring:
        """The configured keys, of which the first can sign. Raises UsageError."""
        if self._settings.signing_keys is None:
            raise UsageError(
                f"bundles are signed with a key: make one with {MAKE_KEY} and name it in FARM_SIGNING_KEYS"
            )
        keys = read_keyring(self._settings.signing_keys)
        keys.private()
        return keys

    def _verified(self, detail: JobDetail) -> list[dict[str, Any]]:
        """The verification of each kernel, for the statement about a bundle. Raises JobFailedError."""
        from farm.verify.layers import verify_on_cpu

        verified = list(verify_on_cpu(self._store, detail.builds, detail.results, batch=1))
        for each in verified:
            if not each.verification.ok:
                raise JobFailedError(f"not signed: {each.layer} {','.join(each.archs)}: {each.verification.message}")
        return [
            {
                "layer": each.layer,
                "archs": list(each.archs),
                "on": each.where,
                "outputs": each.verification.outputs_checked,
                "relative_error": each.verification.relative_error,
            }
            for each in verified
        ]

    def unsigned_results(self, job_id: str) -> list[str]:
        """Names of a job's cubins for which the store has no valid signed record; none if records are not signed."""
        if not isinstance(self._store, SignedStore):
            return []
        detail = self.inspect(job_id)
        builds = {build.id: build for build in detail.builds}
        return [
            builds[each.build].cubin_name(each.arch, each.part)
            for each in detail.results
            if each.cubin and (self._store.get_record(CUBIN_STAGE, each.cubin_key) or {}).get("cubin") != each.cubin
        ]

    def missing_layers(self, job_id: str) -> tuple[MissingLayer, ...]:
        """Layers that a bundle of the job lacks: none if it succeeded."""
        return whole_part(self.inspect(job_id))[1]

    def verify(
        self,
        job_id: str,
        *,
        gpu: bool = False,
        batch: int = 2,
        seed: int = 0,
        local: bool = False,
        notice: Notice = no_notice,
    ) -> Iterator[LayerVerification]:
        """Verifies the layers of a job that succeeded, one by one: cubins in the emulator, or on a GPU.

        The emulator runs PTX where it does not support the machine code. The GPU is the cluster's or, with `local`,
        this machine's. Raises DeviceError and NoWorkerError without a GPU, UsageError for a batch larger than a kernel
        takes.
        """
        from farm.verify.layers import check_batch, verify_on_cpu

        detail = self._succeeded(job_id)
        check_batch(detail.builds, detail.results, batch)
        if not gpu:
            return verify_on_cpu(self._store, detail.builds, detail.results, batch=batch, seed=seed)
        return self._verify_on_gpu(detail, batch, seed, local, notice)

    def _verify_on_gpu(
        self, detail: JobDetail, batch: int, seed: int, local: bool, notice: Notice
    ) -> Iterator[LayerVerification]:
        from farm.verify.layers import verification_work, verify_on_gpu

        builds, results = detail.builds, detail.results
        with open_gpu(self._settings, local=local, notice=notice) as host:
            if host.is_remote:
                work = partial(verification_work, builds=builds, results=results, batch=batch, seed=seed)
                yield from host.run(work)
            else:  # this farm's store may differ from the one in its settings
                yield from verify_on_gpu(self._store, builds, results, batch=batch, seed=seed)

    def verify_network(
        self, job_id: str, question: NetworkQuestion, *, notice: Notice = no_notice
    ) -> NetworkVerification:
        """Compares a job's whole network with onnxruntime, in the emulator or on a GPU.

        Raises UsageError for a network that needs a framework, or that is too large for the emulator.
        """
        return question.answer(self._settings, self._store, self._succeeded(job_id), notice)

    def _succeeded(self, job_id: str) -> JobDetail:
        from farm.bundle.model import check_succeeded

        detail = self.inspect(job_id)
        check_succeeded(detail)
        return detail

    def _tool_versions(self, results: Sequence[BuildResult]) -> dict[str, str]:
        """Versions of nvcc and ptxas, from the keys of the first result."""
        template = self._ledger.key_fields(results[0].template_key) or {}
        cubin = self._ledger.key_fields(results[0].cubin_key) or {}
        return {"nvcc": template["compiler"], "ptxas": cubin["assembler"]}

    def qualify(
        self, plan: QualificationPlan, progress: QualificationProgress, *, local: bool = False
    ) -> QualificationOutcome:
        """Qualifies the direct assembler on a GPU of the cluster or, with `local`, of this machine.

        Raises DeviceError and NoWorkerError without a GPU, UsageError for an unsupported architecture.
        """
        from farm.qualification.qualify import qualify

        return qualify(self._settings, self._ledger, plan, progress, local=local)

    def inventory(self, tell: Tell = tell_nobody) -> AbstractContextManager[Inventory]:
        """Contents of the store, and which of them jobs in the ledger refer to."""
        return open_inventory(self._store, self._ledger.retention.references(), tell)

    def blob(self, prefix: str) -> bytes:
        """Bytes of the blob with a unique digest prefix. Raises UsageError, NotFoundError, BlobLostError."""
        return read_blob(self._store, prefix)

    def remove_cached(self, prefix: str, *, force: bool = False) -> Stored:
        """Removes the record or blob with a unique prefix from the store. Raises UsageError, NotFoundError."""
        self._check_writable()
        return remove_cached(self._store, self._ledger, prefix, force=force)

    def collect_garbage(self, limits: Limits, *, dry_run: bool = False, tell: Tell = tell_nobody) -> Sweep:
        """Removes records past the limits and unreferenced blobs from the store; safe while jobs run."""
        if not dry_run:
            self._check_writable()
        return collect_garbage(self._store, self._ledger, limits, dry_run=dry_run, tell=tell)

    def scrub(self, *, repair: bool = False, tell: Tell = tell_nobody) -> Iterator[Damage]:
        """Reads the whole store and yields its damaged records and blobs; `repair` removes them."""
        if repair:
            self._check_writable()
        return scrub(self._store, repair=repair, tell=tell)

    def prune(self, older_than_seconds: float) -> Iterator[int]:
        """Deletes jobs that ended longer ago, in batches; yields the size of each batch.

        Raises UsageError for an age below one hour.
        """
        return prune_jobs(self._ledger, older_than_seconds)

    def count_prunable(self, older_than_seconds: float) -> int:
        """Number of jobs that `prune` would delete."""
        return self._ledger.retention.count_older(older_than_seconds)

    def _check_writable(self, what: str = "remove something") -> None:
        """Raises StoreError for a read-only store; called before anything slow is read."""
        if self._settings.read_only:
            raise StoreError(f"the store {self._store.describe()} is read-only here: unset FARM_READ_ONLY to {what}")
