"""The build of one template or cubin: cache lookup, template, rewrite, assembly. Independent of Ray and the ledger."""

from __future__ import annotations

import re
import time
import traceback
from dataclasses import dataclass, replace

from codegen.errors import (
    CodegenError,
    MachineCodeError,
    TemplateError,
    ToolCrashed,
    ToolError,
    ToolOutOfMemory,
    ToolTimeout,
)
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Part
from codegen.kernels import tiled
from codegen.keys import REWRITER_SOURCES, code_digest, cubin_key, template_key
from codegen.ptx.rewrite import Kernel, KernelFacts, kernel_facts, rewrite
from codegen.ptx.template import Template, make_template
from codegen.sass.qualification import Assembler
from codegen.toolchain.ptxas import Cubin, assemble
from codegen.toolchain.temp_folders import remove_abandoned
from codegen.toolchain.tools import Toolchain, ToolLimits, tool_clock
from farm.config.settings import Settings, cores_folder
from farm.errors import BlobLostError, FarmError, NoWorkerError, StoreUnavailableError
from farm.store.contract import Record, Store, blob_digest
from farm.store.signed import was_rejected
from farm.worker.cache_lookup import CUBIN_STAGE, TEMPLATE_STAGE, find_cubin, find_template
from farm.worker.direct import DirectBuilds
from farm.worker.lru import DISTINCT_SHAPES, LruCache
from farm.worker.messages import (
    CubinFacts,
    CubinRequest,
    CubinResult,
    Failure,
    Fault,
    Request,
    Result,
    TemplateRequest,
    TemplateResult,
    failed,
)
from farm.worker.patch import PatchBuilds, difference, is_sampled

_REFUSAL = re.compile(r"^ptxas (error\s*:|[^,]*, line \d+;)", re.MULTILINE)
"""An error of ptxas about the PTX, not about its surroundings: only such failures are stored."""


class PartsNeededError(FarmError):
    """The assembler refused a whole layer, which is too large for ptxas: it must be split into parts."""


@dataclass(frozen=True)
class RewrittenKernel:
    """A template with weights written in, its digest, and the time that took."""

    kernel: Kernel
    digest: str
    """Digest of its PTX."""
    seconds: float


@dataclass(frozen=True)
class MachineCode:
    """A cubin, its assembler, and the reason if it fell back to ptxas."""

    cubin: Cubin
    assembler: Assembler
    rewritten: RewrittenKernel | None = None
    """The kernel whose PTX ptxas assembled; None for a cubin made without it."""
    fallback: str = ""
    sampled: bool = False
    """Whether a value patch was compared with ptxas's cubin."""


