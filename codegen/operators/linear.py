"""Fully connected layers: the generated parts of linear.cu."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.launch import GridSize, Launch
from codegen.operators import stream
from codegen.operators.conv2d import ELEMENT_BYTES
from codegen.operators.geometry import Streams, geometry_of
from codegen.operators.region import Region
from codegen.operators.steps import added_instructions
from codegen.operators.stream import Store
from codegen.operators.work import Work, bank_conflicts
from codegen.spec import AddResidual, Linear
from codegen.tiling import Part, Tiling

KERNEL = "linear"
SOURCE = "linear.cu"


def pairs(spec: Linear) -> int:
    """Rows of the batch that the halves of a register hold."""
    return 2 if spec.data_type == "float16" else 1


def block_rows(spec: Linear, tiling: Tiling) -> int:
    """Rows of the batch that a block computes."""
    return tiling.tile_width * tiling.rows * pairs(spec)


def unit(spec: Linear, tiling: Tiling) -> int:
    """Words that one copy moves: four where chunks of rows begin at multiples of 16 bytes."""
    return 4 if spec.data_type == "float32" and spec.inputs % 4 == tiling.chunk_channels % 4 == 0 else 1


def row_words(spec: Linear, tiling: Tiling) -> int:
    """Words from a row to the next in shared memory: padded, so that the lanes' loads meet no bank twice."""
    if unit(spec, tiling) == 4:
        return tiling.chunk_channels + (4 if tiling.chunk_channels % 8 == 0 else 0)
    return tiling.chunk_channels | 1


def tiles(spec: Linear, tiling: Tiling) -> tuple[int, int]:  # noqa: ARG001 - of Operator
    """Rows are what a batch has of images: one tile each."""
    return 1, 1


def launch_of(spec: Linear, tiling: Tiling, part: Part | None = None) -> Launch:
    """Rows of the batch, nothing, groups of outputs."""
    groups = Streams.of(geometry_of(spec), tiling).count if part is None else part.end - part.first
    residual = ("residual",) if AddResidual() in spec.epilogue else ()
    return Launch(
        kernel=KERNEL,
        grid=(GridSize(images=block_rows(spec, tiling)), GridSize(), GridSize(groups)),
        block=(tiling.tile_width, 1, 1),
        shared_bytes=4 * tiling.stages * tiling.tile_width * tiling.rows * row_words(spec, tiling),
        arguments=("input", "output", *residual, "images"),
        data_type=spec.data_type,
    )


def block_region(spec: Linear, tiling: Tiling, block: tuple[int, int, int]) -> Region:
    """What the block with this blockIdx.x and K group computes; it may reach beyond the batch."""
    rows, kernel = block_rows(spec, tiling), block[2] * tiling.group_kernels
    return Region(
        slice(block[0] * rows, (block[0] + 1) * rows), slice(kernel, min(kernel + tiling.group_kernels, spec.outputs))
    )


def _pointers(spec: Linear, tiling: Tiling) -> int:
    return -(-tiling.rows * tiling.chunk_channels // unit(spec, tiling))


def sources(spec: Linear, tiling: Tiling) -> dict[str, str]:
    """The generated headers that linear.cu includes."""
    values: dict[str, int | str] = {
        "ROW_WORDS": row_words(spec, tiling),
        "UNIT": unit(spec, tiling),
        "POINTERS": _pointers(spec, tiling),
        "HELD": _pointers(spec, tiling) * (2 if spec.data_type == "float16" else unit(spec, tiling)),
        "ADVANCE": tiling.chunk_channels,
        "PAIR_OFFSET": "THREADS * ROWS * CHANNELS",
    }
    return {
        "parameters.h": stream.parameters(spec, tiling, values),
        "copies.h": "".join(f"COPY({j}, {j}, 0, 0, 0)\n" for j in range(_pointers(spec, tiling))),
        "body.h": stream.rolled_body(
            spec, tiling, lambda tap: ("in", f"{tap.row} * THREADS * ROW_WORDS + {tap.channel}")
        ),
        "accumulate.h": stream.accumulate(spec, tiling),
        "epilogue.h": stream.rolled_epilogue(list(_stores(spec, tiling))),
    }


def _stores(spec: Linear, tiling: Tiling) -> Iterator[Store]:
    for p in range(tiling.rows):
        for q in range(pairs(spec)):
            rows = f"{p + q * tiling.rows} * THREADS"
            for k in range(tiling.group_kernels):
                yield Store(p * pairs(spec) + q, k, f"IN_RANGE({rows})", f"{rows} * KERNELS + {k}")


def work(spec: Linear, tiling: Tiling) -> Work:
    """What one stream does."""
    chunks = -(-spec.inputs // tiling.chunk_channels)
    sums = tiling.rows * tiling.group_kernels
    adds_up = pairs(spec) == 2 and tiling.accumulate == "float32"
    element, step = ELEMENT_BYTES[spec.data_type], unit(spec, tiling)
    return Work(
        streams=-(-spec.outputs // tiling.group_kernels),
        threads=tiling.tile_width,
        sums=sums * (3 if adds_up else 1),
        terms=sums * spec.inputs,
        inputs=tiling.rows * -(-spec.inputs // step),
        pointers=_pointers(spec, tiling),
        copies=_pointers(spec, tiling) * chunks,
        chunks=chunks,
        stores=sums * pairs(spec) * (1 + added_instructions(spec.epilogue)),
        slots=sums * tiling.chunk_channels,
        results=sums * -(-tiling.chunk_channels // stream.POINTWISE_CHANNELS),
        tile_bytes=block_rows(spec, tiling) * chunks * (element * tiling.chunk_channels + 28),
        input_bytes=element * spec.inputs,
        output_bytes=element * spec.outputs,
        largest_offset_bytes=element * block_rows(spec, tiling) * max(spec.inputs, spec.outputs),
        conflicts=bank_conflicts(lane * row_words(spec, tiling) // step for lane in range(32 // step)),
        packed_sums=sums if adds_up else 0,
    )


def candidates(spec: Linear) -> Iterator[Tiling]:
    """Tilings worth a look, in a fixed order, whether they fit or not."""
    shares = {-(-spec.outputs // share) for share in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    for threads in (32, 64, 128, 256):
        for rows in (1, 2):
            for kernels in sorted({min(spec.outputs, size) for size in (16, 32, 64, 96)} | shares):
                for channels in sorted({min(spec.inputs, size) for size in (8, 16, 32)}):
                    yield Tiling(threads, 1, rows, kernels, channels, stages=2)


def last_resort(spec: Linear) -> Iterator[Tiling]:
    """One output at a time: for what the limits leave no other tiling."""
    yield Tiling(32, 1, 1, 1, min(spec.inputs, 8), stages=2)
