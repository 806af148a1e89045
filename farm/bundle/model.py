"""A compiled model in memory: cubins and how to launch them, by layer and architecture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from codegen.ir.launch import MOST_IMAGES, Launch
from codegen.ir.layer_spec import LayerSpec, SkippedLayer
from farm.bundle.row_groups import group_for, row_groups
from farm.errors import CancelledError, JobFailedError, UnfinishedError, UsageError
from farm.jobs.model import Build, BuildResult, JobDetail, Status
from farm.store.contract import Store
from farm.worker.cache_lookup import read_cubin


@dataclass(frozen=True)
class CompiledPart:
    """One kernel of a layer. Most layers have one; a large layer has several, each for other output channels."""

    cubin: bytes
    """Machine code, for cuModuleLoadData."""
    launch: Launch
    """Name, grid, block, shared memory and arguments of the kernel."""
    registers: int
    """Per thread."""
    spill_bytes: int
    """Per thread."""
    most_rows: int = MOST_IMAGES
    """Largest number of images, or of rows of a linear layer, that it is meant for."""


@dataclass(frozen=True)
class CompiledLayer:
    """A layer for one architecture."""

    name: str
    arch: str
    spec: LayerSpec
    """The layer's shape and data type."""
    parts: tuple[CompiledPart, ...]
    """All kernels of the layer: launch those of `parts_for`, in any order or concurrently."""

    def parts_for(self, rows: int) -> tuple[CompiledPart, ...]:
        """The kernels that together compute the layer for a number of images, or of rows of a linear layer.

        They are all `parts`, unless the model was compiled for several batch sizes.
        """
        return tuple(group_for(row_groups(self.parts), rows))

    @property
    def cubin(self) -> bytes:
        """The layer's only cubin. Raises UsageError if it has several: see `parts_for`."""
        return self._only().cubin

    @property
    def launch(self) -> Launch:
        """Launch of the layer's only kernel. Raises UsageError if it has several: see `parts_for`."""
        return self._only().launch

    def _only(self) -> CompiledPart:
        if len(self.parts) > 1:
            raise UsageError(f"{self.name} has {len(self.parts)} cubins for {self.arch}: launch those of `parts_for`")
        return self.parts[0]


class CompiledModel(Mapping[str, Mapping[str, CompiledLayer]]):
    """The layers of a job that succeeded, in graph order: `model["conv1"]["sm_90"]` is a CompiledLayer."""

    def __init__(self, job_id: str, layers: Mapping[str, Mapping[str, CompiledLayer]], skipped: Sequence[SkippedLayer]):
        self.job_id = job_id
        self.skipped = tuple(skipped)
        """Nodes with weights that were not compiled, each with its reason."""
        self._layers = layers

    def __getitem__(self, layer: str) -> Mapping[str, CompiledLayer]:
        try:
            return self._layers[layer]
        except KeyError:
            raise KeyError(f"job {self.job_id} has no layer '{layer}', only {', '.join(self._layers)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def check_succeeded(detail: JobDetail) -> None:
    """Raises UnfinishedError, CancelledError or JobFailedError unless the job succeeded."""
    job = detail.job
    if not job.status.final:
        raise UnfinishedError(f"job {job.id} is {job.status}: wait for it, or run farm compile again")
    if job.status is Status.CANCELLED:
        raise CancelledError(f"job {job.id} was cancelled: run farm compile again")
    if job.status is not Status.SUCCEEDED:
        raise JobFailedError(f"job {job.id} has {job.status}: {job.reason}")


def compiled_model(detail: JobDetail, store: Store) -> CompiledModel:
    """Reads the cubins of a job that succeeded. Raises BlobLostError if the store has lost one."""
    layers: dict[str, dict[str, CompiledLayer]] = {}
    for build in detail.builds:
        results = detail.results_of(build)
        for arch in build.archs(detail.job.options):
            most_rows = build.most_rows(arch, detail.job.options)
            parts = tuple(_part(build, each, most_rows, store) for each in results if each.arch == arch)
            others = layers.setdefault(build.layer, {}).get(arch)
            known = others.parts if others else ()
            layers[build.layer][arch] = CompiledLayer(build.layer, arch, build.spec, known + parts)
    return CompiledModel(detail.job.id, layers, detail.job.skipped)


def _part(build: Build, result: BuildResult, most_rows: int | None, store: Store) -> CompiledPart:
    data = read_cubin(store, result.cubin, build.cubin_name(result.arch, result.part))
    launch, registers, spilled = result.known_launch, result.registers, result.spill_bytes
    return CompiledPart(data, launch, registers, spilled, most_rows or MOST_IMAGES)
