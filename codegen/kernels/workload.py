"""Workload: the work of a tiling's streams, in numbers for predictions and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from codegen.ir.tiling import Tiling

SHARED_BYTES = 48 * 1024
"""Shared memory that a block has on every architecture without an opt-in."""
CLUSTER_SHARED_BYTES = 99 * 1024
"""Shared memory that a block can opt in to on every architecture with clusters."""
BLOCK_SHARED_BYTES = 224 * 1024
"""Shared memory that a block can opt in to on data centre GPUs with clusters: nearly all of a multiprocessor's."""


WARP = 32
"""Threads of a warp."""
ASYNCHRONOUS_COPY = 8.0
"""Instructions of one asynchronous copy to shared memory, with its share of common ones: fitted."""


@dataclass(frozen=True)
class Workload:
    """The work of one thread in one stream of a kernel, if no weight is zero."""

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
    """Copies to shared memory by a thread, for all chunks."""
    chunks: int
    stores: int
    """Instructions of a thread that store its outputs, with those of activations before them."""
    slots: int
    """Multiply-adds of one turn of the loop."""
    results: int
    """Results of the statements of that turn: nvcc's time grows with these and the slots."""
    tile_bytes: float
    """Bytes that a block reads from global memory."""
    input_bytes: int
    """Input size per image, or per row of a linear layer."""
    output_bytes: int
    """Output size per image, or per row of a linear layer."""
    largest_offset_bytes: int
    """Largest offset of an address from a thread's pointer."""
    conflicts: float
    """Accesses to shared memory per load of a warp, on average."""
    packed_sums: int = 0
    """Packed sums per thread that are added to float32 sums chunk by chunk."""
    held: int = 0
    """Registers of a thread that hold its copies during a chunk's multiply-adds."""
    most_registers: int = 255
    """Limit of registers per thread that the compiler is given."""
    copy_instructions: float = ASYNCHRONOUS_COPY
    """Instructions per copy."""
    prepared: int = 0
    """Inputs that a thread clips to bounds, or multiplies by their gates."""
    gate_loads: int = 0
    """Loads of these gates by a thread."""
    exchanged: float = 0.0
    """Accesses of a warp to shared memory by which threads exchange sums, for overlapping pool windows or stores."""
    loop_instructions: float = 0.0
    """Instructions in the code of a chunk's copies if they are a loop."""


def exchange_instructions(sums: int, blocks: int, halves: int = 1) -> int:
    """Instructions per thread to reduce partial sums across the blocks of a cluster."""
    return 3 * halves * sums + 2 * blocks if blocks > 1 else 0


def bank_conflicts(words: Iterable[int]) -> int:
    """Accesses to shared memory that one load of these words takes, one word a lane, over 32 banks."""
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


def staged_refusal(tiling: Tiling) -> str:
    """Why a kernel with its input in shared memory cannot have these stages or listed columns; empty if it can."""
    if tiling.stages < 1:
        return "its input goes through shared memory, which takes at least one stage"
    return "its columns cannot be listed" if tiling.listed else ""


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
    """The workload of a kernel that reads a table: a stream's share in code that all streams run, without weights."""
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
