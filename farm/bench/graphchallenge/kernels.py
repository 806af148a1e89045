"""The kernels that `farm bench graphchallenge` measures: the layers' own, and those of challenge.cu."""

from __future__ import annotations

from importlib.resources import as_file, files

from codegen.frontend.tsv.network import tile_rows
from codegen.ir.checkpoint import Checkpoint, FloatArray
from codegen.ir.tiling import Tiling
from codegen.target.arch import has_clusters, virtual_arch
from codegen.toolchain.ptxas import Cubin, assemble
from codegen.toolchain.temp_folders import TempFolder
from codegen.toolchain.tools import DEFAULT_LIMITS, Toolchain, run_tool
from farm.bench.graphchallenge.network import COMPACTED, MULTIPROCESSORS, Challenge, cycle_of, grouped_table
from farm.bench.graphchallenge.persistent_layers import Chain, chained
from farm.bench.graphchallenge.pipelined_layers import Lots, lots_kernel
from farm.cuda.measure.workload import Case, CaseKey

SOURCE = "index_kernel.cu"
TILINGS = ((16, 512), (16, 1024), (32, 512), (64, 512), (128, 256))
"""Outputs of a K group of the compiled kernels, and threads of a block."""
INDEX_KERNELS = (("index_layer", 16), ("index_layer", 32), ("index_edges", 16), ("index_edges", 32))
"""Kernels of challenge.cu and the outputs of their groups."""
LOAD_COST, MOST_COST = 5.0, 1.5
"""A load in units of multiply-adds, and how much more than the least a tiling may cost that is tried."""
MOST_TILINGS = 3
CHAINED_GROUP, CHAINED_THREADS, CHAINED_PARTS = 16, 128, 8
"""Outputs of a K group of a chain, threads of a part of a block, parts of a block: one block fills a multiprocessor."""
LOT_LAYERS, LOT_THREADS, LOT_TURNS = 3, 512, 2
"""First layers that are computed lot after lot, threads of a block of theirs, columns of a thread."""
MOST_CHAINED = 16
"""Different layers of a chain, which ptxas has as one function."""
INDEX_CHAIN, INDEX_CHAIN_BLOCKS = "index_chain", 2
"""The index kernel that goes over layers, and its blocks that a multiprocessor runs at once."""
INDEX_TOGETHER = 2
"""First layers that it computes before rows go for the first time, in a variant: by lots it is slower."""
CHUNK_CHANNELS = 32
INDEX_THREADS = 256
"""Of a block of an index kernel."""


def listed_tiling(group: int, threads: int, neurons: int) -> Tiling:
    """Of a compiled layer whose columns are listed."""
    return Tiling("direct_global", threads, 1, 1, group, min(neurons, CHUNK_CHANNELS), stages=0, listed=True)


def tilings_of(challenge: Challenge, checkpoint: Checkpoint) -> list[Tiling]:
    """Those worth a try: in larger groups an input serves more outputs, of smaller ones each has less code."""
    kernel = plain_kernel(checkpoint, 0)
    groups = [(group, threads) for group, threads in TILINGS if challenge.neurons % group == 0]
    edges = len(challenge.matrices[0].values)
    costs = {group: 1 + LOAD_COST * len(grouped_table(kernel, group).inputs) / edges for group, _ in groups}
    cheap = [(group, threads) for group, threads in groups if costs[group] <= MOST_COST * min(costs.values())]
    return [listed_tiling(group, threads, challenge.neurons) for group, threads in cheap[:MOST_TILINGS]]


def plain_kernel(checkpoint: Checkpoint, layer: int) -> FloatArray:
    """[outputs, inputs] of a layer."""
    kernel = checkpoint.layers[layer].weights.kernel
    return kernel.reshape(len(kernel), -1)


def cases_of(challenge: Challenge, checkpoint: Checkpoint) -> dict[str, Case]:
    """What is to be built, by the digests of the layers' weights: layers share them."""
    spec = checkpoint.layers[0].spec
    cases = {}
    for weights in {id(layer.weights): layer.weights for layer in checkpoint.layers}.values():
        key = CaseKey(challenge.name, len(challenge.rows), weights.sparsity, "float32")
        cases[weights.digest] = Case(key, spec, weights)
    return cases


def chain_of(challenge: Challenge, checkpoint: Checkpoint) -> Chain | None:
    """How its layers become one kernel, if their inputs suit its groups, if they repeat soon, and if all blocks can
    run at once.
    """
    groups, rest = divmod(challenge.neurons, CHAINED_GROUP)
    beside = 0 if rest else MULTIPROCESSORS // groups
    how = Chain(CHAINED_GROUP, CHAINED_THREADS, CHAINED_PARTS, beside)
    suits = CHAINED_GROUP in {tiling.group_outputs for tiling in tilings_of(challenge, checkpoint)}
    return how if suits and beside and cycle_of(checkpoint).kept <= MOST_CHAINED else None


def lots_of(challenge: Challenge, checkpoint: Checkpoint) -> Lots | None:
    """How its first layers are computed lot after lot, if they make a chain and hardly a row is lost meanwhile."""
    how = chain_of(challenge, checkpoint)
    if how is None or len(challenge.matrices) <= COMPACTED or not challenge.clip > 0:
        return None
    return Lots(CHAINED_GROUP, LOT_THREADS, how.beside, LOT_TURNS)


def compile_lots(checkpoint: Checkpoint, lots: Lots, arch: str, toolchain: Toolchain) -> bytes:
    """The machine code of its first layers as one kernel. Raises ToolError."""
    layers = [layer.weights for layer in checkpoint.layers[:LOT_LAYERS]]
    return assemble(lots_kernel(checkpoint.layers[0].spec, layers, lots, arch), arch, toolchain).data


def compile_chain(checkpoint: Checkpoint, chain: Chain, arch: str, toolchain: Toolchain) -> Cubin:
    """The machine code of its layers as one kernel. Raises ToolError."""
    cycle = cycle_of(checkpoint)
    layers = [layer.weights for layer in checkpoint.layers[: cycle.kept]]
    return assemble(chained(checkpoint.layers[0].spec, layers, cycle.again, chain, arch), arch, toolchain)


def listed_virtual_arch(arch: str) -> str:
    """The virtual architecture of kernels of listed columns: where there is one on which they may overlap, that."""
    return virtual_arch(arch, clusters=has_clusters(arch))


def compile_ptx(challenge: Challenge, group: int, virtual: str, toolchain: Toolchain) -> str:
    """The PTX of challenge.cu for a network and groups of so many outputs. Raises ToolError."""
    width, neurons = tile_rows(challenge.neurons), challenge.neurons
    macros = [f"-DWIDTH={width}", f"-DNEURONS={neurons}", f"-DCLIP={float(challenge.clip)!r}f", f"-DGROUP={group}"]
    with TempFolder("bench") as scratch, as_file(files("farm.bench.graphchallenge").joinpath(SOURCE)) as source:
        output = scratch / "kernel.ptx"
        run_tool(
            [toolchain.nvcc, "-ptx", "-O3", "-std=c++17", *macros, f"-arch={virtual}", "-o", output, source],
            limits=DEFAULT_LIMITS,
            temp_folder=scratch,
        )
        return output.read_text()


def compile_kernels(challenge: Challenge, group: int, arch: str, toolchain: Toolchain) -> bytes:
    """Their machine code. Raises ToolError."""
    return assemble(compile_ptx(challenge, group, listed_virtual_arch(arch), toolchain).encode(), arch, toolchain).data
