"""One run of `farm bench graphchallenge`: compiled, index and cuSPARSE variants of each network on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codegen.errors import CodegenError
from codegen.toolchain.tools import find_toolchain
from farm.bench.environment import network_environment
from farm.bench.graphchallenge.kernels import (
    INDEX_KERNELS,
    INDEX_PERSISTENT,
    INDEX_PERSISTENT_BLOCKS,
    INDEX_THREADS,
    INDEX_UNCOMPACTED,
    PIPELINED_LAYERS,
    Submitted,
    built,
    persistent_layout,
    submit_kernels,
)
from farm.bench.graphchallenge.network import (
    MULTIPROCESSORS,
    ChallengeNetwork,
    LaunchPlan,
    Outcome,
    VariantRun,
    edge_table,
    grouped_table,
    launch_plans,
)
from farm.bench.layers.contenders import GENERATED
from farm.bench.layers.results import CHALLENGE_KIND, WRONG, Measurement, Results, write_results
from farm.config.settings import Settings
from farm.cuda.measure.kernels import BuiltLayer, KernelPool, NotBuiltError
from farm.cuda.measure.workload import CaseKey
from farm.errors import FarmError, UsageError
from farm.executors import open_gpu
from farm.executors.contract import Notice, no_notice
from farm.store import open_store
from farm.worker.cache_lookup import known_toolchain

if TYPE_CHECKING:
    from codegen.ir.checkpoint import Checkpoint
    from codegen.ir.launch import Launch
    from codegen.ir.tiling import Tiling
    from codegen.toolchain.ptxas import Cubin
    from farm.bench.graphchallenge.persistent_layers import PersistentLayout
    from farm.bench.graphchallenge.pipelined_batches import PipelinedLayout
    from farm.bench.graphchallenge.torch_network import ChallengeGpu

INDEX, CUSPARSE = "index", "cusparse"
PEERS = (INDEX, CUSPARSE)
TOLERANCE = 1e-4
"""Largest relative error, by norm, of a correct contender; beyond it the time is void."""
HELD_BYTES = 48 * 1024
"""Shared memory available to a block of an index kernel."""
Told = Callable[[Measurement], None]


@dataclass(frozen=True)
class ChallengePlan:
    """Contenders to measure and the file of the results."""

    peers: tuple[str, ...] = PEERS
    file: Path | None = None
    """File rewritten with each result."""


def benchmark_challenges(
    settings: Settings,
    networks: Sequence[ChallengeNetwork],
    plan: ChallengePlan,
    tell: Told,
    *,
    local: bool = False,
    notice: Notice = no_notice,
) -> Results:
    """Measures networks on a GPU of the cluster or, with `local`, of this machine.

    A contender that cannot run yields a measurement with a reason. Raises DeviceError and NoWorkerError without a GPU,
    UsageError without torch there or with more rows than fit.
    """
    results = Results({}, {"kind": CHALLENGE_KIND, "peers": list(plan.peers)})
    with open_gpu(settings, local=local, notice=notice) as gpu:
        for event in gpu.run(partial(challenge_work, networks=networks, peers=plan.peers)):
            if isinstance(event, Measurement):
                results = replace(results, measurements=(*results.measurements, event))
                tell(event)
            else:
                results = replace(results, environment=event)
            if plan.file:
                write_results(plan.file, results)
    return results


def challenge_work(
    settings: Settings, networks: Sequence[ChallengeNetwork], peers: Sequence[str]
) -> Generator[dict[str, Any] | Measurement, None, None]:
    """Yields the environment, then each contender's measurement. Raises DeviceError, and UsageError without torch."""
    try:
        from farm.bench.graphchallenge.torch_network import ChallengeGpu
        from farm.bench.networks.torch_timing import NetworkGpu
    except ImportError as error:
        raise UsageError(f"cuSPARSE is called by PyTorch: {error}") from None
    device = NetworkGpu()
    yield network_environment(device.facts(), device.versions())
    store = open_store(settings)
    toolchain = known_toolchain(find_toolchain(settings.nvcc, settings.ptxas), store)
    with KernelPool(settings, store, toolchain, device.arch) as pool:
        submitted = Submitted({}, {}, {})
        # The list submits the builds of all networks before the first is measured.
        for network, kernels in [(each, submit_kernels(pool, each, submitted)) for each in networks]:
            helpers = {group: future.result() for group, future in kernels.helpers.items()}
            session = ChallengeSession(network, kernels.checkpoint, ChallengeGpu(network, kernels.checkpoint, helpers))
            own = session.layer_variants(kernels.layers)
            persistent = session.persistent_variants(kernels.persistent, kernels.layers, kernels.pipelined)
            yield session.best(GENERATED, chain(own, persistent))
            if INDEX in peers:
                yield session.best(INDEX, chain(session.index_variants(), session.persistent_index_variants()))
            if CUSPARSE in peers:
                yield session.best(CUSPARSE, [("SpMM in CSR, then bias, clip and marks in one", session.gpu.cusparse)])
            del session
            device.release()


