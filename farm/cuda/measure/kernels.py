"""Builds of the kernels to be measured, by the farm's worker with the store as cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import LifoQueue
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

from codegen.errors import CodegenError
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Accumulator, Part, Tiling
from codegen.kernels import needs_clusters, template_cost, tiled
from codegen.keys import cubin_key, template_key
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.sass.qualification import NO_QUALIFICATIONS, Assembler, AssemblerChoice, Qualifications, assembler_for
from codegen.selection.choose import choose_parts
from codegen.selection.code_size import fits_one_cubin
from codegen.selection.cost_model import predict_microseconds
from codegen.target.arch import has_clusters, virtual_arch
from codegen.toolchain.ptxas import ptxas_options
from codegen.toolchain.tools import Toolchain
from farm.config.settings import Settings
from farm.cuda.measure.code_sizes import machine_instructions, ptx_instructions
from farm.cuda.measure.workload import Case
from farm.errors import FarmError
from farm.executors.processes import WorkerProcess
from farm.jobs.model import BuildOptions, TilingChoice
from farm.store.contract import Store
from farm.store.memory import MemoryStore
from farm.tuning.book import NO_RECORDS, TuningBook
from farm.worker.build import Worker
from farm.worker.cache_lookup import find_template, read_cubin
from farm.worker.messages import (
    CubinFacts,
    CubinRequest,
    CubinResult,
    Failure,
    Fault,
    Request,
    Result,
    TemplateRequest,
    failed,
)

Made = TypeVar("Made")
GIVEN_UP = "given up"


@dataclass(frozen=True, eq=False)
class BuiltLayer:
    """The cubins of one layer, ready to be loaded."""

    tiling: Tiling
    kernels: tuple[tuple[bytes, Launch], ...]
    """Cubin and launch of each part."""
    predicted_microseconds: float
    """Predicted time with the code in the caches, as measured."""
    facts: dict[str, Any]
    """Facts for the JSON document."""


class NotBuiltError(Exception):
    """The reason why there is no kernel."""


class _PartsNeededError(NotBuiltError):
    """The layer cannot be one cubin."""


class KernelPool:
    """Builds layers for one architecture on all CPUs; used in a `with` block."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        toolchain: Toolchain,
        arch: str,
        optimisation: int = 3,
        *,
        gpu: str = "",
        with_ptx: bool = False,
        book: TuningBook = NO_RECORDS,
        assembler: AssemblerChoice = "ptxas",
        qualifications: Qualifications = NO_QUALIFICATIONS,
    ) -> None:
        """`gpu`: its name, if it is not the architecture's typical one. `book`: tuning records to take tilings from.

        `qualifications` say which layers the assembler `auto` assembles directly, as for `farm compile`.
        """
        self._settings = settings
        self._store = store
        self._toolchain = toolchain
        self._arch = arch
        self._gpu = gpu
        self._optimisation = optimisation
        self._book = book
        self._with_ptx = with_ptx
        self._assembler: AssemblerChoice = assembler
        self._trust = settings.trust
        self._qualifications = qualifications
        self._lock = Lock()
        self._templates: dict[str, Future[None]] = {}
        self._layers = ThreadPoolExecutor(settings.jobs, thread_name_prefix="layer")
        """Threads that wait for tools, so that the parts of a large layer are built in parallel."""
        self._tools = ThreadPoolExecutor(settings.jobs, thread_name_prefix="build")
        count = 0 if isinstance(store, MemoryStore) else settings.jobs  # other processes cannot read a store in memory
        theirs = replace(settings, database_url="", nvcc=toolchain.nvcc, ptxas=toolchain.ptxas)
        self._processes = [WorkerProcess(theirs) for _ in range(count)]
        """One process per thread, because Python assembles on one core only."""
        self._idle: LifoQueue[WorkerProcess] = LifoQueue()
        """Idle processes, last used first, so that no more are started than run at once."""
        for process in self._processes:
            self._idle.put(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in (self._layers, self._tools):
            pool.shutdown(wait=error is None, cancel_futures=True)  # Ctrl-C waits for no tool
        for process in self._processes:
            process.end() if error is None else process.kill()

    def begin(self, compile_peer: Callable[[str, Toolchain], Made]) -> Future[Made]:
        """Run a peer's own compilation on the pool's threads, with the pool's architecture and tools."""
        return self._tools.submit(compile_peer, self._arch, self._toolchain)

    @property
    def workers(self) -> int:
        """Number of parallel builds."""
        return self._settings.jobs

    def assembler_of(self, spec: LayerSpec, tiling: Tiling) -> Assembler:
        """The assembler of a layer."""
        version, level = self._toolchain.ptxas_version, self._optimisation
        choice, known = self._assembler, self._qualifications
        return assembler_for(choice, spec, tiling, self._arch, version, known, optimisation=level, trust=self._trust)[0]

    def submit(
        self,
        case: Case,
        accumulate: Accumulator = "float32",
        tiling: Tiling | None = None,
        wanted: Callable[[], bool] = lambda: True,
        *,
        fallback: bool = True,
    ) -> Future[BuiltLayer]:
        """Start the build of a layer, with the chosen tiling unless one is given. Its future raises NotBuiltError.

        When `wanted` returns False, the build ends before its next kernel. Without `fallback`, a layer that the
        assembler refuses is not built: ptxas may take minutes.
        """
        return self._layers.submit(self._build, case, accumulate, tiling, wanted, fallback)

    def _build(
        self, case: Case, accumulate: Accumulator, tiling: Tiling | None, wanted: Callable[[], bool], fallback: bool
    ) -> BuiltLayer:
        spec, nonzeros = case.spec, case.weights.nonzeros_per_output
        try:
            options = self._options(accumulate)
            choice = TilingChoice(self._arch)
            if tiling is None:
                [(tiling, choice)] = self._book.tilings(spec, case.images, nonzeros, options)
            parts = choose_parts(spec, tiling, nonzeros)
            newest = needs_clusters(tiling) or (tiling.listed and has_clusters(self._arch))  # listed: they may overlap
            virtual = virtual_arch(self._arch, clusters=newest)
            tools = self._toolchain
            key = template_key(spec, tiling, virtual, tools.nvcc_version, tools.compiler_digest).digest
            template = TemplateRequest(spec, tiling, virtual, key, template_cost(spec, tiling))
            self._make_template(template)
            weights = self._store.put(case.weights.to_bytes())
            made = self._make_cubins(case, template, weights, parts, wanted, fallback)
            cubins = [read_cubin(self._store, each.cubin, case.key.operator) for each in made]
        except (CodegenError, FarmError) as error:
            raise NotBuiltError(str(error)) from None
        density = case.weights.nonzeros / spec.weights_count
        device = self._options(accumulate).device(self._arch)
        predicted = predict_microseconds(tiled(spec, tiling), case.images, density, device=device, cold=False)
        kernels = tuple((cubin, each.launch) for cubin, each in zip(cubins, made, strict=True))
        facts = {**_facts(tiling, made), "tiling_of": choice.gpu or "model"}
        facts["machine_instructions"] = sum(machine_instructions(cubin) for cubin, _ in kernels)
        if self._with_ptx:
            facts |= self._ptx_facts(key, case, parts)
        return BuiltLayer(tiling, kernels, predicted, facts)

    def _options(self, accumulate: Accumulator) -> BuildOptions:
        return BuildOptions((self._arch,), accumulate=accumulate, optimisation=self._optimisation, gpus=(self._gpu,))

    def _ptx_facts(self, template_key: str, case: Case, parts: Sequence[Part]) -> dict[str, int]:
        """Facts about the rewritten PTX, which is made again because the store keeps only cubins."""
        text = find_template(self._store, template_key)
        if text is None:
            return {}
        template = Template.from_ptx(text)
        ptx = [rewrite(template, case.weights, part).ptx for part in parts]
        return {"ptx_bytes": sum(map(len, ptx)), "ptx_instructions": sum(map(ptx_instructions, ptx))}

    def _make_template(self, request: TemplateRequest) -> None:
        """Build a template once for all cases that share it: the first thread builds it, the others wait."""
        with self._lock:
            future = self._templates.get(request.key)
            mine = future is None
            if future is None:
                future = self._templates[request.key] = Future()
        if mine:
            try:
                failure = self._tools.submit(self._done, request).result().failure
                why = "" if failure is None else failure.message
            except (CancelledError, RuntimeError):  # the pool has ended, so the waiting threads must end too
                why = GIVEN_UP
            if why:
                future.set_exception(NotBuiltError(why))
            else:
                future.set_result(None)
        future.result()

    def _make_cubins(
        self,
        case: Case,
        template: TemplateRequest,
        weights: str,
        parts: Sequence[Part],
        wanted: Callable[[], bool],
        fallback: bool,
    ) -> list[CubinFacts]:
        """Build one cubin if it can be assembled directly as a whole, else one per part, in parallel."""
        spec, tiling = template.spec, template.tiling
        assembler = self.assembler_of(spec, tiling)
        only_direct = assembler == "direct" and not fallback

        def make(part: Part, whole: bool) -> Future[CubinFacts]:
            return self._tools.submit(self._make_cubin, template, weights, part, wanted, assembler, whole)

        if assembler == "direct" and len(parts) > 1 and fits_one_cubin(spec, tiling, case.weights.nonzeros_per_output):
            try:
                return [make(Part(parts[0].first, parts[-1].end), whole=True).result()]
            except _PartsNeededError:
                if only_direct:
                    raise
        return [each.result() for each in [make(part, whole=only_direct) for part in parts]]

    def _make_cubin(
        self,
        template: TemplateRequest,
        weights: str,
        part: Part,
        wanted: Callable[[], bool],
        assembler: Assembler,
        whole: bool,
    ) -> CubinFacts:
        if not wanted():
            raise NotBuiltError(GIVEN_UP)
        options = ptxas_options(self._optimisation, clusters=template.tiling.splits_streams)
        version = self._toolchain.ptxas_version
        key = cubin_key(template.key, weights, part, self._arch, options, version, made_by=assembler)
        request = CubinRequest(
            template, weights, part, self._arch, options, key.digest, 0, assembler=assembler, whole=whole
        )
        match self._done(request):
            case CubinResult(made=CubinFacts() as made):
                return made
            case CubinResult(made=Failure(fault=Fault.PARTS) as failure):
                raise _PartsNeededError(failure.message)
            case result:
                raise NotBuiltError(result.failure.message if result.failure else GIVEN_UP)

    def _done(self, request: Request) -> Result:
        """Build a request in an idle process, or in this one if there are none."""
        if not self._processes:
            return Worker.of(self._settings, self._store, self._toolchain).build(request)
        process = self._idle.get()
        try:
            process.start()
            return process.build(request)
        except OSError as error:
            return failed(request, Failure(Fault.CRASH, f"its worker cannot be started: {error}"))
        finally:
            self._idle.put(process)


def _facts(tiling: Tiling, made: Sequence[CubinFacts]) -> dict[str, Any]:
    return {
        "tiling": tiling.to_json(),
        "parts": len(made),
        "assembler": ", ".join(sorted({each.assembler for each in made})),
        "registers": max(each.registers for each in made),
        "spill_bytes": sum(each.spill_bytes for each in made),
        "cubin_bytes": sum(each.cubin_bytes for each in made),
        "fmas_kept": sum(each.fmas_kept for each in made),
        "fmas_deleted": sum(each.fmas_deleted for each in made),
    }