class Worker:
    """Builds one request at a time.

    Parsed templates, weights and rewritten kernels stay in LRU caches, because the parts of a layer follow each other,
    and so do the builds of one part for several architectures.
    """

    def __init__(
        self,
        store: Store,
        toolchain: Toolchain,
        limits: ToolLimits,
        *,
        recache: bool = False,
        namespace: str = "",
    ) -> None:
        self._store = store
        self._namespace = namespace
        """Recorded with each result, so that a team can collect the garbage of its own namespace."""
        self._toolchain = toolchain
        self._limits = limits
        self._recache = recache
        """Ignore stored results."""
        self._templates: LruCache[str, Template] = LruCache(DISTINCT_SHAPES)
        self._weights: LruCache[tuple[str, tuple[int, ...]], Weights] = LruCache(3)
        """By digest and shape: layers of different shape may have equal bytes."""
        self._kernels: LruCache[tuple[str, str, Part], RewrittenKernel] = LruCache(2)
        self._facts: LruCache[tuple[str, str, Part], KernelFacts] = LruCache(2)
        """Facts about kernels that were not rewritten."""
        self._direct = DirectBuilds(store, toolchain, self._put_record, recache=recache)
        self._patches = PatchBuilds(store, toolchain, self._put_record, recache=recache)
        self._warnings: list[str] = []
        """Warnings about the current request."""

    @staticmethod
    def of(settings: Settings, store: Store, toolchain: Toolchain) -> Worker:
        """A worker with the limits of the settings; removes temporary folders of killed workers on this machine."""
        remove_abandoned()
        limits = ToolLimits(settings.tool_timeout_seconds, settings.tool_memory_bytes, cores_folder(settings))
        return Worker(store, toolchain, limits, recache=settings.recache, namespace=settings.namespace)

    def build(self, request: Request) -> Result:
        """Build one request; a failure is in the result, not raised."""
        result = self._result(request)
        # Taken whatever the outcome: they are not the next request's.
        warning, seconds = self._take_warnings(), self._direct.take_made_seconds()
        if isinstance(result, CubinResult):
            return replace(result, warning=warning, skeleton_seconds=seconds)
        return replace(result, warning=warning)

    def _result(self, request: Request) -> Result:
        try:
            if isinstance(request, TemplateRequest):
                return self.build_template(request)
            return self.build_cubin(request)
        except ToolTimeout as error:
            return failed(request, _tool_failure(Fault.TIME, error))
        except ToolOutOfMemory as error:
            return failed(request, _tool_failure(Fault.MEMORY, error))
        except ToolCrashed as error:
            return failed(request, _tool_failure(Fault.CRASH, error))
        except ToolError as error:
            # The input of nvcc is this program's own; the input of ptxas depends on the checkpoint's weights.
            fault = Fault.FARM if isinstance(request, TemplateRequest) else Fault.INPUT
            return failed(request, _tool_failure(fault, error))
        except StoreUnavailableError as error:
            return failed(request, Failure(Fault.AWAY, str(error)))
        except BlobLostError as error:
            return failed(request, Failure(Fault.LOST, str(error)))
        except (CodegenError, FarmError) as error:
            return failed(request, Failure(Fault.FARM, str(error)))
        except OSError as error:
            return failed(request, Failure(Fault.FARM, f"operating system error on the worker's machine: {error}"))
        except Exception as error:  # noqa: BLE001 - a bug must not end the other builds
            message = f"internal error: {type(error).__name__}: {error}"
            return failed(request, Failure(Fault.FARM, message, stderr=traceback.format_exc()))

    def build_template(self, request: TemplateRequest) -> TemplateResult:
        """Make a template unless it is a cache hit. Raises CodegenError and FarmError."""
        self._check_template(request)
        if not self._recache and find_template(self._store, request.key) is not None:
            return TemplateResult(request.key, hit=True)
        template, seconds = self._make_template(request)
        self._templates.get(request.key, lambda: template)  # its first cubin usually follows
        return TemplateResult(request.key, seconds=seconds)

    def build_cubin(self, request: CubinRequest) -> CubinResult:
        """Make a cubin unless it is a cache hit, and its template if the store has lost it.

        Raises CodegenError and FarmError.
        """
        self._check_cubin(request)
        if not self._recache and (found := find_cubin(self._store, request.key, whole=request.whole)) is not None:
            return found
        try:
            code = self._machine_code(request)
        except PartsNeededError as error:
            self._put_record(CUBIN_STAGE, request.key, {"in_parts": str(error)})
            return CubinResult(request.key, Failure(Fault.PARTS, str(error)))
        except ToolError as error:
            ptx = self._store.put(self._rewritten(request).kernel.ptx)
            error.command = f"farm cache get {ptx} -o kernel.ptx && {error.command}"
            if type(error) is ToolError and _REFUSAL.search(error.stderr):
                refusal = {"error": str(error), "command": error.command, "stderr": error.stderr}
                self._put_record(CUBIN_STAGE, request.key, refusal)
            raise
        cubin, rewritten = code.cubin, code.rewritten
        kernel = self._facts_of(request) if rewritten is None else rewritten.kernel
        facts = CubinFacts(
            cubin=self._store.put(cubin.data),
            cubin_bytes=len(cubin.data),
            ptx=None if rewritten is None else rewritten.digest,
            rewriter=code_digest(REWRITER_SOURCES),
            fmas_kept=kernel.fmas_kept,
            fmas_deleted=kernel.fmas_deleted,
            registers=cubin.registers,
            spill_bytes=cubin.spill_bytes,
            rewrite_seconds=0.0 if rewritten is None else rewritten.seconds,
            ptxas_seconds=cubin.seconds,
            launch=kernel.launch,
            assembler=code.assembler,
            fallback=code.fallback,
            sampled=code.sampled,
        )
        self._put_record(CUBIN_STAGE, request.key, facts.to_json())
        return CubinResult(request.key, facts)

    def _take_warnings(self) -> str:
        warnings, self._warnings = self._warnings, []
        return "; ".join(warnings)

    def _machine_code(self, request: CubinRequest) -> MachineCode:
        limits, fallback = self._limits_of(request), ""
        try:
            if request.assembler == "direct":
                return MachineCode(self._direct.assemble(request, *self._inputs(request), limits), "direct")
            if request.assembler == "patch":
                return self._patched(request, limits)
        except MachineCodeError as error:
            if request.whole:
                raise PartsNeededError(str(error)) from error
            fallback = str(error)
        return self._by_ptxas(request, limits, fallback)

    def _by_ptxas(self, request: CubinRequest, limits: ToolLimits, fallback: str) -> MachineCode:
        rewritten = self._rewritten(request)
        cubin = assemble(rewritten.kernel.ptx, request.arch, self._toolchain, request.options, limits)
        return MachineCode(cubin, "ptxas", rewritten, fallback)

    def _patched(self, request: CubinRequest, limits: ToolLimits) -> MachineCode:
        """A patched cubin. A sampled one that ptxas makes differently is replaced by ptxas's, with a warning."""
        cubin, assembler = self._patches.assemble(request, *self._inputs(request), limits)
        if not is_sampled(request.weights):
            return MachineCode(cubin, assembler, self._rewritten(request) if assembler == "ptxas" else None)
        made = self._by_ptxas(request, limits, "")
        wrong = difference(cubin, made.cubin)
        if not wrong:
            return replace(made, cubin=cubin, assembler=assembler, sampled=True)
        self._patches.refuse(request, *self._inputs(request), wrong)
        self._warnings.append(wrong)
        return replace(made, fallback=wrong, sampled=True)

    def _limits_of(self, request: Request) -> ToolLimits:
        return replace(self._limits, memory_bytes=request.memory_limit_bytes or self._limits.memory_bytes)

    def _make_template(self, request: TemplateRequest) -> tuple[Template, float]:
        limits = self._limits_of(request)
        with tool_clock() as nvcc:
            template = make_template(request.spec, request.tiling, request.virtual_arch, self._toolchain, limits)
        digest = self._store.put(template.ptx.encode())
        self._put_record(TEMPLATE_STAGE, request.key, {"ptx": digest, "seconds": nvcc.seconds})
        return template, nvcc.seconds

    def _put_record(self, stage: str, key: str, record: Record) -> None:
        if was_rejected(self._store, stage, key):
            self._warnings.append(f"stored {stage} {key[:12]} has no valid signature and was rebuilt")
        self._store.put_record(stage, key, {**record, "namespace": self._namespace})

    def _template(self, request: TemplateRequest) -> Template:
        ptx = find_template(self._store, request.key)
        if ptx is not None:
            try:
                return Template.from_ptx(ptx)
            except TemplateError as error:
                self._warnings.append(f"stored template {request.key[:12]} is damaged and was rebuilt: {error}")
        return self._make_template(request)[0]

    def _read_weights(self, spec: LayerSpec, digest: str) -> Weights:
        data = self._store.get(digest)
        if data is None:
            raise BlobLostError(f"the weights {digest[:12]} are no longer in {self._store.describe()}: compile again")
        return Weights.from_bytes(spec, data)

    def _inputs(self, request: CubinRequest) -> tuple[Template, Weights]:
        of_template = request.template
        spec = of_template.spec
        weights = self._weights.get(
            (request.weights, spec.weights_shape), lambda: self._read_weights(spec, request.weights)
        )
        return self._templates.get(of_template.key, lambda: self._template(of_template)), weights

    def _facts_of(self, request: CubinRequest) -> KernelFacts:
        template, weights = self._inputs(request)
        layer = tiled(template.spec, template.tiling)
        return self._facts.get(_kernel_of(request), lambda: kernel_facts(layer, weights, request.part))

    def _rewritten(self, request: CubinRequest) -> RewrittenKernel:
        return self._kernels.get(_kernel_of(request), lambda: self._rewrite(request))

    def _rewrite(self, request: CubinRequest) -> RewrittenKernel:
        template, weights = self._inputs(request)
        start = time.monotonic()
        kernel = rewrite(template, weights, request.part)
        return RewrittenKernel(kernel, blob_digest(kernel.ptx), time.monotonic() - start)

    def _check_template(self, request: TemplateRequest) -> None:
        """Raises NoWorkerError if this worker's template would not be the one that the key identifies."""
        tools = self._toolchain
        key = template_key(
            request.spec, request.tiling, request.virtual_arch, tools.nvcc_version, tools.compiler_digest
        )
        if key.digest != request.key:
            raise NoWorkerError(
                f"this worker's nvcc ({tools.nvcc_version}), cicc, CUDA headers or program version differs from the "
                "coordinator's: install the same one on both"
            )

    def _check_cubin(self, request: CubinRequest) -> None:
        key = cubin_key(
            request.template.key,
            request.weights,
            request.part,
            request.arch,
            request.options,
            self._toolchain.ptxas_version,
            made_by=request.assembler,
        )
        if key.digest != request.key:
            raise NoWorkerError(
                f"this worker's ptxas ({self._toolchain.ptxas_version}) or program version differs from the "
                "coordinator's: install the same one on both"
            )


def _kernel_of(request: CubinRequest) -> tuple[str, str, Part]:
    """The template, weights and part of a request, which identify its kernel for every architecture."""
    return request.template.key, request.weights, request.part


def _tool_failure(fault: Fault, error: ToolError) -> Failure:
    return Failure(fault, str(error), error.command, error.stderr)