Variant = tuple[str, Callable[[], VariantRun]]
"""Description of a way to compute a network, and the function that runs it."""


class ChallengeSession:
    """Measures one network on one GPU: the fastest variant of each contender."""

    def __init__(self, network: ChallengeNetwork, checkpoint: Checkpoint, gpu: ChallengeGpu) -> None:
        self._network = network
        self.gpu = gpu
        self._checkpoint = checkpoint
        self._layers = checkpoint.layers

    def best(self, contender: str, variants: Sequence[Variant] | Iterator[Variant]) -> Measurement:
        """The fastest variant; a wrong variant voids the time. If none ran, the measurement has the last reason."""
        key = CaseKey(self._network.name, len(self._network.rows), self._layers[0].weights.sparsity, "float32")
        found: Measurement | None = None
        reason, tried = "no variant fits", 0
        try:
            for note, run in variants:
                try:
                    measured = run()
                except (CodegenError, FarmError, RuntimeError) as error:  # torch raises RuntimeError
                    reason = f"{note}: {error}".removeprefix(": ")
                    continue
                tried += 1
                if wrong := defect(measured, self.gpu.reference):
                    return Measurement(key, contender, None, wrong, note, _finite(measured.relative_error))
                if found is None or found.microseconds is None or measured.microseconds < found.microseconds:
                    facts = rates(self._network, self.gpu.reference, measured.microseconds)
                    found = Measurement(
                        key,
                        contender,
                        measured.microseconds,
                        note=note,
                        relative_error=measured.relative_error,
                        facts=facts,
                    )
        except NotBuiltError as error:
            reason = str(error)
        if found is None:
            return Measurement(key, contender, None, reason)
        return replace(found, facts={**found.facts, "variants": tried})

    def layer_variants(self, layers: Sequence[tuple[Tiling, dict[str, Future[BuiltLayer]]]]) -> Iterator[Variant]:
        """Variants with the layers' own kernels, as they are built."""
        for tiling, futures in layers:
            kernels, plans = self._kernels(tiling, futures)
            code = sum(len(cubin) for cubin, _ in kernels.values())
            note = f"{tiling.tile_width} threads, groups of {tiling.group_outputs}"
            for plan in plans:
                size = f"{code / len(kernels) / 1e6:.2f} MB of code a layer"
                yield f"{note}, {plan}, {size}", partial(self.gpu.compiled, kernels, plan)

    def _kernels(
        self, tiling: Tiling, layers: Mapping[str, Future[BuiltLayer]]
    ) -> tuple[dict[str, tuple[bytes, Launch]], list[LaunchPlan]]:
        """The layers' own kernels, once they are built, and their launch plans."""
        ended = {digest: future.result() for digest, future in layers.items()}
        registers = max(each.facts["registers"] for each in ended.values())
        groups = -(-self._network.neurons // tiling.group_outputs)
        kernels = {digest: each.kernels[0] for digest, each in ended.items()}
        return kernels, launch_plans(tiling.tile_width, groups, registers)

    def persistent_variants(
        self,
        persistent: tuple[PersistentLayout, Future[Cubin]] | None,
        layers: Sequence[tuple[Tiling, dict[str, Future[BuiltLayer]]]] = (),
        pipelined: tuple[PipelinedLayout, Future[bytes]] | None = None,
    ) -> Iterator[Variant]:
        """Variants with a persistent kernel: alone, with single layers by their own kernels, and with pipelined
        batches for the first layers.
        """
        if persistent is None:
            return
        layout, cubin = persistent[0], built(persistent[1])
        note = f"one launch for layers between compactions, {layout.tiles} tiles, {cubin.registers} registers"
        yield note, partial(self.gpu.persistent, cubin.data, layout)
        for tiling, futures in layers[:1]:
            kernels, plans = self._kernels(tiling, futures)
            alone = kernels, plans[0]
            own = f"layers alone by {tiling.tile_width} threads, {plans[0]}"
            yield f"{note}, {own}", partial(self.gpu.persistent, cubin.data, layout, alone)
            if pipelined is not None:
                first = built(pipelined[1]), pipelined[0], PIPELINED_LAYERS
                batches = f"the first {PIPELINED_LAYERS} layers in pipelined batches of {pipelined[0].columns:,} rows"
                run = partial(self.gpu.persistent, cubin.data, layout, alone, first)
                yield f"{note}, {own}, {batches}", run

    def persistent_index_variants(self) -> Iterator[Variant]:
        """Variants with a persistent index kernel."""
        if persistent_layout(self._network, self._checkpoint) is None:
            return
        group = min(group for _, group in INDEX_KERNELS)
        plain = {layer.weights.digest: layer.weights.kernel for layer in self._layers}
        tables = {digest: grouped_table(each.reshape(len(each), -1), group) for digest, each in plain.items()}
        if 2 * max(table.most for table in tables.values()) * (4 * group + 4) <= HELD_BYTES:
            tiles = MULTIPROCESSORS * INDEX_PERSISTENT_BLOCKS * group // self._network.neurons
            note = f"{INDEX_PERSISTENT}, groups of {group}, one launch for layers between compactions, {tiles} tiles"
            run = partial(self.gpu.indexed_persistent, INDEX_PERSISTENT, group, tables, tiles)
            yield note, run
            yield f"{note}, the first {INDEX_UNCOMPACTED} layers together", partial(run, INDEX_UNCOMPACTED)

    def index_variants(self) -> Iterator[Variant]:
        """Variants with an index kernel per layer."""
        plain = {layer.weights.digest: layer.weights.kernel for layer in self._layers}
        for entry, group in INDEX_KERNELS:
            if self._network.neurons % group:
                continue
            table_of = grouped_table if entry == "index_layer" else edge_table
            tables = {digest: table_of(each.reshape(len(each), -1), group) for digest, each in plain.items()}
            entry_bytes = 4 * group + 4 if entry == "index_layer" else 8
            if max(table.most for table in tables.values()) * entry_bytes > HELD_BYTES:
                continue
            groups = self._network.neurons // group
            for plan in launch_plans(INDEX_THREADS, groups):
                note = f"{entry}, groups of {group}, {plan}"
                yield note, partial(self.gpu.indexed, entry, group, tables, entry_bytes, plan)


def defect(run: VariantRun, reference: Outcome) -> str:
    """Why a run's output is not the network's; empty if it is."""
    if not run.same_rows:
        return f"{WRONG}{run.rows} rows are left, not the {len(reference.alive)} of float64"
    if not run.relative_error <= TOLERANCE:
        return f"{WRONG}relative error {run.relative_error:.1e} exceeds {TOLERANCE:.0e}"
    return ""


def rates(network: ChallengeNetwork, reference: Outcome, microseconds: float) -> dict[str, Any]:
    """Facts of a measurement: multiply-adds per second of all rows and of live rows, and the shares of live rows."""
    nominal = len(network.rows) * network.edges
    return {
        "layers": len(network.matrices),
        "edges": network.edges,
        "nominal_teraedges_per_second": round(nominal / microseconds / 1e6, 2),
        "live_teraedges_per_second": round(reference.live_edges(network) / microseconds / 1e6, 3),
        "live_share": round(reference.live_edges(network) / nominal, 5),
        "converged_share": round(reference.converged_share, 5),
        "rows_left": len(reference.alive),
    }


def _finite(error: float) -> float | None:
    return error if error == error else None
