"""Farm: what people and programs do with the farm, one method for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from codegen.frontend.model_file import read_model
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.sass.qualification import NOTHING_ADMITTED
from codegen.target.arch import check_archs
from codegen.toolchain.tools import Toolchain, find_toolchain
from farm.config.settings import Settings, load_settings
from farm.errors import CancelledError, JobFailedError
from farm.executors import open_executor
from farm.executors.contract import Notice, no_notice
from farm.executors.gpu import open_gpu
from farm.jobs.completeness import MissingLayer, whole_part
from farm.jobs.model import BuildOptions, BuildResult, Job, JobDetail, JobSet, NewJob, NewSubmission
from farm.jobs.submission import Submission, dense_warnings, new_id, new_job
from farm.ledger import open_ledger
from farm.maintenance.inventory import Tell, tell_nobody
from farm.maintenance.keeper import Keeper
from farm.maintenance.scheduled import Upkeep
from farm.maintenance.warm import Warmed, make_templates, missing_templates, warmed
from farm.reports.coverage import coverage_of, coverage_warning
from farm.reports.reader import Reader
from farm.scheduler.coordinator import Coordinator, open_coordinator
from farm.scheduler.plan import assembler_of, plan
from farm.scheduler.progress import Progress
from farm.store import open_store
from farm.store.contract import Store
from farm.tuning.book import NO_RECORDS, TuningBook
from farm.tuning.files import shipped_records
from farm.tuning.rankings import KeptRankings
from farm.tuning.record import plain_arch
from farm.worker.cache_lookup import known_toolchain, unasked_toolchain

if TYPE_CHECKING:
    from farm.bundle.model import CompiledModel
    from farm.reports import doctor
    from farm.reports.forecast import Forecast
    from farm.verify.layers import LayerVerification
    from farm.verify.network import NetworkQuestion, NetworkVerification


class Farm(Keeper, Reader):
    """A store, a ledger, and what runs jobs. Raises FarmError and CodegenError, each with the way out."""

    @staticmethod
    def open(settings: Settings | None = None) -> Farm:
        """The farm that the settings describe: without any, those that `farm config show` prints."""
        settings = load_settings() if settings is None else settings
        return Farm(settings, open_store(settings), open_ledger(settings))

    def close(self) -> None:
        """Gives the connections back."""
        self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def toolchain(self) -> Toolchain:
        """Found when it is first needed: reading the ledger needs none. A job that is fully cached runs no tool."""
        return known_toolchain(find_toolchain(self._settings.nvcc, self._settings.ptxas), self._store)

    @cached_property
    def _rankings(self) -> KeptRankings:
        """The cost model's, made once for all that is submitted here."""
        settings = self._settings
        return KeptRankings(
            self._store, namespace=settings.namespace, writes=not settings.read_only, recache=settings.recache
        )

    def read(self, path: Path | str, input_shapes: Mapping[str, tuple[int, ...]] | None = None) -> Checkpoint:
        """Reads an ONNX file, or a network of TSV files. Raises CheckpointError."""
        return read_model(path, input_shapes)

    def submit(
        self, checkpoints: Sequence[Checkpoint], options: BuildOptions, *, name: str | None = None
    ) -> Submission:
        """One job for each checkpoint, called `name` or after its file; nothing runs yet.

        An unfinished job of the same name and input stands in for a new one. Raises ArchError and UsageError before
        anything is submitted.
        """
        jobs = self._new_jobs(checkpoints, options, name, self._store, self.toolchain, self._rankings)
        submission = NewSubmission(new_id(), self._settings.submitter, tuple(jobs))
        notes = (f"{checkpoint.path}: {note}" for checkpoint in checkpoints for note in checkpoint.notes)
        dense = (warning for job in jobs for warning in dense_warnings(job.builds))
        coverages = (coverage_warning(job.name, coverage_of(job.builds, job.skipped)) for job in jobs)
        warnings = dict.fromkeys((*notes, *dense, *filter(None, coverages)))
        return Submission(submission.id, tuple(self._ledger.record_submission(submission)), tuple(warnings))

    def warm(
        self,
        checkpoints: Sequence[Checkpoint],
        options: BuildOptions,
        tell: Tell = tell_nobody,
        notice: Notice = no_notice,
    ) -> Warmed:
        """Makes the templates that are not there yet: no job waits for them, no weights are stored.

        Raises ArchError, UsageError and StoreError before anything runs.
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

    def forecast(
        self, checkpoints: Sequence[Checkpoint], options: BuildOptions, *, name: str | None = None
    ) -> Forecast:
        """What `compile` would make, find in the store and take; starts no tool and stores nothing.

        Raises ArchError, and UsageError as `submit` does.
        """
        from farm.reports.forecast import forecast

        toolchain = unasked_toolchain(find_toolchain(self._settings.nvcc, self._settings.ptxas), self._store)
        recache = self._settings.recache
        rankings = KeptRankings(self._store, writes=False, recache=recache)
        jobs = self._new_jobs(checkpoints, options, name, None, toolchain, rankings)
        admissions = self._ledger.admissions.known()
        return forecast(jobs, checkpoints, toolchain, self._store, recache=recache, admissions=admissions)

    def _new_jobs(
        self,
        checkpoints: Sequence[Checkpoint],
        options: BuildOptions,
        name: str | None,
        store: Store | None,
        toolchain: Toolchain,
        rankings: KeptRankings,
    ) -> list[NewJob]:
        options = replace(options, archs=check_archs(options.archs, toolchain))
        book = replace(self.tuning_book(options.archs) if options.tuning else NO_RECORDS, ranking=rankings)

        admissions = self._ledger.admissions.known() if options.assembler == "auto" else NOTHING_ADMITTED

        def is_direct(spec: LayerSpec, tiling: Tiling, arch: str) -> bool:
            return assembler_of(options, spec, tiling, arch, toolchain, admissions)[0] == "direct"

        namespace = self._settings.namespace
        common = partial(new_job, options=options, namespace=namespace, store=store, book=book, is_direct=is_direct)
        return [common(each, name=name or each.name) for each in checkpoints]

    def tuning_book(self, archs: Sequence[str]) -> TuningBook:
        """The best tuning record of each kind of layer for these architectures."""
        return TuningBook.of(self._ledger.tuning.records([plain_arch(arch) for arch in archs]), shipped_records())

    def run(self, job_ids: Sequence[str], progress: Progress | None = None) -> list[Job]:
        """Runs jobs to their end, in this process and its workers. A failed job is a result, not an exception."""
        with self._coordinator(progress) as coordinator:
            return coordinator.run(job_ids)

    def serve(self, progress: Progress | None = None, *, drain: bool = False) -> None:
        """Runs whatever is pending, until it is interrupted or, with `drain`, until nothing is.

        Waits for workers for as long as it takes, with `drain` as long as the settings say.

        Raises UnreachableError; the jobs it had are pending again then, as after KeyboardInterrupt.
        """
        with self._coordinator(progress, None if drain else math.inf) as coordinator:
            coordinator.serve(drain=drain)

    def _coordinator(
        self, progress: Progress | None, patience_seconds: float | None = None
    ) -> AbstractContextManager[Coordinator]:
        return open_coordinator(self._settings, self._store, self._ledger, self.toolchain, progress, patience_seconds)

    def upkeep(self, progress: Progress) -> Upkeep:
        """Applies the limits of store and ledger hour by hour while it is in a `with` block."""
        return Upkeep(self._settings, self._store, self._ledger, progress)

    def cancel(self, which: JobSet) -> list[str]:
        """Cancels those of the jobs that have not ended, and gives their ids; what they have built is kept."""
        return self._ledger.cancel(which, f"cancelled by {self._settings.submitter}")

    def retry(self, which: JobSet) -> list[str]:
        """Puts those of the jobs that ended without success back to PENDING, and gives their ids."""
        return self._ledger.retry(which, f"to be tried again, asked by {self._settings.submitter}")

    def compile(
        self,
        checkpoints: Sequence[Checkpoint],
        options: BuildOptions,
        *,
        name: str | None = None,
        progress: Progress | None = None,
    ) -> list[Job]:
        """Submits and runs."""
        submission = self.submit(checkpoints, options, name=name)
        return self.run([job.id for job in submission.jobs], progress)

    def compile_model(
        self,
        model: Path | str,
        archs: Sequence[str],
        *,
        batch: int = 64,
        input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> CompiledModel:
        """Compiles an ONNX file and gives its cubins by layer and architecture; what the cache holds is not built.

        Raises CheckpointError, ArchError, JobFailedError and whatever else `compiled` raises.
        """
        [job] = self.compile([self.read(model, input_shapes)], BuildOptions(tuple(archs), batch=batch))
        return self.compiled(job.id)

    def compiled(self, job_id: str) -> CompiledModel:
        """The cubins of a job that succeeded, by layer and architecture.

        Raises NotFoundError, UnfinishedError, CancelledError, JobFailedError, BlobLostError.
        """
        from farm.bundle.model import compiled_model

        return compiled_model(self._succeeded(job_id), self._store)

    def fetch(self, job_id: str, directory: Path, *, partial: bool = False, ptx: bool = False) -> Path:
        """Writes the bundle of a job that succeeded; gives its manifest. Raises BlobLostError and UsageError.

        With `partial`, of a job that ended otherwise too: the layers that are whole, `missing_layers` are the others.
        Raises JobFailedError if there is none. With `ptx`, also each kernel's PTX of the newest virtual architecture.
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
        return write_bundle(directory, detail.job, detail.builds, detail.results, tools, self._store, missing, kernels)

    def missing_layers(self, job_id: str) -> tuple[MissingLayer, ...]:
        """What a bundle of the job lacks: nothing, if it succeeded."""
        return whole_part(self.inspect(job_id))[1]

    def verify(
        self,
        job_id: str,
        *,
        gpu: bool = False,
        machine: bool = False,
        batch: int = 2,
        seed: int = 0,
        local: bool = False,
        notice: Notice = no_notice,
    ) -> Iterator[LayerVerification]:
        """Verifies the layers of a job that succeeded, one by one: PTX in the emulator, or cubins on a GPU.

        With `machine` the emulator runs the words of the cubins for sm_90 instead of their PTX.
        The GPU is the cluster's, or with `local` this machine's. Raises DeviceError and NoWorkerError without one,
        UsageError for more images than a kernel takes.
        """
        from farm.verify.layers import check_batch, verify_on_cpu

        detail = self._succeeded(job_id)
        check_batch(detail.builds, detail.results, batch)
        if not gpu:
            return verify_on_cpu(self._store, detail.builds, detail.results, machine=machine, batch=batch, seed=seed)
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
            else:  # by this farm's store, which may be none that the settings name
                yield from verify_on_gpu(self._store, builds, results, batch=batch, seed=seed)

    def verify_network(
        self, job_id: str, question: NetworkQuestion, *, notice: Notice = no_notice
    ) -> NetworkVerification:
        """Compares a job's whole network with onnxruntime, in the emulator or on a GPU as `verify` does.

        Raises UsageError for a network that does not run without a framework, or is too large for the emulator.
        """
        return question.answer(self._settings, self._store, self._succeeded(job_id), notice)

    def doctor(self) -> Iterator[doctor.Check]:
        """Tries everything that a compile needs."""
        from farm.reports import doctor

        return doctor.checks(self._settings)

    def zero_statistics(self) -> datetime:
        """Counts anew from now."""
        return self._ledger.statistics.zero()

    def _succeeded(self, job_id: str) -> JobDetail:
        from farm.bundle.model import check_succeeded

        detail = self.inspect(job_id)
        check_succeeded(detail)
        return detail

    def _tool_versions(self, results: Sequence[BuildResult]) -> dict[str, str]:
        """Versions of the tools that made the cubins, from their keys."""
        template = self._ledger.key_fields(results[0].template_key) or {}
        cubin = self._ledger.key_fields(results[0].cubin_key) or {}
        return {"nvcc": template["compiler"], "ptxas": cubin["assembler"]}
