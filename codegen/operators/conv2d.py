"""Direct 2-D convolution: the generated parts of conv2d.cu, and how the weights map to them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from codegen.launch import GridSize, Launch
from codegen.layers import FloatArray, Weights
from codegen.operators.placeholders import FIRST_BIAS, FIRST_WEIGHT, immediate, random_placeholders
from codegen.operators.region import Region
from codegen.spec import Conv2d
from codegen.tiling import Tiling

KERNEL = "conv2d"
SOURCES = ("conv2d.cu", "conv2d.py", "placeholders.py")


def input_tile(spec: Conv2d, tiling: Tiling) -> tuple[int, int]:
    """Rows and columns of the input that one block needs of a channel, halo included."""
    height = (tiling.tile_height * tiling.rows - 1) * spec.stride[0] + spec.kernel_height
    width = (tiling.tile_width - 1) * spec.stride[1] + spec.kernel_width
    return height, width


def chunks(spec: Conv2d, tiling: Tiling) -> int:
    """Turns of the loop over input channels."""
    return -(-spec.channels // tiling.chunk_channels)


def groups(spec: Conv2d, tiling: Tiling) -> int:
    """Instruction streams: output channels in groups."""
    return -(-spec.kernels // tiling.group_kernels)


def tiles(spec: Conv2d, tiling: Tiling) -> tuple[int, int]:
    """Blocks per image: down and across."""
    down = -(-spec.output_height // (tiling.tile_height * tiling.rows))
    return down, -(-spec.output_width // tiling.tile_width)


def launch_of(spec: Conv2d, tiling: Tiling) -> Launch:
    """Tiles, images, K groups: the group is slowest so that all multiprocessors follow one stream at a time."""
    height, width = input_tile(spec, tiling)
    down, across = tiles(spec, tiling)
    return Launch(
        kernel=KERNEL,
        grid=(GridSize(down * across), GridSize(images=1), GridSize(groups(spec, tiling))),
        block=(tiling.threads, 1, 1),
        shared_bytes=4 * tiling.stages * tiling.chunk_channels * height * width,
    )


def block_region(spec: Conv2d, tiling: Tiling, block: tuple[int, int, int]) -> Region:
    """What the block with this blockIdx (x, y, z) computes, clipped to the output."""
    tile, image, group = block
    _, across = tiles(spec, tiling)
    row = tile // across * tiling.tile_height * tiling.rows
    column = tile % across * tiling.tile_width
    kernel = group * tiling.group_kernels
    return Region(
        image,
        slice(kernel, min(kernel + tiling.group_kernels, spec.kernels)),
        slice(row, min(row + tiling.tile_height * tiling.rows, spec.output_height)),
        slice(column, min(column + tiling.tile_width, spec.output_width)),
    )


def sources(spec: Conv2d, tiling: Tiling) -> dict[str, str]:
    """The generated headers that conv2d.cu includes."""
    full = tiling.form == "full"
    return {
        "parameters.h": _parameters(spec, tiling),
        "copies.h": _copies(spec, tiling),
        "body.h": "" if full else _rolled_body(spec, tiling),
        "epilogue.h": _full_streams(spec, tiling) if full else _rolled_epilogue(tiling),
    }


def _parameters(spec: Conv2d, tiling: Tiling) -> str:
    values = {
        "CHANNELS": spec.channels,
        "HEIGHT": spec.height,
        "WIDTH": spec.width,
        "KERNELS": spec.kernels,
        "KERNEL_HEIGHT": spec.kernel_height,
        "KERNEL_WIDTH": spec.kernel_width,
        "STRIDE_Y": spec.stride[0],
        "STRIDE_X": spec.stride[1],
        "PAD_TOP": spec.padding[0],
        "PAD_LEFT": spec.padding[1],
        "OUTPUT_HEIGHT": spec.output_height,
        "OUTPUT_WIDTH": spec.output_width,
        "TILE_WIDTH": tiling.tile_width,
        "TILE_HEIGHT": tiling.tile_height,
        "ROWS": tiling.rows,
        "GROUP_KERNELS": tiling.group_kernels,
        "CHUNK_CHANNELS": tiling.chunk_channels,
        "STAGES": tiling.stages,
        "CHUNKS": chunks(spec, tiling),
        "FULL": int(tiling.form == "full"),
    }
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def _copies(spec: Conv2d, tiling: Tiling) -> str:
    height, width = input_tile(spec, tiling)
    copies = -(-height * width // tiling.threads)
    return "".join(f"COPY({j}, {c});\n" for c in range(tiling.chunk_channels) for j in range(copies))


def _taps(spec: Conv2d, tiling: Tiling) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """The inputs a thread reads of one channel, row by row: (row, column, [(output row, kernel row), ...])."""
    for y in range((tiling.rows - 1) * spec.stride[0] + spec.kernel_height):
        uses = [
            (p, y - p * spec.stride[0]) for p in range(tiling.rows) if 0 <= y - p * spec.stride[0] < spec.kernel_height
        ]
        if uses:
            for s in range(spec.kernel_width):
                yield y, s, uses


def rolled_slots(spec: Conv2d, tiling: Tiling) -> NDArray[np.int64]:
    """The weight of each placeholder of one chunk of one K group: [slots, 4] of (k, c, r, s) within group and chunk."""
    one_channel = [
        (k, 0, r, s) for _, s, uses in _taps(spec, tiling) for k in range(tiling.group_kernels) for _, r in uses
    ]
    slots = np.tile(np.array(one_channel, dtype=np.int64), (tiling.chunk_channels, 1))
    slots[:, 1] = np.repeat(np.arange(tiling.chunk_channels), len(one_channel))
    return slots


def _rolled_body(spec: Conv2d, tiling: Tiling) -> str:
    # One statement per row of a channel: the compiler's time grows with statements times results, not with
    # instructions, and its loads stand at the head of a statement, where a whole channel's would need many registers.
    sums = [f'"+f"(sum[{p}][{k}])' for p in range(tiling.rows) for k in range(tiling.group_kernels)]
    placeholder = FIRST_WEIGHT
    statements = []
    for c in range(tiling.chunk_channels):
        for y, taps in groupby(_taps(spec, tiling), key=lambda tap: tap[0]):
            inputs: list[str] = []
            lines: list[str] = []
            for _, s, uses in taps:
                x = len(sums) + len(inputs)
                inputs.append(f'"f"(in[({c} * INPUT_TILE_HEIGHT + {y}) * INPUT_TILE_WIDTH + {s}])')
                for k in range(tiling.group_kernels):
                    for p, _ in uses:
                        total = f"%{p * tiling.group_kernels + k}"
                        lines.append(f'"fma.rn.f32 {total},%{x},{immediate(placeholder)},{total};\\n"')
                        placeholder += 1
            statements.append("asm({}\n: {}\n: {});\n".format("\n".join(lines), ", ".join(sums), ", ".join(inputs)))
    return "".join(statements)


def _rolled_epilogue(tiling: Tiling) -> str:
    return "".join(
        f'STORE({p}, {k}, "{immediate(FIRST_BIAS + k)}");\n'
        for p in range(tiling.rows)
        for k in range(tiling.group_kernels)
    )


def rolled_values(spec: Conv2d, tiling: Tiling, weights: Weights) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """What the placeholders of every copy stand for.

    Gives the weights [groups, chunks, slots], the biases [groups, group_kernels], and which kernels of a group exist
    [groups, group_kernels]. Channels and kernels beyond the layer's own are zero.
    """
    k, c, r, s = rolled_slots(spec, tiling).T
    g, n = groups(spec, tiling), chunks(spec, tiling)
    shape = (g, tiling.group_kernels, n, tiling.chunk_channels, spec.kernel_height, spec.kernel_width)
    padded = np.zeros((shape[0] * shape[1], shape[2] * shape[3], *shape[4:]), dtype=np.float32)
    padded[: spec.kernels, : spec.channels] = weights.kernel
    bias = np.zeros(shape[0] * shape[1], dtype=np.float32)
    bias[: spec.kernels] = weights.bias
    offsets = np.ravel_multi_index((k, c, r, s), (shape[1], shape[3], shape[4], shape[5]))
    by_copy = padded.reshape(shape).transpose(0, 2, 1, 3, 4, 5).reshape(g, n, -1)
    exists = (np.arange(len(bias)) < spec.kernels).reshape(g, -1)
    return by_copy[:, :, offsets], bias.reshape(g, -1), exists


def full_values(spec: Conv2d, weights: Weights) -> dict[int, int]:
    """From the bits of every placeholder of the full form to the bits of its weight."""
    kernel_bits, bias_bits = full_placeholders(spec)
    keys = np.concatenate([kernel_bits.ravel(), bias_bits])
    values = np.concatenate([weights.kernel.ravel(), weights.bias]).astype(np.float32).view(np.uint32)
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def full_placeholders(spec: Conv2d) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The bits of the placeholder of each weight [K, C, R, S] and each bias [K] of the full form."""
    bits = random_placeholders(spec.weights_count + spec.kernels)
    return bits[: spec.weights_count].reshape(spec.weights_shape), bits[spec.weights_count :]


def _full_streams(spec: Conv2d, tiling: Tiling) -> str:
    kernel_bits, bias_bits = full_placeholders(spec)
    taps = list(_taps(spec, tiling))
    lines = []
    for g in range(groups(spec, tiling)):
        first = g * tiling.group_kernels
        kernels = range(first, min(first + tiling.group_kernels, spec.kernels))
        lines.append(f"if (blockIdx.z == {g}) {{")
        for n in range(chunks(spec, tiling)):
            lines.append(f"CHUNK({n});")
            channels = range(n * tiling.chunk_channels, min((n + 1) * tiling.chunk_channels, spec.channels))
            for c in channels:
                for y, s, uses in taps:
                    lines.append(f"{{ const float x = INPUT({n}, {c - channels[0]}, {y}, {s});")
                    lines += [
                        f"MULTIPLY_ADD({p}, {k - first}, x, 0x{kernel_bits[k, c, r, s]:08X});"
                        for k in kernels
                        for p, r in uses
                    ]
                    lines.append("}")
        lines += [f"STORE({p}, {k - first}, 0x{bias_bits[k]:08X});" for p in range(tiling.rows) for k in kernels]
        lines.append("return;\n}")
    return "\n".join(lines) + "\n"
