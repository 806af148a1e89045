"""The kernels of a network of the sparse DNN challenge, as they are built."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from codegen.errors import CodegenError
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.tiling import Tiling
from codegen.toolchain.ptxas import Cubin
from farm.bench.graphchallenge.kernels import (
    INDEX_KERNELS,
    LOT_LAYERS,
    cases_of,
    chain_of,
    compile_chain,
    compile_kernels,
    compile_lots,
    lots_of,
    tilings_of,
)
from farm.bench.graphchallenge.network import Challenge, cycle_of
from farm.bench.graphchallenge.persistent_layers import Chain
from farm.bench.graphchallenge.pipelined_layers import Lots
from farm.cuda.measure.kernels import BuiltLayer, KernelPool, NotBuiltError

Made = TypeVar("Made")
Key = TypeVar("Key")


@dataclass(frozen=True, eq=False)
class NetworkKernels:
    """Of a network, on their way."""

    checkpoint: Checkpoint
    layers: list[tuple[Tiling, dict[str, Future[BuiltLayer]]]]
    helpers: dict[int, Future[bytes]]
    """challenge.cu's, by the outputs of a group."""
    chain: tuple[Chain, Future[Cubin]] | None
    """All of them in one kernel, where they may be."""
    lots: tuple[Lots, Future[bytes]] | None
    """The first ones lot after lot, where they may be."""


@dataclass(frozen=True)
class Begun:
    """What is on its way: networks that differ in depth share it."""

    layers: dict[tuple[str, Tiling], Future[BuiltLayer]]
    """By the digest of their weights."""
    chains: dict[tuple[str, ...], Future[Cubin]]
    """By those of their layers'."""
    lots: dict[tuple[str, ...], Future[bytes]]
    """The same."""


def begin(pool: KernelPool, challenge: Challenge, begun: Begun) -> NetworkKernels:
    """Begins to build all kernels of a network, but for those that have been begun."""
    checkpoint = challenge.checkpoint()
    cases = cases_of(challenge, checkpoint)
    groups = sorted({group for _, group in INDEX_KERNELS if challenge.neurons % group == 0})
    helpers = {group: pool.begin(partial(compile_kernels, challenge, group)) for group in groups}
    tilings = tilings_of(challenge, checkpoint)
    for tiling in tilings:
        for digest, case in cases.items():
            once(begun.layers, (digest, tiling), partial(pool.submit, case, tiling=tiling))
    layers = [(tiling, {digest: begun.layers[digest, tiling] for digest in cases}) for tiling in tilings]
    one = begin_chain(pool, challenge, checkpoint, begun)
    return NetworkKernels(checkpoint, layers, helpers, one, begin_lots(pool, challenge, checkpoint, begun))


def begin_chain(
    pool: KernelPool, challenge: Challenge, checkpoint: Checkpoint, begun: Begun
) -> tuple[Chain, Future[Cubin]] | None:
    """Begins to build a network's layers as one kernel, if they may be and it has not been begun."""
    how = chain_of(challenge, checkpoint)
    if how is None:
        return None
    cycle = cycle_of(checkpoint)
    key = (str(cycle.again), *(layer.weights.digest for layer in checkpoint.layers[: cycle.kept]))
    return how, once(begun.chains, key, partial(pool.begin, partial(compile_chain, checkpoint, how)))


def begin_lots(
    pool: KernelPool, challenge: Challenge, checkpoint: Checkpoint, begun: Begun
) -> tuple[Lots, Future[bytes]] | None:
    """Begins to build a network's first layers lot after lot, if they may be and it has not been begun."""
    how = lots_of(challenge, checkpoint)
    if how is None:
        return None
    key = tuple(layer.weights.digest for layer in checkpoint.layers[:LOT_LAYERS])
    return how, once(begun.lots, key, partial(pool.begin, partial(compile_lots, checkpoint, how)))


def once(begun: dict[Key, Future[Made]], key: Key, begin_it: Callable[[], Future[Made]]) -> Future[Made]:
    """The kernel of a key, begun now unless it was before."""
    if key not in begun:
        begun[key] = begin_it()
    return begun[key]


def made(kernel: Future[Made]) -> Made:
    """A kernel that is on its way. Raises NotBuiltError."""
    try:
        return kernel.result()
    except CodegenError as error:
        raise NotBuiltError(str(error)) from None
