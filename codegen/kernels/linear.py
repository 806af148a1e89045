"""Fully connected layers: the generated parts of linear.cu."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.ir.dtypes import ELEMENT_BYTES
from codegen.ir.launch import GridSize, Launch, tensors_of
from codegen.ir.layer_spec import LayerSpec, Linear
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import weight_stream
from codegen.kernels.block_order import order_parameters
from codegen.kernels.epilogue_ptx import added_instructions
from codegen.kernels.geometry import Geometry
from codegen.kernels.lowering import LoweredLinear, TiledLinear
from codegen.kernels.output_region import Region
from codegen.kernels.placeholders import FIRST_BIAS, immediate
from codegen.kernels.streams import QUAD
from codegen.kernels.weight_stream import Store
from codegen.kernels.workload import (
    ASYNCHRONOUS_COPY,
    WARP,
    Workload,
    bank_conflicts,
    exchange_instructions,
    staged_refusal,
)

ENTRY = "linear"
SOURCE = "linear.cu"
CLUSTERS = (8, 4, 2)
"""Blocks of a cluster."""
CLUSTER_THREADS = (32, 64, 128)
"""Rows of a block of a cluster."""
CLUSTER_GROUPS = (8, 16, 24, 32, 40, 48, 64)
"""Outputs of a K group with clusters."""
CLUSTER_CHUNKS = (1, 2, 4, 8, 16)
"""Chunks of the inputs of a block of a cluster."""
REFILLED_STAGES = 3
"""Chunks in flight where they are not all in shared memory at once."""
LOOPED_CHANNELS = 64
"""Channels of a chunk from which on its copies are a loop: a line for each would be most of the code."""
PAIR_COPY = 14.0
"""Instructions of a looped copy in float16: two loads, packing of their halves, a store, the addresses."""
TAKEN_TOGETHER = 8
"""Rows whose outputs a thread loads before it stores them."""
TAKE_INSTRUCTIONS = 3
"""Instructions of one of these, besides those of the epilogue: whether the row exists, its load and its store."""
LOOP_INSTRUCTIONS = 20.0
"""Instructions of such a loop, with its surroundings: counted in ptxas's code."""


def unsuitable(spec: LayerSpec, _geometry: Geometry) -> str:
    """Why the kernel cannot compute a layer: it takes linear layers only."""
    return "" if isinstance(spec, Linear) else "it is a convolution"


def refusal(layer: LoweredLinear, tiling: Tiling) -> str:
    """Why the kernel cannot have this combination of stages, clusters and order; empty if it can."""
    if reason := staged_refusal(tiling):
        return reason
    if tiling.form != "rolled":
        return "it has no full template"
    if tiling.tile_height > 1 and (tiling.rows > 1 or tiling.tile_width % WARP or not tiling.is_large):
        return "only large blocks, of whole warps with one row a thread, have several K groups"
    return cluster_refusal(layer.spec) if tiling.cluster > 1 else ""


def cluster_refusal(spec: LayerSpec) -> str:
    """Why the inputs of a layer cannot be divided among the blocks of a cluster; empty if they can."""
    return "inputs are divided over clusters in float32 and float16 only" if spec.data_type == "bfloat16" else ""


def pairs(layer: TiledLinear) -> int:
    """Rows of the batch that the halves of a register hold."""
    return 2 if layer.spec.data_type == "float16" else 1


def block_rows(layer: TiledLinear) -> int:
    """Rows of the batch that a block computes."""
    return layer.tiling.tile_width * layer.tiling.rows * pairs(layer)


def unit(layer: TiledLinear) -> int:
    """Words that one copy moves: four where chunks of rows begin at multiples of 16 bytes."""
    aligned = layer.spec.inputs % 4 == layer.tiling.chunk_channels % 4 == 0
    return 4 if aligned and (layer.spec.data_type == "float32" or is_looped(layer)) else 1


def is_looped(layer: TiledLinear) -> bool:
    """Whether the kernel copies in a loop: a thread then has the same elements of every n-th row."""
    tiling = layer.tiling
    return tiling.rows == 1 and (tiling.chunk_channels >= LOOPED_CHANNELS or tiling.cluster > 1 or tiling.is_large)


