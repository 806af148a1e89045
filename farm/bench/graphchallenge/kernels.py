"""Kernels of the sparse DNN challenge: their tilings and layouts, and their builds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from typing import TypeVar

from codegen.errors import CodegenError
from codegen.frontend.tsv.network import tile_rows
from codegen.ir.checkpoint import Checkpoint, FloatArray
from codegen.ir.tiling import Tiling
from codegen.target.arch import has_clusters, virtual_arch
from codegen.toolchain.ptxas import Cubin, assemble
from codegen.toolchain.temp_folders import TempFolder
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain, run_tool
from farm.bench.graphchallenge.network import COMPACTED, MULTIPROCESSORS, ChallengeNetwork, cycle_of, grouped_table
from farm.bench.graphchallenge.persistent_layers import PersistentLayout, persistent_kernel
from farm.bench.graphchallenge.pipelined_batches import PipelinedLayout, pipelined_kernel
from farm.cuda.measure.kernels import BuiltLayer, KernelPool, NotBuiltError
from farm.cuda.measure.workload import Case, CaseKey

SOURCE = "index_kernel.cu"
TILINGS = ((16, 512), (16, 1024), (32, 512), (64, 512), (128, 256))
"""Output channels of a K group and threads of a block, for the layers' own kernels."""
INDEX_KERNELS = (("index_layer", 16), ("index_layer", 32), ("index_edges", 16), ("index_edges", 32))
"""Kernels of index_kernel.cu and the outputs of their groups."""
LOAD_COST, MAX_COST = 5.0, 1.5
"""Cost of a load in multiply-adds, and the highest cost of a measured tiling relative to the cheapest."""
MAX_TILINGS = 3
PERSISTENT_GROUP, PERSISTENT_THREADS, PERSISTENT_PARTS = 16, 128, 8
"""Output channels of a group, threads of a part and parts of a block; one block fills a multiprocessor."""
MAX_PERSISTENT_LAYERS = 16
"""Most distinct layers of a persistent kernel, which ptxas compiles as one function."""
PIPELINED_LAYERS, PIPELINED_THREADS, PIPELINED_TURNS = 3, 512, 2
"""Leading layers computed in pipelined batches, threads of a block, turns of a warp."""
INDEX_PERSISTENT, INDEX_PERSISTENT_BLOCKS = "index_chain", 2
"""The index kernel that computes several layers, and its resident blocks per multiprocessor."""
INDEX_UNCOMPACTED = 2
"""Leading layers that this kernel computes before the first compaction, in one variant."""
CHUNK_CHANNELS = 32
INDEX_THREADS = 256
"""Threads of a block of an index kernel."""

Built = TypeVar("Built")
Key = TypeVar("Key")


@dataclass(frozen=True, eq=False)
class NetworkKernels:
    """Kernels of one network, being built."""

    checkpoint: Checkpoint
    layers: list[tuple[Tiling, dict[str, Future[BuiltLayer]]]]
    """The layers' own kernels, by tiling and digest of the weights."""
    helpers: dict[int, Future[bytes]]
    """Cubins of index_kernel.cu, by the outputs of a group."""
    persistent: tuple[PersistentLayout, Future[Cubin]] | None
    """Consecutive layers as one kernel; None if they do not suit it."""
    pipelined: tuple[PipelinedLayout, Future[bytes]] | None
    """The first layers in pipelined batches; None if they do not suit it."""


@dataclass(frozen=True)
class Submitted:
    """Builds already submitted, shared by networks that differ only in depth."""

    layers: dict[tuple[str, Tiling], Future[BuiltLayer]]
    """By digest of the weights and tiling."""
    persistent: dict[tuple[str, ...], Future[Cubin]]
    """By the digests of the layers."""
    pipelined: dict[tuple[str, ...], Future[bytes]]
    """By the digests of the layers."""


def listed_tiling(group: int, threads: int, neurons: int) -> Tiling:
    """Tiling of a compiled layer of listed columns."""
    return Tiling("direct_global", threads, 1, 1, group, min(neurons, CHUNK_CHANNELS), stages=0, listed=True)


