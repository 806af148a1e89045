"""Coefficients of the cost model, fitted to measurements.

Those of float32 are fitted to 3,200 kernels of five networks and of the ten operators of Dong et al., measured on one
H200 at batch 1 and 64, sparsity 0.9. `tests/benchmarks/cost_model` has them, and the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class StreamCoefficients:
    """Coefficients of kernels whose blocks follow long instruction streams."""

    near_instructions: float
    near_per_clock: float
    """Instructions that the caches next to a multiprocessor's schedulers hold (about 36 KB), and instructions per clock
    from there."""
    cached_instructions: float
    cached_per_clock: float
    """Instructions that the multiprocessor's own cache holds (about 104 KB), and instructions per clock of those that
    only it holds."""
    distant_per_clock: float
    """Instructions per clock from the L2 cache, where all multiprocessors follow one stream."""
    apart_per_clock: float
    """Instructions per clock from the L2 cache, where multiprocessors beside each other follow different streams, in
    parts of the cache of their own."""
    cold_per_clock: float
    """Instructions per clock to a multiprocessor's first blocks in a network, where other layers ran before."""
    fetched_per_clock: float
    """Instructions per clock to the first blocks of a convolution whose code the network's graph fetched into L2."""
    prefetched_instructions: float
    prefetched_per_clock: float
    """Instructions of that code that are prefetched ahead of the warps, and their rate per clock."""
    streams_to_halve: float
    """Additional different streams in a GPC that halve that rate: its multiprocessors share a path to the L2 cache."""
    warp_clocks: float
    """Clocks per instruction of a warp that has its scheduler to itself."""
    load_clocks: float
    """Clocks per access of a warp to shared memory."""
    chunk_clocks: float
    deep_chunk_clocks: float
    """Clocks of a chunk's barriers with two stages, and with more. Blocks of a multiprocessor wait at the same time."""
    copy_clocks: float
    copied_per_clock: float
    """Clocks from the copy of a chunk until its first bytes are there, and bytes per clock to a multiprocessor; all
    stages but one are under way at once."""
    block_clocks: float
    """Clocks to begin a block where another has ended, or beside it."""
    lone_block: float
    """Slowdown of a large block that runs alone: no other block fills its waits at barriers."""
    overlap: float
    """Exponent of the norm of issue, loads, fetch and latency: between sum (1) and maximum (infinity)."""
    l2_bytes_per_microsecond: float
    dram_bytes_per_microsecond: float
    scattered: float
    """Slowdown of DRAM for a grouped layer, whose neighbouring blocks read far apart."""
    held_bytes: float
    read_again: float
    """Bytes of a layer's input that the L2 cache holds from one K group to the next; share of the rest that is read
    again."""
    split_per_microsecond: float
    """Partially written memory sectors per microsecond, of outputs beyond those bytes."""
    memory_overlap: float
    launch_microseconds: float
    exchange_clocks: float = 0.0
    exchanged_per_clock: float = math.inf
    """With clusters: clocks for the blocks of each round to meet, and bytes of each other's sums per clock to a
    multiprocessor."""


OF_FLOAT32 = StreamCoefficients(
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
    exchange_clocks=4500.0,
    exchanged_per_clock=12.0,
)
OF_FLOAT16 = replace(
    OF_FLOAT32,
    fetched_per_clock=0.2,
    warp_clocks=6.5,
    exchange_clocks=1500.0,
    exchanged_per_clock=20.0,
)
"""Coefficients of float16: half of the packed multiply-adds run on the tensor unit and take longer. Caches, memory and
copies are those of float32."""


@dataclass(frozen=True)
class ClusterCoefficients:
    """Coefficients of kernels whose channels are divided over clusters."""

    block_per_clock: float
    """Instructions per clock from DRAM while one block of a multiprocessor waits for them."""
    fetched_per_clock: float
    """Instructions per clock from the L2 cache while one block waits for them."""
    most_per_clock: float
    """Most instructions per clock to a multiprocessor, however many of its blocks wait."""
    warp_clocks: float
    load_clocks: float
    """Clocks per instruction of a lone warp, and per access of a warp to shared memory."""
    chunk_clocks: float
    copy_clocks: float
    """Clocks of a chunk's barriers and of its copy: shorter than in other kernels, for a block has few chunks."""
    overlap: float
    once_clocks: float
    """Clocks until the input is there, and for the last sums."""
    exchange_clocks: float
    exchanged_per_clock: float
    """Clocks of the exchange of up to 48 KB of sums in each round of blocks, and further bytes per clock."""
    l2_bytes_per_microsecond: float


OF_CONVOLUTIONS = ClusterCoefficients(
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
    exchanged_per_clock=8.0,
    l2_bytes_per_microsecond=12.27e6,
)
OF_LINEAR_LAYERS = replace(
    OF_CONVOLUTIONS,
    block_per_clock=0.0453,
    fetched_per_clock=0.129,
    most_per_clock=0.1288,
    once_clocks=0.0,
    exchange_clocks=518.0,
    exchanged_per_clock=math.inf,
)