def row_words(layer: TiledLinear) -> int:
    """Words from a row to the next in shared memory: padded, so that the lanes' loads meet no bank twice."""
    channels = layer.tiling.chunk_channels
    if unit(layer) == 4:
        return channels + (4 if channels % 8 == 0 else 0)
    return channels | 1


def shared_words(layer: TiledLinear) -> int:
    """Words of shared memory: chunks, or afterwards sums that other blocks or other threads of the block read."""
    tiling = layer.tiling
    chunks = tiling.rows * min(tiling.stages, layer.streams.chunks) * row_words(layer)
    left = tiling.rows * tiling.group_outputs if _own_rows(tiling) else _left_words(layer)
    return tiling.tile_width * max(chunks, left * tiling.block_groups)


def _own_rows(tiling: Tiling) -> bool:
    """Whether each thread stores outputs of its own row: in small blocks of a cluster, for few rows."""
    return tiling.cluster > 1 and not tiling.is_large


def _left_words(layer: TiledLinear) -> int:
    """Words from a thread's outputs in shared memory to the next thread's: odd, so that lanes meet no bank twice.

    With clusters all its outputs are there at once, for the other blocks.
    """
    outputs = layer.tiling.group_outputs
    return (pairs(layer) * outputs if layer.tiling.cluster > 1 else min(outputs, WARP)) | 1


def _lanes(layer: TiledLinear) -> int:
    """Lanes that store neighbouring outputs of a row: a power of two."""
    return 1 << (min(layer.tiling.group_outputs, WARP) - 1).bit_length()


