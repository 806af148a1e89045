"""One call of `farm bench graphchallenge`: a network's layers by compiled kernels, by index and by cuSPARSE."""

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
from farm.bench.graphchallenge.builds import Begun, begin, made
from farm.bench.graphchallenge.kernels import (
    INDEX_CHAIN,
    INDEX_CHAIN_BLOCKS,
    INDEX_KERNELS,
    INDEX_THREADS,
    INDEX_TOGETHER,
    LOT_LAYERS,
    chain_of,
)
from farm.bench.graphchallenge.network import (
    MULTIPROCESSORS,
    Challenge,
    Launching,
    Outcome,
    Run,
    edge_table,
    grouped_table,
    launchings,
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
    from farm.bench.graphchallenge.persistent_layers import Chain
    from farm.bench.graphchallenge.pipelined_layers import Lots
    from farm.bench.graphchallenge.torch_network import ChallengeGpu

INDEX, CUSPARSE = "index", "cusparse"
PEERS = (INDEX, CUSPARSE)
TOLERANCE = 1e-4
"""Norm of the error over norm of the float64 reference: beyond this a contender is wrong, its time void."""
HELD_BYTES = 48 * 1024
"""That a block of an index kernel may have of shared memory."""
Told = Callable[[Measurement], None]


@dataclass(frozen=True)
class ChallengePlan:
    """How a network is measured."""

    peers: tuple[str, ...] = PEERS
    file: Path | None = None
    """Where the results are kept as they come."""


def benchmark_challenges(
    settings: Settings,
    challenges: Sequence[Challenge],
    plan: ChallengePlan,
    tell: Told,
    *,
    local: bool = False,
    notice: Notice = no_notice,
) -> Results:
    """Measures all networks on the cluster's GPU, or with `local` on this machine's.

    Raises DeviceError and NoWorkerError without a GPU, UsageError without torch there or with more rows than fit; what
    a contender cannot do is a measurement with a reason.
    """
    results = Results({}, {"kind": CHALLENGE_KIND, "peers": list(plan.peers)})
    with open_gpu(settings, local=local, notice=notice) as gpu:
        for event in gpu.run(partial(challenge_work, challenges=challenges, peers=plan.peers)):
            if isinstance(event, Measurement):
                results = replace(results, measurements=(*results.measurements, event))
                tell(event)
            else:
                results = replace(results, environment=event)
            if plan.file:
                write_results(plan.file, results)
    return results


def challenge_work(
    settings: Settings, challenges: Sequence[Challenge], peers: Sequence[str]
) -> Generator[dict[str, Any] | Measurement, None, None]:
    """Tells where it runs, then each contender's measurement. Raises DeviceError, and UsageError without torch."""
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
        begun = Begun({}, {}, {})
        for challenge, kernels in [(each, begin(pool, each, begun)) for each in challenges]:  # all are on their way now
            helpers = {group: future.result() for group, future in kernels.helpers.items()}
            session = ChallengeSession(
                challenge, kernels.checkpoint, ChallengeGpu(challenge, kernels.checkpoint, helpers)
            )
            yield session.best(
                GENERATED,
                chain(session.compiled(kernels.layers), session.chained(kernels.chain, kernels.layers, kernels.lots)),
            )
            if INDEX in peers:
                yield session.best(INDEX, chain(session.indexed(), session.indexed_chain()))
            if CUSPARSE in peers:
                yield session.best(CUSPARSE, [("SpMM in CSR, then bias, clip and marks in one", session.gpu.cusparse)])
            del session
            device.release()


Variant = tuple[str, Callable[[], Run]]
"""What it is, in words, and what runs it."""


class ChallengeSession:
    """Measures one network on one GPU: of each contender the variant that is right and fastest."""

    def __init__(self, challenge: Challenge, checkpoint: Checkpoint, gpu: ChallengeGpu) -> None:
        self._challenge = challenge
        self.gpu = gpu
        self._checkpoint = checkpoint
        self._layers = checkpoint.layers

    def best(self, contender: str, variants: Sequence[Variant] | Iterator[Variant]) -> Measurement:
        """The fastest; one that is wrong voids the contender's time. If none ran, why the last did not."""
        key = CaseKey(self._challenge.name, len(self._challenge.rows), self._layers[0].weights.sparsity, "float32")
        found: Measurement | None = None
        reason, tried = "no variant fits", 0
        try:
            for note, run in variants:
                try:
                    made = run()
                except (CodegenError, FarmError, RuntimeError) as error:  # torch's are RuntimeErrors
                    reason = f"{note}: {error}".removeprefix(": ")
                    continue
                tried += 1
                if wrong := wrongness(made, self.gpu.reference):
                    return Measurement(key, contender, None, wrong, note, _finite(made.relative_error))
                if found is None or found.microseconds is None or made.microseconds < found.microseconds:
                    facts = rates(self._challenge, self.gpu.reference, made.microseconds)
                    found = Measurement(
                        key, contender, made.microseconds, note=note, relative_error=made.relative_error, facts=facts
                    )
        except NotBuiltError as error:
            reason = str(error)
        if found is None:
            return Measurement(key, contender, None, reason)
        return replace(found, facts={**found.facts, "variants": tried})

    def compiled(self, built: Sequence[tuple[Tiling, dict[str, Future[BuiltLayer]]]]) -> Iterator[Variant]:
        """By the layers' own kernels, as they are built."""
        for tiling, layers in built:
            kernels, launched = self._kernels(tiling, layers)
            code = sum(len(cubin) for cubin, _ in kernels.values())
            note = f"{tiling.tile_width} threads, groups of {tiling.group_outputs}"
            for launching in launched:
                size = f"{code / len(kernels) / 1e6:.2f} MB of code a layer"
                yield f"{note}, {launching}, {size}", partial(self.gpu.compiled, kernels, launching)

    def _kernels(
        self, tiling: Tiling, layers: Mapping[str, Future[BuiltLayer]]
    ) -> tuple[dict[str, tuple[bytes, Launch]], list[Launching]]:
        """The layers' own, once they are built, and how they may be launched."""
        made = {digest: future.result() for digest, future in layers.items()}
        registers = max(each.facts["registers"] for each in made.values())
        groups = -(-self._challenge.neurons // tiling.group_outputs)
        kernels = {digest: each.kernels[0] for digest, each in made.items()}
        return kernels, launchings(tiling.tile_width, groups, registers)

    def chained(
        self,
        built: tuple[Chain, Future[Cubin]] | None,
        layers: Sequence[tuple[Tiling, dict[str, Future[BuiltLayer]]]] = (),
        lots: tuple[Lots, Future[bytes]] | None = None,
    ) -> Iterator[Variant]:
        """By one kernel for all layers between two compactions, with those that are alone by their own kernels, and
        with the first ones lot after lot.
        """
        if built is not None:
            how, cubin = built[0], made(built[1])
            note = f"one launch for layers between compactions, {how.tiles} tiles, {cubin.registers} registers"
            yield note, partial(self.gpu.chained, cubin.data, how)
            for tiling, futures in layers[:1]:
                kernels, launched = self._kernels(tiling, futures)
                own = f"layers alone by {tiling.tile_width} threads, {launched[0]}"
                yield f"{note}, {own}", partial(self.gpu.chained, cubin.data, how, (kernels, launched[0]))
                if lots is not None:
                    first = made(lots[1]), lots[0], LOT_LAYERS
                    by_lots = f"the first {LOT_LAYERS} layers by lots of {lots[0].columns:,} rows"
                    run = partial(self.gpu.chained, cubin.data, how, (kernels, launched[0]), first)
                    yield f"{note}, {own}, {by_lots}", run

    def indexed_chain(self) -> Iterator[Variant]:
        """By index, in one launch for all layers between two compactions."""
        group = min(group for _, group in INDEX_KERNELS)
        how = chain_of(self._challenge, self._checkpoint)
        if how is not None:
            plain = {layer.weights.digest: layer.weights.kernel for layer in self._layers}
            tables = {digest: grouped_table(each.reshape(len(each), -1), group) for digest, each in plain.items()}
            if 2 * max(table.most for table in tables.values()) * (4 * group + 4) <= HELD_BYTES:
                across = MULTIPROCESSORS * INDEX_CHAIN_BLOCKS * group // self._challenge.neurons
                note = f"{INDEX_CHAIN}, groups of {group}, one launch for layers between compactions, {across} tiles"
                run = partial(self.gpu.indexed_chain, INDEX_CHAIN, group, tables, across)
                yield note, run
                yield f"{note}, the first {INDEX_TOGETHER} layers together", partial(run, INDEX_TOGETHER)

    def indexed(self) -> Iterator[Variant]:
        """By index."""
        plain = {layer.weights.digest: layer.weights.kernel for layer in self._layers}
        for entry, group in INDEX_KERNELS:
            if self._challenge.neurons % group:
                continue
            table_of = grouped_table if entry == "index_layer" else edge_table
            tables = {digest: table_of(each.reshape(len(each), -1), group) for digest, each in plain.items()}
            entry_bytes = 4 * group + 4 if entry == "index_layer" else 8
            if max(table.most for table in tables.values()) * entry_bytes > HELD_BYTES:
                continue
            groups = self._challenge.neurons // group
            for launching in launchings(INDEX_THREADS, groups):
                note = f"{entry}, groups of {group}, {launching}"
                yield note, partial(self.gpu.indexed, entry, group, tables, entry_bytes, launching)


def wrongness(run: Run, reference: Outcome) -> str:
    """Why what a contender gave is not the network's output; empty if it is."""
    if not run.same_rows:
        return f"{WRONG}{run.rows} rows are left, and not the {len(reference.alive)} of float64"
    if not run.relative_error <= TOLERANCE:
        return f"{WRONG}relative error {run.relative_error:.1e}, {TOLERANCE:.0e} is allowed"
    return ""


def rates(challenge: Challenge, reference: Outcome, microseconds: float) -> dict[str, Any]:
    """Multiply-adds a second, of all rows and of those that are not zero, and what is to be known of these."""
    nominal = len(challenge.rows) * challenge.edges
    return {
        "layers": len(challenge.matrices),
        "edges": challenge.edges,
        "nominal_teraedges_per_second": round(nominal / microseconds / 1e6, 2),
        "live_teraedges_per_second": round(reference.live_edges(challenge) / microseconds / 1e6, 3),
        "live_share": round(reference.live_edges(challenge) / nominal, 5),
        "converged_share": round(reference.converged_share, 5),
        "rows_left": len(reference.alive),
    }


def _finite(error: float) -> float | None:
    return error if error == error else None