def candidate_tilings(network: ChallengeNetwork, checkpoint: Checkpoint) -> list[Tiling]:
    """Tilings worth measuring: a larger group loads fewer inputs, a smaller one has less code."""
    kernel = plain_kernel(checkpoint, 0)
    groups = [(group, threads) for group, threads in TILINGS if network.neurons % group == 0]
    edges = len(network.matrices[0].values)
    costs = {group: 1 + LOAD_COST * len(grouped_table(kernel, group).inputs) / edges for group, _ in groups}
    cheap = [(group, threads) for group, threads in groups if costs[group] <= MAX_COST * min(costs.values())]
    return [listed_tiling(group, threads, network.neurons) for group, threads in cheap[:MAX_TILINGS]]


def plain_kernel(checkpoint: Checkpoint, layer: int) -> FloatArray:
    """Weights of a layer, [outputs, inputs]."""
    kernel = checkpoint.layers[layer].weights.kernel
    return kernel.reshape(len(kernel), -1)


def layer_cases(network: ChallengeNetwork, checkpoint: Checkpoint) -> dict[str, Case]:
    """Distinct layers of a network, by the digest of their weights."""
    spec = checkpoint.layers[0].spec
    cases = {}
    for weights in {id(layer.weights): layer.weights for layer in checkpoint.layers}.values():
        key = CaseKey(network.name, len(network.rows), weights.sparsity, "float32")
        cases[weights.digest] = Case(key, spec, weights)
    return cases


def persistent_layout(network: ChallengeNetwork, checkpoint: Checkpoint) -> PersistentLayout | None:
    """Layout of the layers as one persistent kernel.

    None unless their inputs suit its groups, few distinct layers repeat, and all blocks can be resident at once.
    """
    groups, rest = divmod(network.neurons, PERSISTENT_GROUP)
    group_blocks = 0 if rest else MULTIPROCESSORS // groups
    layout = PersistentLayout(PERSISTENT_GROUP, PERSISTENT_THREADS, PERSISTENT_PARTS, group_blocks)
    suits = PERSISTENT_GROUP in {tiling.group_outputs for tiling in candidate_tilings(network, checkpoint)}
    return layout if suits and group_blocks and cycle_of(checkpoint).kept <= MAX_PERSISTENT_LAYERS else None


def pipelined_layout(network: ChallengeNetwork, checkpoint: Checkpoint) -> PipelinedLayout | None:
    """Layout of the first layers in pipelined batches; None unless they suit a persistent kernel of enough layers."""
    layout = persistent_layout(network, checkpoint)
    if layout is None or len(network.matrices) <= COMPACTED or not network.clip > 0:
        return None
    return PipelinedLayout(PERSISTENT_GROUP, PIPELINED_THREADS, layout.group_blocks, PIPELINED_TURNS)


def compile_pipelined(checkpoint: Checkpoint, layout: PipelinedLayout, arch: str, toolchain: Toolchain) -> bytes:
    """Cubin of the first layers as one kernel. Raises ToolError."""
    layers = [layer.weights for layer in checkpoint.layers[:PIPELINED_LAYERS]]
    return assemble(pipelined_kernel(checkpoint.layers[0].spec, layers, layout, arch), arch, toolchain).data


def compile_persistent(checkpoint: Checkpoint, layout: PersistentLayout, arch: str, toolchain: Toolchain) -> Cubin:
    """Cubin of all distinct layers as one kernel. Raises ToolError."""
    cycle = cycle_of(checkpoint)
    layers = [layer.weights for layer in checkpoint.layers[: cycle.kept]]
    return assemble(persistent_kernel(checkpoint.layers[0].spec, layers, cycle.again, layout, arch), arch, toolchain)


def listed_virtual_arch(arch: str) -> str:
    """Virtual architecture of kernels of listed columns, on which launches may overlap if `arch` allows it."""
    return virtual_arch(arch, clusters=has_clusters(arch))


