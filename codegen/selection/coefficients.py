"""What the cost model is fitted to: the terms of `prediction.py`, in numbers.

Those of float32 are fitted to 3,200 kernels of five networks and of the ten operators of Dong et al., measured on one
H200 at batch 1 and 64, sparsity 0.9. `tests/benchmarks/cost_model` has them, and the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Terms:
    """What is fitted to kernels without clusters."""

    near_instructions: float
    near_per_clock: float
    """Instructions that the caches next to a multiprocessor's schedulers hold (about 36 KB), and how fast they come."""
    cached_instructions: float
    cached_per_clock: float
    """What the multiprocessor's own cache holds (about 104 KB), and how fast the rest of that comes."""
    distant_per_clock: float
    """How fast what is beyond comes, from the L2 cache, where all multiprocessors follow one stream."""
    apart_per_clock: float
    """The same where those beside each other follow different streams, in parts of the cache of their own."""
    cold_per_clock: float
    """How fast all of it comes to a multiprocessor's first blocks in a network, where other layers ran before."""
    fetched_per_clock: float
    """The same of convolutions where the network's graph has fetched their code into the L2 cache meanwhile."""
    prefetched_instructions: float
    prefetched_per_clock: float
    """Then the first of those come faster: what is asked for ahead of the warps."""
    streams_to_halve: float
    """How many more different streams halve that, of the multiprocessors that share a way to the L2 cache."""
    warp_clocks: float
    """Clocks per instruction of a warp that has its scheduler to itself."""
    load_clocks: float
    """Clocks per access of a warp to shared memory."""
    chunk_clocks: float
    deep_chunk_clocks: float
    """Barriers of a chunk; with more than two stages. The blocks of a multiprocessor wait at the same time."""
    copy_clocks: float
    copied_per_clock: float
    """From the copy of a chunk until its first bytes are there, and how many come to a multiprocessor in a clock; the
    stages but one are under way at once."""
    block_clocks: float
    """To begin a block where another has ended, or beside it."""
    lone_block: float
    """How much longer a large block takes that has nobody to fill its waits at barriers."""
    overlap: float
    """How issue, loads, fetch and latency combine: a norm between sum (1) and maximum (infinity)."""
    l2_bytes_per_microsecond: float
    dram_bytes_per_microsecond: float
    scattered: float
    """How much longer DRAM takes for a depthwise layer whose blocks side by side read far apart."""
    held_bytes: float
    read_again: float
    """Of a layer's whole input, what the L2 cache holds from one K group to the next; of the rest, what comes again."""
    split_per_microsecond: float
    """Sectors of outputs beyond those bytes that are written in part."""
    memory_overlap: float
    launch_microseconds: float
    exchange_clocks: float = 0.0
    exchanged_per_clock: float = math.inf
    """Of blocks over clusters: of each round of them, to meet; and how many bytes of each other's sums come to a
    multiprocessor in a clock."""


OF_FLOAT32 = Terms(
    near_instructions=1470,
    near_per_clock=1.895,
    cached_instructions=4555,
    cached_per_clock=0.2081,
    distant_per_clock=0.1163,
    apart_per_clock=0.1724,
    cold_per_clock=0.08289,
    fetched_per_clock=0.1352,
    prefetched_instructions=1142,
    prefetched_per_clock=0.3998,
    streams_to_halve=5.204,
    warp_clocks=1.119,
    load_clocks=1.276,
    chunk_clocks=82.41,
    deep_chunk_clocks=79.39,
    copy_clocks=475.2,
    copied_per_clock=33.25,
    block_clocks=55.81,
    lone_block=1.012,
    overlap=5.046,
    l2_bytes_per_microsecond=10.17e6,
    dram_bytes_per_microsecond=5.534e6,
    scattered=1.4,
    held_bytes=3.243e6,
    read_again=1.299,
    split_per_microsecond=45e3,
    memory_overlap=2.157,
    launch_microseconds=0.737,
)
OF_FLOAT16 = replace(
    OF_FLOAT32,
    fetched_per_clock=0.2,
    warp_clocks=6.5,
    exchange_clocks=1500.0,
    exchanged_per_clock=20.0,
)
"""Packed multiply-adds, half of which run where the tensor cores do and take longer. Caches, memory and copies are what
they are for float32."""


@dataclass(frozen=True)
class ClusterTerms:
    """What is fitted to kernels with clusters."""

    block_per_clock: float
    """Instructions of a stream that come from DRAM while one block of a multiprocessor waits for them."""
    fetched_per_clock: float
    """The same from the L2 cache."""
    most_per_clock: float
    """To a multiprocessor, however many of its blocks wait."""
    warp_clocks: float
    load_clocks: float
    """As of other kernels."""
    chunk_clocks: float
    copy_clocks: float
    """As of other kernels: their waits are shorter, since the blocks of a cluster have few chunks each."""
    overlap: float
    once_clocks: float
    """Until the input is there, and for the last sums."""
    exchange_clocks: float
    """Of each round of blocks, with those of their clusters."""
    l2_bytes_per_microsecond: float


OF_CONVOLUTIONS = ClusterTerms(
    block_per_clock=0.0806,
    fetched_per_clock=0.1497,
    most_per_clock=0.1212,
    warp_clocks=0.9799,
    load_clocks=0.5171,
    chunk_clocks=58.32,
    copy_clocks=267.2,
    overlap=2.153,
    once_clocks=865.0,
    exchange_clocks=1124.0,
    l2_bytes_per_microsecond=12.27e6,
)
OF_LINEAR_LAYERS = replace(
    OF_CONVOLUTIONS,
    block_per_clock=0.0453,
    fetched_per_clock=0.129,
    most_per_clock=0.1288,
    once_clocks=0.0,
    exchange_clocks=518.0,
)