def launch_of(layer: TiledLinear, part: Part | None = None) -> Launch:
    """Rows of the batch in x, streams in z, where the blocks of a cluster are neighbours."""
    spec, tiling = layer.spec, layer.tiling
    groups = layer.streams.count if part is None else part.end - part.first
    return Launch(
        kernel=ENTRY,
        grid=(GridSize(images=block_rows(layer)), GridSize(), GridSize(groups // tiling.block_groups)),
        block=(tiling.tile_width * tiling.block_groups, 1, 1),
        shared_bytes=4 * shared_words(layer),
        arguments=(*tensors_of(spec), "images"),
        data_type=spec.data_type,
        waits=layer.tiling.waits,
    )


def block_region(layer: TiledLinear, block: tuple[int, int, int]) -> Region:
    """The outputs of the block with these rows and this stream; its rows may reach beyond the batch.

    A large block of a cluster stores some rows of the cluster's.
    """
    x, y, z = block
    streams, groups = layer.streams, layer.tiling.block_groups
    shares = streams.shares // streams.storing_shares
    stream = z // streams.shares * groups * streams.shares + z % streams.shares
    return region_of_rows(layer, (x * shares + z % shares, y, stream), block_rows(layer) // shares)


def region_of_rows(layer: TiledLinear, block: tuple[int, int, int], rows: int) -> Region:
    """The outputs of a block of `rows` rows: blockIdx.x counts such blocks, blockIdx.z streams."""
    outputs, first = layer.spec.outputs, layer.streams.first_output(block[2])
    end = first + layer.tiling.block_groups * layer.streams.stored_outputs
    return Region(slice(block[0] * rows, (block[0] + 1) * rows), slice(min(first, outputs), min(end, outputs)))


def _copies(layer: TiledLinear) -> int:
    """Copies of a thread for one chunk."""
    return -(-layer.tiling.rows * layer.tiling.chunk_channels // unit(layer))


def sources(layer: TiledLinear) -> dict[str, str]:
    """The generated headers that linear.cu includes."""
    copies = _copies(layer)
    values: dict[str, int | str] = {
        "LOOPED": int(is_looped(layer)),
        "ROW_WORDS": row_words(layer),
        "UNIT": unit(layer),
        "POINTERS": copies,
        "HELD": copies * (2 if layer.spec.data_type == "float16" else unit(layer)),
        "ADVANCE": layer.tiling.chunk_channels,
        "SHARE_CHANNELS": layer.streams.chunks * layer.tiling.chunk_channels,
        "STORED_OUTPUTS": layer.streams.stored_outputs,
        "JUMP": 0,
        "JUMP_AFTER": 1,
        "PAIR_OFFSET": "THREADS * ROWS * CHANNELS",
        "LANES": _lanes(layer),
        "LEFT_WORDS": _left_words(layer),
        "OWN_ROWS": int(_own_rows(layer.tiling)),
        "LARGE": int(layer.tiling.is_large),
        **order_parameters(layer),
    }
    return {
        "parameters.h": weight_stream.parameters(layer, values),
        "copies.h": "".join(f"COPY({j}, {j}, 0, 0, 0)\n" for j in range(copies)),
        "body.h": weight_stream.rolled_body(
            layer, lambda tap: ("in", f"{tap.row} * THREADS * ROW_WORDS + {tap.channel}")
        ),
        "accumulate.h": weight_stream.accumulate(layer),
        "epilogue.h": _stores(layer),
    }


def _rows(layer: TiledLinear) -> Iterator[tuple[int, str]]:
    """The number of each row of a thread among its sums, and the expression of its distance from the first row."""
    for p in range(layer.tiling.rows):
        for q in range(pairs(layer)):
            yield p * pairs(layer) + q, f"{p + q * layer.tiling.rows} * THREADS"


def _stores(layer: TiledLinear) -> str:
    if layer.tiling.cluster == 1:
        return _exchanged_stores(layer)
    return _row_share_stores(layer) if layer.tiling.is_large else _own_row_stores(layer)


def _own_row_stores(layer: TiledLinear) -> str:
    """Lines of a small block of a cluster: each thread stores outputs of its own row."""
    outputs = range(layer.streams.stored_outputs)
    return weight_stream.rolled_epilogue(
        [
            Store(number, k, f"IN_RANGE({rows})", 0, f"{rows} * OUTPUT_CHANNELS + {k}")
            for number, rows in _rows(layer)
            for k in outputs
        ]
    )


def _row_share_stores(layer: TiledLinear) -> str:
    """Lines that leave all outputs in shared memory, add up those of all blocks for some rows, and store these."""
    cluster, count, lanes = layer.tiling.cluster, layer.tiling.group_outputs, _lanes(layer)
    lines = ["MEET;"]
    for half in range(pairs(layer)):
        lines += [f'LEAVE({half}, {k}, "{immediate(FIRST_BIAS + k)}", {half * count + k});' for k in range(count)]
    lines += ["MEET_CLUSTER;", *(f"FIND({block});" for block in range(cluster))]
    places = range(0, WARP * pairs(layer) // cluster, WARP // lanes)
    together = max(1, TAKEN_TOGETHER * 2 // cluster)
    for first in range(0, count, WARP):
        lines.append(f"{{ const int to_store = ROWS_TO_STORE(0, {first}, {min(WARP, count - first)});")
        for top in range(0, len(places), together):
            taken = places[top : top + together]
            lines += [f"TAKE({r}, {block}, {first});" for r in taken for block in range(cluster)]
            for r in taken:
                lines += [f"ADD_UP({r}, {block});" for block in range(1, cluster)]
                lines.append(f"GIVE({r}, {first});")
        lines.append("}")
    return "\n".join(lines) + "\n"


def _exchanged_stores(layer: TiledLinear) -> str:
    """Lines that leave outputs of all rows in shared memory, and store them row by row."""
    lines, count, lanes = [], layer.tiling.group_outputs, _lanes(layer)
    for number, rows in _rows(layer):
        for first in range(0, count, WARP):
            outputs = range(first, min(first + WARP, count))
            lines.append("MEET;")
            lines += [f'LEAVE({number}, {k}, "{immediate(FIRST_BIAS + k)}", {k - first});' for k in outputs]
            lines.append("MEET;")
            lines.append(f"{{ const int to_store = ROWS_TO_STORE({rows}, {first}, {len(outputs)});")
            places = range(0, WARP, WARP // lanes)
            for top in range(0, lanes, TAKEN_TOGETHER):
                taken = places[top : top + TAKEN_TOGETHER]
                lines += [f"TAKE({r});" for r in taken]
                lines += [f"GIVE({r}, {rows}, {first});" for r in taken]
            lines.append("}")
    return "\n".join(lines) + "\n"


def workload(layer: TiledLinear) -> Workload:
    """The work of one instruction stream."""
    spec, tiling, chunks = layer.spec, layer.tiling, layer.streams.chunks
    sums, inputs = tiling.rows * tiling.group_outputs, layer.streams.channels
    rows, added = tiling.rows * pairs(layer), added_instructions(spec.epilogue)
    if _own_rows(tiling):
        left = taken = 0
        stores = exchange_instructions(sums, tiling.cluster, pairs(layer))
        stores += rows * layer.streams.stored_outputs * (1 + added)
    else:
        left, taken = rows * tiling.group_outputs, rows * -(-tiling.group_outputs // WARP) * _lanes(layer)
        stores = left + taken + taken // tiling.cluster * (TAKE_INSTRUCTIONS - 1 + added)
    adds_up = pairs(layer) == 2 and tiling.accumulate == "float32" and tiling.cluster == 1
    element, step, looped = ELEMENT_BYTES[spec.data_type], unit(layer), is_looped(layer)
    return Workload(
        streams=layer.streams.count,
        threads=tiling.tile_width * tiling.block_groups,
        sums=sums * (3 if adds_up else 1),
        terms=sums * inputs,
        inputs=tiling.rows * -(-inputs // step),
        pointers=1 if looped else _copies(layer),
        copies=-(-_copies(layer) // tiling.block_groups) * chunks,
        chunks=chunks,
        stores=stores,
        slots=sums * tiling.chunk_channels,
        results=sums * -(-tiling.chunk_channels // weight_stream.POINTWISE_CHANNELS),
        tile_bytes=block_rows(layer) * chunks * (element * tiling.chunk_channels + 28),
        input_bytes=element * spec.inputs,
        output_bytes=element * spec.outputs,
        largest_offset_bytes=element * block_rows(layer) * max(spec.inputs, spec.outputs),
        conflicts=bank_conflicts(lane * row_words(layer) // step for lane in range(32 // step)),
        packed_sums=sums if adds_up else 0,
        copy_instructions=PAIR_COPY if looped and spec.data_type == "float16" else ASYNCHRONOUS_COPY,
        loop_instructions=LOOP_INSTRUCTIONS if looped else 0,
        exchanged=float(left + taken),
    )


def candidates(layer: LoweredLinear) -> Iterator[Tiling]:
    """Candidate tilings without clusters, in a fixed order, whether they fit or not."""
    spec = layer.spec
    shares = {-(-spec.outputs // share) for share in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    groups = sorted({min(spec.outputs, size) for size in (16, 24, 32, 48, 64, 96)} | shares)
    for threads in (32, 64, 128, 256):
        for rows, stages in ((1, 2), (1, 3), (2, 2)):
            for outputs in groups:
                for channels in sorted({min(spec.inputs, size) for size in (8, 16, 32)}):
                    yield Tiling("linear", threads, 1, rows, outputs, channels, stages=stages)
    if spec.data_type != "bfloat16" and spec.inputs >= LOOPED_CHANNELS:
        step = 4 if spec.inputs % 4 == 0 else 1
        for threads in (32, 64, 128):
            for channels in (64, 128, 256):
                if threads % (channels // step) == 0:
                    for outputs in sorted({*groups, *(min(spec.outputs, size) for size in (4, 6, 8, 12, 24, 48))}):
                        yield Tiling("linear", threads, 1, 1, outputs, channels, stages=2)


def cluster_candidates(layer: LoweredLinear) -> Iterator[Tiling]:
    """Candidate tilings with clusters, in a fixed order: all chunks of a block in shared memory at once, or three."""
    spec = layer.spec
    if cluster_refusal(spec):
        return
    for threads in CLUSTER_THREADS:
        for cluster in CLUSTERS:
            share = -(-spec.inputs // cluster)
            for outputs in CLUSTER_GROUPS:
                if outputs % cluster or outputs >= spec.outputs + cluster:
                    continue
                for count in CLUSTER_CHUNKS:
                    chunk = -(-share // (QUAD * count)) * QUAD
                    yield Tiling("linear", threads, 1, 1, outputs, chunk, count + 1, cluster=cluster)
                    if count >= REFILLED_STAGES:
                        yield Tiling("linear", threads, 1, 1, outputs, chunk, REFILLED_STAGES, cluster=cluster)


def last_resort(layer: LoweredLinear) -> Iterator[Tiling]:
    """A tiling of one output at a time, for layers of which no candidate fits the limits."""
    yield Tiling("linear", 32, 1, 1, 1, min(layer.spec.inputs, 8), stages=2)