def index_kernel_ptx(network: ChallengeNetwork, group: int, virtual: str, toolchain: Toolchain) -> str:
    """PTX of index_kernel.cu for a network, with `group` outputs per group. Raises ToolError."""
    width, neurons = tile_rows(network.neurons), network.neurons
    macros = [f"-DWIDTH={width}", f"-DNEURONS={neurons}", f"-DCLIP={float(network.clip)!r}f", f"-DGROUP={group}"]
    with TempFolder("bench") as scratch, as_file(files("farm.bench.graphchallenge").joinpath(SOURCE)) as source:
        output = scratch / "kernel.ptx"
        run_tool(
            [toolchain.nvcc, "-ptx", "-O3", "-std=c++17", *macros, f"-arch={virtual}", "-o", output, source],
            limits=DEFAULT_LIMITS,
            temp_folder=scratch,
        )
        return output.read_text()


def compile_index_kernels(network: ChallengeNetwork, group: int, arch: str, toolchain: Toolchain) -> bytes:
    """Cubin of index_kernel.cu for a network, with `group` outputs per group. Raises ToolError."""
    return assemble(
        index_kernel_ptx(network, group, listed_virtual_arch(arch), toolchain).encode(), arch, toolchain
    ).data


def submit_kernels(pool: KernelPool, network: ChallengeNetwork, submitted: Submitted) -> NetworkKernels:
    """Submits the builds of all kernels of a network that are not in `submitted` yet."""
    checkpoint = network.checkpoint()
    cases = layer_cases(network, checkpoint)
    groups = sorted({group for _, group in INDEX_KERNELS if network.neurons % group == 0})
    helpers = {group: pool.begin(partial(compile_index_kernels, network, group)) for group in groups}
    tilings = candidate_tilings(network, checkpoint)
    for tiling in tilings:
        for digest, case in cases.items():
            _submit_once(submitted.layers, (digest, tiling), partial(pool.submit, case, tiling=tiling))
    layers = [(tiling, {digest: submitted.layers[digest, tiling] for digest in cases}) for tiling in tilings]
    persistent = _submit_persistent(pool, network, checkpoint, submitted)
    pipelined = _submit_pipelined(pool, network, checkpoint, submitted)
    return NetworkKernels(checkpoint, layers, helpers, persistent, pipelined)


def _submit_persistent(
    pool: KernelPool, network: ChallengeNetwork, checkpoint: Checkpoint, submitted: Submitted
) -> tuple[PersistentLayout, Future[Cubin]] | None:
    layout = persistent_layout(network, checkpoint)
    if layout is None:
        return None
    cycle = cycle_of(checkpoint)
    key = (str(cycle.again), *(layer.weights.digest for layer in checkpoint.layers[: cycle.kept]))
    build = partial(pool.begin, partial(compile_persistent, checkpoint, layout))
    return layout, _submit_once(submitted.persistent, key, build)


def _submit_pipelined(
    pool: KernelPool, network: ChallengeNetwork, checkpoint: Checkpoint, submitted: Submitted
) -> tuple[PipelinedLayout, Future[bytes]] | None:
    layout = pipelined_layout(network, checkpoint)
    if layout is None:
        return None
    key = tuple(layer.weights.digest for layer in checkpoint.layers[:PIPELINED_LAYERS])
    build = partial(pool.begin, partial(compile_pipelined, checkpoint, layout))
    return layout, _submit_once(submitted.pipelined, key, build)


def _submit_once(submitted: dict[Key, Future[Built]], key: Key, submit: Callable[[], Future[Built]]) -> Future[Built]:
    if key not in submitted:
        submitted[key] = submit()
    return submitted[key]


def built(kernel: Future[Built]) -> Built:
    """A kernel, once its build has ended. Raises NotBuiltError."""
    try:
        return kernel.result()
    except CodegenError as error:
        raise NotBuiltError(str(error)) from None
