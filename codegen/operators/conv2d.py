"""Direct 2-D convolution, transposed or not: the generated parts of conv2d.cu."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.launch import GridSize, Launch
from codegen.operators import stream
from codegen.operators.geometry import Geometry, Streams, geometry_of
from codegen.operators.region import Region
from codegen.operators.stream import Store
from codegen.operators.work import Work, bank_conflicts
from codegen.spec import AddResidual, Conv2d, ConvTranspose2d
from codegen.tiling import Part, Tiling

KERNEL = "conv2d"
SOURCES: tuple[str, ...] = ("conv2d.cu", "conv2d.py", *stream.SHARED_SOURCES)
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

Spec = Conv2d | ConvTranspose2d


def pairs(spec: Spec) -> int:
    """Positions that the halves of a register hold."""
    return 2 if spec.data_type == "float16" else 1


def is_flat(geometry: Geometry, tiling: Tiling) -> bool:
    """Whether a tile is a piece of each channel without a halo, copied in whole chunks."""
    streams = Streams.of(geometry, tiling)
    return geometry.is_pointwise and geometry.height == 1 and streams.span_channels % tiling.chunk_channels == 0


def unit(spec: Spec, tiling: Tiling) -> int:
    """Words that one copy moves: four where rows of the tile begin at multiples of 16 bytes."""
    geometry = geometry_of(spec)
    if spec.data_type != "float32" or not is_flat(geometry, tiling):
        return 1
    whole = tiling.tile_width == geometry.width and geometry.group_channels * geometry.width % 4 == 0
    aligned = tiling.tile_width % 4 == 0 and geometry.width % 4 == 0
    return 4 if aligned or (whole and tiling.chunk_channels * tiling.tile_width % 4 == 0) else 1


def input_tile(geometry: Geometry, tiling: Tiling) -> tuple[int, int]:
    """Rows and columns of the input that one block needs of a channel, halo included."""
    height = (tiling.tile_height * tiling.rows - 1) * geometry.tile_stride[0]
    width = (tiling.tile_width - 1) * geometry.tile_stride[1]
    rows = (geometry.kernel_height - 1) * geometry.dilation[0] + 1
    return height + rows, width + (geometry.kernel_width - 1) * geometry.dilation[1] + 1


def tiles(spec: Spec, tiling: Tiling) -> tuple[int, int]:
    """Blocks per image: down and across."""
    geometry = geometry_of(spec)
    down = -(-geometry.positions_height // (tiling.tile_height * tiling.rows))
    return down, -(-geometry.positions_width // (tiling.tile_width * pairs(spec)))


def _copies(spec: Spec, tiling: Tiling) -> tuple[int, int]:
    """Pointers of a thread, and copies of one chunk through each of them."""
    height, width = input_tile(geometry_of(spec), tiling)
    if is_flat(geometry_of(spec), tiling):
        return -(-tiling.chunk_channels * width // (tiling.threads * unit(spec, tiling))), 1
    return -(-height * width // tiling.threads), tiling.chunk_channels


def _shared_words(spec: Spec, tiling: Tiling) -> int:
    height, width = input_tile(geometry_of(spec), tiling)
    return tiling.stages * tiling.chunk_channels * height * width


def launch_of(spec: Spec, tiling: Tiling, part: Part | None = None) -> Launch:
    """Tiles, images, K groups: the group is slowest so that all multiprocessors follow one stream at a time."""
    down, across = tiles(spec, tiling)
    groups = Streams.of(geometry_of(spec), tiling).count if part is None else part.end - part.first
    residual = ("residual",) if AddResidual() in spec.epilogue else ()
    return Launch(
        kernel=KERNEL,
        grid=(GridSize(down * across), GridSize(images=1), GridSize(groups)),
        block=(tiling.threads, 1, 1),
        shared_bytes=4 * _shared_words(spec, tiling),
        arguments=("input", "output", *residual, "images"),
        data_type=spec.data_type,
    )


def block_region(spec: Spec, tiling: Tiling, block: tuple[int, int, int]) -> Region:
    """What the block with this tile, image and K group computes, clipped to the output."""
    geometry = geometry_of(spec)
    tile, image, group = block
    _, across = tiles(spec, tiling)
    kernel = Streams.of(geometry, tiling).first_kernel(group)
    # A stream at the end of a span has fewer kernels than the others.
    end = kernel // Streams.of(geometry, tiling).span_kernels * Streams.of(geometry, tiling).span_kernels
    end += Streams.of(geometry, tiling).span_kernels
    return Region(
        slice(image, image + 1),
        slice(kernel, min(kernel + tiling.group_kernels, end)),
        _outputs(
            tile // across, tiling.tile_height * tiling.rows, geometry.phases[0], geometry.crop[0], spec.output_height
        ),
        _outputs(
            tile % across, tiling.tile_width * pairs(spec), geometry.phases[1], geometry.crop[1], spec.output_width
        ),
    )


def _outputs(tile: int, positions: int, phases: int, crop: int, outputs: int) -> slice:
    start = tile * positions * phases - crop
    return slice(max(start, 0), min(start + positions * phases, outputs))


def sources(spec: Spec, tiling: Tiling) -> dict[str, str]:
    """The generated headers that conv2d.cu includes."""
    input_row = "({c} * INPUT_TILE_HEIGHT + {y}) * INPUT_TILE_WIDTH + {x}"
    stores = list(_stores(spec, tiling))
    if tiling.form == "full":
        body, epilogue = "", stream.full_streams(spec, tiling, stores, input_row)
    else:
        body, epilogue = stream.rolled_body(spec, tiling, input_row), stream.rolled_epilogue(stores)
    return {
        "parameters.h": _parameters(spec, tiling),
        "copies.h": _copy_lines(spec, tiling),
        "body.h": body,
        "accumulate.h": stream.accumulate(spec, tiling),
        "epilogue.h": epilogue,
    }


def _parameters(spec: Spec, tiling: Tiling) -> str:
    geometry = geometry_of(spec)
    height, width = input_tile(geometry, tiling)
    pointers, each = _copies(spec, tiling)
    values: dict[str, int | str] = {
        "HEIGHT": geometry.height,
        "WIDTH": geometry.width,
        "STRIDE_Y": geometry.stride[0],
        "STRIDE_X": geometry.stride[1],
        "STEP_Y": geometry.step[0],
        "STEP_X": geometry.step[1],
        "PAD_TOP": f"({geometry.pad_top})",
        "PAD_LEFT": f"({geometry.pad_left})",
        "UP_Y": geometry.phases[0],
        "UP_X": geometry.phases[1],
        "CROP_Y": geometry.crop[0],
        "CROP_X": geometry.crop[1],
        "OUTPUT_HEIGHT": spec.output_height,
        "OUTPUT_WIDTH": spec.output_width,
        "INPUT_TILE_HEIGHT": height,
        "INPUT_TILE_WIDTH": width,
        "TILES_X": tiles(spec, tiling)[1],
        "FLAT": int(is_flat(geometry, tiling)),
        "UNIT": unit(spec, tiling),
        "POINTERS": pointers,
        "WORDS": pointers * each * unit(spec, tiling),
        "ADVANCE": tiling.chunk_channels * geometry.height * geometry.width,
        "PAIR_OFFSET": tiling.tile_width * geometry.stride[1],
    }
    return stream.parameters(spec, tiling, values)


def _copy_lines(spec: Spec, tiling: Tiling) -> str:
    pointers, each = _copies(spec, tiling)
    tile = "INPUT_TILE_HEIGHT * INPUT_TILE_WIDTH"
    return "".join(
        f"COPY({j}, {c * pointers + j}, {c}, {c} * HEIGHT * WIDTH, {c} * {tile})\n"
        for c in range(each)
        for j in range(pointers)
    )


def _stores(spec: Spec, tiling: Tiling) -> Iterator[Store]:
    geometry = geometry_of(spec)
    up_y, up_x = geometry.phases
    for p in range(tiling.rows):
        for q in range(pairs(spec)):
            for k in range(tiling.group_kernels):
                for phase in range(geometry.phase_count):
                    down, across = p * up_y + phase // up_x, q * tiling.tile_width * up_x + phase % up_x
                    yield Store(
                        p * pairs(spec) + q,
                        k * geometry.phase_count + phase,
                        f"IN_RANGE({down}, {across})",
                        f"{down} * OUTPUT_WIDTH + {across} + {k} * OUTPUT_PLANE",
                    )


def work(spec: Spec, tiling: Tiling) -> Work:
    """What one stream does."""
    geometry = geometry_of(spec)
    streams = Streams.of(geometry, tiling)
    height, width = input_tile(geometry, tiling)
    pointers, each = _copies(spec, tiling)
    kernels = min(tiling.group_kernels, geometry.group_kernels) if geometry.groups > 1 else tiling.group_kernels
    taps = geometry.kernel_height * geometry.kernel_width
    used_rows = min(
        (tiling.rows - 1) * geometry.tile_stride[0] + geometry.kernel_height, tiling.rows * geometry.kernel_height
    )
    sums = tiling.rows * stream.sums(geometry, tiling)
    outputs = spec.kernels * spec.output_height * spec.output_width
    element = ELEMENT_BYTES[spec.data_type]
    per_channel = tiling.rows * kernels * geometry.phase_count * taps
    lanes = range(min(32, tiling.threads))
    row_step = tiling.rows * geometry.tile_stride[0] * width
    return Work(
        streams=streams.count,
        threads=tiling.threads,
        sums=sums * (2 * pairs(spec) - 1 if tiling.accumulate == "float32" else pairs(spec)),
        terms=per_channel * streams.span_channels,
        inputs=used_rows * geometry.kernel_width * streams.span_channels,
        pointers=pointers,
        copies=pointers * each * streams.chunks,
        chunks=streams.chunks,
        stores=sums * pairs(spec),
        slots=per_channel * tiling.chunk_channels,
        results=sums
        * used_rows
        * tiling.chunk_channels
        // (stream.POINTWISE_CHANNELS if taps == tiling.rows == 1 else 1),
        # A row of the tile starts anywhere in a 32-byte sector.
        tile_bytes=streams.span_channels * 32 * height * (element * width * geometry.step[1] * pairs(spec) + 28) / 32,
        input_bytes=element * geometry.channels * geometry.height * geometry.width,
        output_bytes=element * outputs,
        largest_offset_bytes=element * max(outputs, tiling.chunk_channels * geometry.height * geometry.width),
        conflicts=bank_conflicts(
            lane // tiling.tile_width * row_step + lane % tiling.tile_width * geometry.tile_stride[1] for lane in lanes
        ),
    )


def candidates(spec: Spec) -> Iterator[Tiling]:
    """Tilings worth a look, in a fixed order, whether they fit or not."""
    geometry = geometry_of(spec)
    height, width = geometry.positions_height, -(-geometry.positions_width // pairs(spec))
    if geometry.is_pointwise:
        widths = {min(width, size) for size in (32, 64, 128, 256)} | {-(-width // 2)} & set(range(257))
        heights, rows_choices = {1}, [1]
    else:
        widths = {min(width, 64), min(-(-width // 2), 64), min(width, 32), min(width, 16), min(width, 8)}
        heights, rows_choices = {1, 2, 4, 7, 8, 14, 16, min(height, 32)}, [1, 2, 4]
    for tile_width in sorted(widths):
        for tile_height in sorted(heights):
            if not 32 <= tile_width * tile_height <= 512 and tile_height < height:
                continue
            for rows in rows_choices:
                if tile_height * rows >= height + max(tile_height, rows):
                    continue
                for kernels, channels in _divisions(geometry):
                    yield Tiling(tile_width, tile_height, rows, kernels, channels, stages=2)


def _divisions(geometry: Geometry) -> Iterator[tuple[int, int]]:
    """Kernels of a stream and channels of a chunk."""
    shares = (1, 2, 4, 8, 16, 32, 64, geometry.group_kernels)
    chunks = (4, 8, 16, 32) if geometry.kernel_height == geometry.kernel_width == 1 else (1, 2, 4, 8, 16)
    for kernels in sorted({-(-geometry.group_kernels // share) for share in shares}):
        for channels in sorted({min(geometry.group_channels, chunk) for chunk in chunks}):
            yield kernels, channels
    for groups in (2, 4, 8, 16, 32):
        if geometry.groups % groups == 0 and geometry.groups > 1:
            yield groups * geometry.group_kernels, groups * geometry.group_channels


def last_resort(spec: Spec) -> Iterator[Tiling]:
    """One output channel at a time: for what the limits leave no other tiling."""
    geometry = geometry_of(spec)
    width = min(geometry.positions_width, 32)
    for tile_width, tile_height in (
        (width, min(geometry.positions_height, max(1, 64 // width))),
        (min(width, 8), 1),
        (1, 1),
    ):
        yield Tiling(tile_width, tile_height, 1, 1, 1, stages=2)
