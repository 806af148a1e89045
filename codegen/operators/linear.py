"""Fully connected layers: the generated parts of linear.cu."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.launch import GridSize, Launch
from codegen.operators import stream
from codegen.operators.conv2d import ELEMENT_BYTES
from codegen.operators.lowered import LoweredLinear, TiledLinear
from codegen.operators.region import Region
from codegen.operators.steps import added_instructions
from codegen.operators.stream import Store
from codegen.operators.work import Work, bank_conflicts
from codegen.spec import AddResidual
from codegen.tiling import Part, Tiling

KERNEL = "linear"
SOURCE = "linear.cu"


def pairs(layer: TiledLinear) -> int:
    """Rows of the batch that the halves of a register hold."""
    return 2 if layer.spec.data_type == "float16" else 1


def block_rows(layer: TiledLinear) -> int:
    """Rows of the batch that a block computes."""
    return layer.tiling.tile_width * layer.tiling.rows * pairs(layer)


def unit(layer: TiledLinear) -> int:
    """Words that one copy moves: four where chunks of rows begin at multiples of 16 bytes."""
    return (
        4 if layer.spec.data_type == "float32" and layer.spec.inputs % 4 == layer.tiling.chunk_channels % 4 == 0 else 1
    )


def row_words(layer: TiledLinear) -> int:
    """Words from a row to the next in shared memory: padded, so that the lanes' loads meet no bank twice."""
    if unit(layer) == 4:
        return layer.tiling.chunk_channels + (4 if layer.tiling.chunk_channels % 8 == 0 else 0)
    return layer.tiling.chunk_channels | 1


def tiles(layer: TiledLinear) -> tuple[int, int]:  # noqa: ARG001 - of Operator
    """Rows are what a batch has of images: one tile each."""
    return 1, 1


def launch_of(layer: TiledLinear, part: Part | None = None) -> Launch:
    """Rows of the batch, nothing, groups of outputs."""
    groups = layer.streams.count if part is None else part.end - part.first
    residual = ("residual",) if AddResidual() in layer.spec.epilogue else ()
    return Launch(
        kernel=KERNEL,
        grid=(GridSize(images=block_rows(layer)), GridSize(), GridSize(groups)),
        block=(layer.tiling.tile_width, 1, 1),
        shared_bytes=4 * layer.tiling.stages * layer.tiling.tile_width * layer.tiling.rows * row_words(layer),
        arguments=("input", "output", *residual, "images"),
        data_type=layer.spec.data_type,
    )


def block_region(layer: TiledLinear, block: tuple[int, int, int]) -> Region:
    """What the block with this blockIdx.x and K group computes; it may reach beyond the batch."""
    rows, kernel = block_rows(layer), block[2] * layer.tiling.group_kernels
    return Region(
        slice(block[0] * rows, (block[0] + 1) * rows),
        slice(kernel, min(kernel + layer.tiling.group_kernels, layer.spec.outputs)),
    )


def _pointers(layer: TiledLinear) -> int:
    return -(-layer.tiling.rows * layer.tiling.chunk_channels // unit(layer))


def sources(layer: TiledLinear) -> dict[str, str]:
    """The generated headers that linear.cu includes."""
    values: dict[str, int | str] = {
        "ROW_WORDS": row_words(layer),
        "UNIT": unit(layer),
        "POINTERS": _pointers(layer),
        "HELD": _pointers(layer) * (2 if layer.spec.data_type == "float16" else unit(layer)),
        "ADVANCE": layer.tiling.chunk_channels,
        "PAIR_OFFSET": "THREADS * ROWS * CHANNELS",
    }
    return {
        "parameters.h": stream.parameters(layer, values),
        "copies.h": "".join(f"COPY({j}, {j}, 0, 0, 0)\n" for j in range(_pointers(layer))),
        "body.h": stream.rolled_body(layer, lambda tap: ("in", f"{tap.row} * THREADS * ROW_WORDS + {tap.channel}")),
        "accumulate.h": stream.accumulate(layer),
        "epilogue.h": stream.rolled_epilogue(list(_stores(layer))),
    }


def _stores(layer: TiledLinear) -> Iterator[Store]:
    for p in range(layer.tiling.rows):
        for q in range(pairs(layer)):
            rows = f"{p + q * layer.tiling.rows} * THREADS"
            for k in range(layer.tiling.group_kernels):
                yield Store(p * pairs(layer) + q, k, f"IN_RANGE({rows})", f"{rows} * KERNELS + {k}")


def work(layer: TiledLinear) -> Work:
    """What one stream does."""
    chunks = -(-layer.spec.inputs // layer.tiling.chunk_channels)
    sums = layer.tiling.rows * layer.tiling.group_kernels
    adds_up = pairs(layer) == 2 and layer.tiling.accumulate == "float32"
    element, step = ELEMENT_BYTES[layer.spec.data_type], unit(layer)
    return Work(
        streams=-(-layer.spec.outputs // layer.tiling.group_kernels),
        threads=layer.tiling.tile_width,
        sums=sums * (3 if adds_up else 1),
        terms=sums * layer.spec.inputs,
        inputs=layer.tiling.rows * -(-layer.spec.inputs // step),
        pointers=_pointers(layer),
        copies=_pointers(layer) * chunks,
        chunks=chunks,
        stores=sums * pairs(layer) * (1 + added_instructions(layer.spec.epilogue)),
        slots=sums * layer.tiling.chunk_channels,
        results=sums * -(-layer.tiling.chunk_channels // stream.POINTWISE_CHANNELS),
        tile_bytes=block_rows(layer) * chunks * (element * layer.tiling.chunk_channels + 28),
        input_bytes=element * layer.spec.inputs,
        output_bytes=element * layer.spec.outputs,
        largest_offset_bytes=element * block_rows(layer) * max(layer.spec.inputs, layer.spec.outputs),
        conflicts=bank_conflicts(lane * row_words(layer) // step for lane in range(32 // step)),
        packed_sums=sums if adds_up else 0,
    )


def candidates(layer: LoweredLinear) -> Iterator[Tiling]:
    """Tilings worth a look, in a fixed order, whether they fit or not."""
    shares = {-(-layer.spec.outputs // share) for share in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    for threads in (32, 64, 128, 256):
        for rows in (1, 2):
            for kernels in sorted({min(layer.spec.outputs, size) for size in (16, 32, 64, 96)} | shares):
                for channels in sorted({min(layer.spec.inputs, size) for size in (8, 16, 32)}):
                    yield Tiling(threads, 1, rows, kernels, channels, stages=2)


def last_resort(layer: LoweredLinear) -> Iterator[Tiling]:
    """One output at a time: for what the limits leave no other layer.tiling."""
    yield Tiling(32, 1, 1, 1, min(layer.spec.inputs, 8), stages=2)
