"""Workload: what a tiling makes a kernel do, in numbers that predictions and limits are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from codegen.ir.tiling import Tiling

SHARED_BYTES = 48 * 1024
"""Every architecture gives a block this much without asking."""
CLUSTER_SHARED_BYTES = 99 * 1024
"""Every architecture with clusters gives a block this much if it is asked for."""
BLOCK_SHARED_BYTES = 224 * 1024
"""Of a block that may have a multiprocessor's: of the GPUs of data centres with clusters."""


ASYNCHRONOUS_COPY = 8.0
"""Instructions of one copy to shared memory that passes no registers, with what it shares with others: fitted."""


@dataclass(frozen=True)
class Workload:
    """One stream of a kernel, dense, as one thread runs it."""

    streams: int
    threads: int
    sums: int
    """Registers that hold sums."""
    terms: int
    """Multiply-adds of a thread if no weight is zero."""
    inputs: int
    """Loads from shared memory of a thread if no weight is zero."""
    pointers: int
    """Pointers per thread for its copies to shared memory."""
    copies: int
    """To shared memory, by a thread, of all chunks."""
    chunks: int
    stores: int
    """Instructions of a thread that store its outputs, with those of activations before them."""
    slots: int
    """Multiply-adds of one turn of the loop."""
    results: int
    """Results of the statements of that turn: with the slots, what nvcc's time grows with."""
    tile_bytes: float
    """That a block reads from global memory."""
    input_bytes: int
    """Input size per image, or per row of a linear layer."""
    output_bytes: int
    """Output size per image, or per row of a linear layer."""
    largest_offset_bytes: int
    """From a pointer of a thread to what it addresses."""
    conflicts: float
    """Accesses that one load of a warp becomes, on average."""
    packed_sums: int = 0
    """Packed sums per thread that are accumulated in float32 along the way."""
    held: int = 0
    """Registers of a thread that hold what it copies, from before a chunk's multiply-adds until after them."""
    most_registers: int = 255
    """Registers per thread that the compiler is told to make do with."""
    copy_instructions: float = ASYNCHRONOUS_COPY
    """Instructions per copy."""
    prepared: int = 0
    """Inputs that a thread brings within bounds, or multiplies by their gates, if no weight is zero."""
    gate_loads: int = 0
    """Loads of these gates."""
    unstaged: bool = False
    """Inputs are loaded from global memory where they are used, those without weights never."""
    exchanged: float = 0.0
    """Accesses of a warp to shared memory by which its threads have each other's sums of windows that overlap."""
    loop_instructions: float = 0.0
    """Code of a chunk's copies where they are a loop, however many they are."""


def exchange_instructions(sums: int, blocks: int, halves: int = 1) -> int:
    """Of a thread, with which so many blocks of a cluster add up their sums: stores, loads, conversions, additions."""
    return 3 * halves * sums + 2 * blocks if blocks > 1 else 0


def bank_conflicts(words: Iterable[int]) -> int:
    """How many accesses the load of these words, one a lane, becomes: addresses over 32 banks."""
    return max(Counter(word % 32 for word in set(words)).values())


@lru_cache(maxsize=1024)
def average_conflicts(shape: tuple[int, int, int], steps: tuple[int, int, int]) -> float:
    """Average bank conflicts of a block's warps; threads [images, rows, columns] read words `steps` banks apart."""
    words = [
        image * steps[0] + row * steps[1] + column * steps[2]
        for image, row, column in product(range(shape[0]), range(shape[1]), range(shape[2]))
    ]
    warps = [words[first : first + 32] for first in range(0, len(words), 32)]
    return sum(map(bank_conflicts, warps)) / len(warps)


def table_refusal(tiling: Tiling) -> str:
    """Why a kernel that reads a table cannot have this combination of stages, order and form; empty if it can."""
    if tiling.stages != 1:
        return "its input is put into shared memory once: it has one stage"
    if tiling.listed:
        return "its columns cannot be listed"
    if tiling.order != "group":
        return "its blocks have no other order"
    return "" if tiling.form == "rolled" else "it has no full template"


def table_workload(
    *, streams: int, threads: int, sums: int, instructions: int, tile_bytes: float, input_bytes: int, output_bytes: int
) -> Workload:
    """Of a kernel that reads its weights from a table: a stream's share in code that all run, no weights in it."""
    return Workload(
        streams=streams,
        threads=threads,
        sums=sums,
        terms=0,
        inputs=0,
        pointers=4,
        copies=0,
        chunks=1,
        stores=max(1, instructions // streams),
        slots=0,
        results=0,
        tile_bytes=tile_bytes,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        largest_offset_bytes=0,
        conflicts=1,
    )
