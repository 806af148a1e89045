"""The instruction stream of a K group: its generated text, and which placeholder is which weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.dtypes import from_float32
from codegen.ir.layer_spec import AddResidual, LayerSpec, is_bounded, is_gated, prepares_inputs
from codegen.ir.tiling import Tiling
from codegen.kernels.epilogue_ptx import epilogue_text, last_relu
from codegen.kernels.geometry import Geometry, phase_weights
from codegen.kernels.input_transforms import prepared_input, with_prepared_inputs
from codegen.kernels.lowering import AnyTiled
from codegen.kernels.placeholders import FIRST_BIAS, FIRST_WEIGHT, immediate, spread_placeholders
from codegen.kernels.streams import QUAD

POINTWISE_CHANNELS = 4
"""Channels per statement where a channel has one input."""
PRODUCTS_TOGETHER = 160
"""Products of a sum that are added up in float16 before float32 takes over, unless one chunk has more."""


@dataclass(frozen=True)
class Tap:
    """An input of a thread in a channel of a chunk, and the rows of the thread that use it."""

    channel: int
    row: int
    """Row of the thread's window in the input tile."""
    column: int
    kernel_column: int
    uses: tuple[tuple[int, int], ...]
    """(row of the thread, row of the filter)."""


def taps(layer: AnyTiled) -> list[list[Tap]]:
    """The inputs of one chunk, by statement: a row of one channel, or several channels of a pointwise layer."""
    geometry, tiling = layer.geometry, layer.tiling
    rows: list[tuple[int, tuple[tuple[int, int], ...]]] = []
    stride, _ = geometry.tile_stride
    for y in range((tiling.rows - 1) * stride + (geometry.kernel_height - 1) * geometry.dilation[0] + 1):
        offsets = [(p, y - p * stride) for p in range(tiling.rows)]
        uses = tuple(
            (p, offset // geometry.dilation[0])
            for p, offset in offsets
            if offset >= 0
            and offset % geometry.dilation[0] == 0
            and offset // geometry.dilation[0] < geometry.kernel_height
        )
        if uses:
            rows.append((y, uses))
    columns = range(geometry.kernel_width)
    statements = [
        [Tap(c, y, s * geometry.dilation[1], s, uses) for s in columns]
        for c in range(tiling.chunk_channels)
        for y, uses in rows
    ]
    if tiling.kernel == "cluster_conv2d":
        # One load brings the elements of four channels at one place.
        quads = range(0, tiling.chunk_channels, QUAD)
        return [
            [Tap(c, y, s * geometry.dilation[1], s, uses) for s in columns for c in range(first, first + QUAD)]
            for first in quads
            for y, uses in rows
        ]
    if len(rows) == len(columns) == 1:
        step = POINTWISE_CHANNELS
        return [[tap for one in statements[i : i + step] for tap in one] for i in range(0, len(statements), step)]
    return statements


@dataclass(frozen=True)
class Slots:
    """The placeholders of one turn of the loop, in order."""

    sums: NDArray[np.int64]
    """The number of the sum that each adds to: thread row times sums of a row, plus sum."""
    weights: NDArray[np.int64]
    """Indices into the weights of one copy of the loop, [group outputs, phases, chunk channels, rows, columns]."""


def _terms(geometry: Geometry, tiling: Tiling, tap: Tap) -> Iterator[tuple[int, int, int, int]]:
    """(thread row, output channel of the group, phase, filter row) of each multiply-add of an input."""
    several = geometry.groups > 1 and tiling.group_outputs >= geometry.group_outputs
    for k in range(tiling.group_outputs):
        if several and k // geometry.group_outputs != tap.channel // geometry.group_channels:
            continue
        for phase in range(geometry.phase_count):
            for p, r in tap.uses:
                yield p, k, phase, r


@lru_cache(maxsize=64)
def slots(layer: AnyTiled) -> Slots:
    """Weight and sum of each placeholder of the loop body."""
    geometry, tiling = layer.geometry, layer.tiling
    channels = min(tiling.chunk_channels, geometry.group_channels) if geometry.groups > 1 else tiling.chunk_channels
    rows = [
        (p, k, phase, tap.channel % channels, r, tap.kernel_column)
        for statement in taps(layer)
        for tap in statement
        for p, k, phase, r in _terms(geometry, tiling, tap)
    ]
    p, k, phase, c, r, s = np.array(rows, dtype=np.int64).T
    extents = (tiling.group_outputs, geometry.phase_count, channels, geometry.kernel_height, geometry.kernel_width)
    return Slots(
        sums=(p * tiling.group_outputs + k) * geometry.phase_count + phase,
        weights=np.ravel_multi_index((k, phase, c, r, s), extents),
    )


@dataclass(frozen=True, eq=False)
class Values:
    """The values of the placeholders in every copy of the loop body."""

    weights: FloatArray
    """[streams, chunks, slots]; channels and output channels beyond the layer's own are zero."""
    biases: FloatArray
    """[streams, sums of a row that are stored]."""
    exists: NDArray[np.bool_]
    """[streams, sums of a row that are stored]: whether the output channel is one of the layer's."""
    bounds: FloatArray
    """[streams, chunks, inputs of the loop, 2]: lowest and highest; no inputs if the layer is not bounded."""


def copies(layer: AnyTiled, weights: Weights) -> FloatArray:
    """[streams, chunks, weights of a copy of the loop body], which `Slots.weights` are indices into.

    Channels and output channels beyond the layer's own are zero.
    """
    geometry, tiling, streams = layer.geometry, layer.tiling, layer.streams
    by_stream = streams.by_stream(phase_weights(layer.spec, weights))
    if tiling.chunk_channels < geometry.group_channels or geometry.groups == 1:
        missing = streams.shares * streams.chunks * tiling.chunk_channels - streams.span_channels
        by_stream = np.pad(by_stream, ((0, 0),) * 3 + ((0, missing),) + ((0, 0),) * 2)
    shape = by_stream.shape
    by_chunk = by_stream.reshape(*shape[:3], streams.shares * streams.chunks, -1, *shape[4:])
    by_chunk = by_chunk.transpose(0, 3, 1, 2, 4, 5, 6)  # the shares of a K group are neighbours
    return np.asarray(by_chunk.reshape(streams.count, streams.chunks, -1), dtype=np.float32)


def values(layer: AnyTiled, weights: Weights) -> Values:
    """The weights in the order of the placeholders."""
    geometry, streams = layer.geometry, layer.streams
    phases = geometry.phase_count
    biases = np.where(streams.adds_bias[:, np.newaxis], streams.stored(weights.bias), 0)
    return Values(
        weights=copies(layer, weights)[:, :, slots(layer).weights],
        biases=np.repeat(np.asarray(biases, dtype=np.float32), phases, axis=1),
        exists=np.repeat(streams.stored(np.ones(geometry.output_channels, dtype=np.bool_)) != 0, phases, axis=1),
        bounds=_bounds(layer, weights),
    )


def _bounds(layer: AnyTiled, weights: Weights) -> FloatArray:
    streams, tiling = layer.streams, layer.tiling
    if weights.bounds is None:
        return np.zeros((streams.count, streams.chunks, 0, 2), dtype=np.float32)
    missing = streams.shares * streams.chunks * tiling.chunk_channels - len(weights.bounds)
    of_channel = np.pad(weights.bounds, ((0, missing), (0, 0))).astype(np.float32)
    of_share = of_channel.reshape(streams.shares, streams.chunks, tiling.chunk_channels, 2)
    channels = [tap.channel for statement in taps(layer) for tap in statement]
    return np.tile(of_share[:, :, channels], (streams.count // streams.shares, 1, 1, 1))


def bits(spec: LayerSpec, weights: FloatArray) -> NDArray[np.uint32]:
    """The immediates of the multiply-adds: float32, or a float16 in both halves."""
    if spec.data_type == "float16":
        halves = from_float32(weights, "float16").view(np.uint16).astype(np.uint32)
        return halves << np.uint32(16) | halves
    return weights.view(np.uint32)


def parameters(layer: AnyTiled, values: Mapping[str, int | str]) -> str:
    """The text of parameters.h: `values` and the macros of all kernels."""
    spec, geometry, tiling, streams = layer.spec, layer.geometry, layer.tiling, layer.streams
    common: dict[str, int | str] = {
        "DATA_TYPE": ("float32", "float16", "bfloat16").index(spec.data_type),
        "FLOAT32_SUMS": int(tiling.accumulate == "float32" and tiling.cluster == 1),
        "BOUNDED": int(is_bounded(spec)),
        "HAS_RESIDUAL": int(AddResidual() in spec.epilogue),
        "ENDS_IN_RELU": int(last_relu(spec.epilogue) is not None),
        "FULL": int(tiling.form == "full"),
        "WAITS": int(tiling.waits),
        "CHANNELS": geometry.channels,
        "OUTPUT_CHANNELS": geometry.output_channels,
        "SPAN_CHANNELS": streams.span_channels,
        "SPAN_OUTPUTS": streams.span_outputs,
        "SPANS": streams.spans,
        "GROUPS_PER_SPAN": streams.streams_per_span,
        "GROUP_OUTPUTS": tiling.group_outputs,
        "SUMS": layer.sums,
        "CHUNK_CHANNELS": tiling.chunk_channels,
        "CHUNKS": streams.chunks,
        "STAGES": tiling.stages,
        "TILE_WIDTH": tiling.tile_width,
        "TILE_HEIGHT": tiling.tile_height,
        "ROWS": tiling.rows,
        "CLUSTER": tiling.cluster,
    }
    lines = [f"#define {name} {value}\n" for name, value in {**common, **values}.items()]
    return "".join(lines) + f'#define STEPS "{epilogue_text(spec.epilogue)} "\n'


Address = Callable[[Tap], tuple[str, str]]
"""The address of an input in shared memory: C expressions of a pointer and of the words from it."""


def rolled_body(layer: AnyTiled, address: Address, before: Callable[[Sequence[Tap]], str] | None = None) -> str:
    """The text of body.h; `before` writes the text before a statement, from its inputs."""
    # One statement per row of a channel: the compiler's time grows with statements times results, not with
    # instructions, and its loads stand at the head of a statement, where a whole channel's would need many registers.
    geometry, tiling = layer.geometry, layer.tiling
    halves = layer.spec.data_type == "float16"
    sums, result, operand = ("packed", "+r", "r") if halves else ("sum", "+f", "f")
    placeholder = FIRST_WEIGHT
    statements = []
    first_tap = 0
    for statement in taps(layer):
        terms = [
            (i, p, k * geometry.phase_count + phase)
            for i, tap in enumerate(statement)
            for p, k, phase, _ in _terms(geometry, tiling, tap)
        ]
        results = {each: i for i, each in enumerate(dict.fromkeys((p, j) for _, p, j in terms))}
        lines = []
        for i, p, j in terms:
            total, x = f"%{results[p, j]}", f"%{len(results) + i}"
            if prepares_inputs(layer.spec):
                x = prepared_input(first_tap + i)
            if halves:
                lines.append(f'"mov.b32 w,0x{placeholder:08X}; fma.rn.f16x2 {total},{x},w,{total};\\n"')
            else:
                lines.append(f'"fma.rn.f32 {total},{x},{immediate(placeholder)},{total};\\n"')
            placeholder += 1
        if halves:
            lines = ['"{ .reg .b32 w;\\n"', *lines, '"}\\n"']
        lines = with_prepared_inputs(layer, [tap.channel for tap in statement], first_tap, len(results), lines)
        first_tap += len(statement)
        outputs = ", ".join(f'"{result}"({sums}[{p}][{j}])' for p, j in results)
        inputs = ", ".join('"{}"({}[{}])'.format(operand, *address(tap)) for tap in statement)
        if is_gated(layer.spec):
            inputs += ', "r"(gates)'
        text = "asm({}\n: {}\n: {});\n".format("\n".join(lines), outputs, inputs)
        statements.append(text if before is None else f"{{\n{before(statement)}{text}}}\n")
    return "".join(statements)


def accumulate(layer: AnyTiled) -> str:
    """The text of accumulate.h: adds every packed sum of a float16 layer to a float32 sum.

    Empty with clusters, whose blocks exchange packed sums unless they are large.
    """
    if layer.tiling.cluster > 1 and not layer.tiling.is_large:
        return ""
    return "".join(f"ACCUMULATE({p}, {j})\n" for p in range(layer.tiling.rows) for j in range(layer.sums))


@dataclass(frozen=True)
class Store:
    """The store of a sum: its row and number, and C expressions for whether and where it is stored."""

    row: int
    sum: int
    in_range: str
    image: int
    """The number of its image among the thread's."""
    offset: str
    """Elements from the thread's first output of that image."""

    def call(self, bias: str) -> str:
        """The line of epilogue.h."""
        return f"STORE({self.row}, {self.sum}, {bias}, {self.in_range}, {self.image}, {self.offset});"


def rolled_epilogue(stores: Sequence[Store]) -> str:
    """The text of epilogue.h."""
    return "".join(store.call(f'"{immediate(FIRST_BIAS + store.sum)}"') + "\n" for store in stores)


def full_placeholders(spec: LayerSpec) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The bits of the placeholder of each weight [K, C, R, S] and each bias [K] of the full form."""
    everything = spread_placeholders(spec.weights_count + spec.output_channels)
    return everything[: spec.weights_count].reshape(spec.weights_shape), everything[spec.weights_count :]


def full_values(spec: LayerSpec, weights: Weights) -> dict[int, int]:
    """The bits of each weight by the bits of its placeholder in the full form."""
    kernel_bits, bias_bits = full_placeholders(spec)
    keys = np.concatenate([kernel_bits.ravel(), bias_bits])
    real = np.concatenate([weights.kernel.ravel(), weights.bias]).astype(np.float32).view(np.uint32)
    return dict(zip(keys.tolist(), real.tolist(), strict=True))


def full_streams(layer: AnyTiled, stores: Sequence[Store], address: Address) -> str:
    """The text of epilogue.h of the full form: every stream with all its chunks."""
    geometry, tiling, streams = layer.geometry, layer.tiling, layer.streams
    kernel_bits, bias_bits = full_placeholders(layer.spec)
    kernel_bits = kernel_bits.reshape(geometry.output_channels, -1, geometry.kernel_height, geometry.kernel_width)
    lines = []
    for g in range(streams.count):
        first = streams.first_output(g)
        outputs = range(first, min(first + tiling.group_outputs, geometry.output_channels))
        lines.append(f"if (blockIdx.z == {g}) {{")
        for n in range(streams.chunks):
            lines.append(f"CHUNK({n});")
            for statement in taps(layer):
                for c, inputs in groupby(statement, key=lambda tap: tap.channel):
                    channel = n * tiling.chunk_channels + c
                    if channel >= geometry.channels:
                        continue
                    for tap in inputs:
                        _, offset = address(tap)
                        lines.append(f"{{ const float x = INPUT({n}, {offset});")
                        lines += [
                            f"MULTIPLY_ADD({p}, {k - first}, x, 0x{kernel_bits[k, channel, r, tap.kernel_column]:08X});"
                            for k in outputs
                            for p, r in tap.uses
                        ]
                        lines.append("}")
        lines += [
            store.call(f"0x{bias_bits[first + store.sum]:08X}") for store in stores if first + store.sum in outputs
        ]
        lines.append("return;\n}")
    return "\n".join(lines) + "\n"
