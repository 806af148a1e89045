"""The kernels of the farm as a user would write them: one .cu with the weights in it, zero weights left out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np

from codegen.ir.checkpoint import FloatArray, Layer
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import source_path, tiled
from codegen.kernels.geometry import phase_weights
from codegen.kernels.lowering import AnyTiled
from codegen.kernels.placeholders import immediate
from codegen.kernels.weight_stream import taps

Form = Literal["fmaf", "asm"]
FORMS: tuple[Form, ...] = ("fmaf", "asm")

_INPUT = re.compile(r'"f"\((.*?\])\)')
_STORE = re.compile(r'^STORE\((\d+), (\d+), "(0f\w+)", (.*)$')
_FIRST_GROUP = re.compile(r'asm volatile\("mov\.u32 %0,0; // farm\.first_group" : "=r"\(group\)\);')

HEAD = """
float sum[ROWS][SUMS];
#pragma unroll
for (int p = 0; p < ROWS; ++p)
#pragma unroll
    for (int j = 0; j < SUMS; ++j) sum[p][j] = 0.f;
#pragma unroll
for (int s = 0; s < STAGES - 1; ++s) {
    copies.fetch(s * CHUNK_CHANNELS, s * (STAGE * 4));
    copies.commit(s * CHUNK_CHANNELS, s * (STAGE * 4), 0);
}
#define NEXT(n) (n + STAGES - 1) * CHUNK_CHANNELS, (n + STAGES - 1) % STAGES * (STAGE * 4)
#define STORE(p, j, bias, ok, image, offset) \\
    sum[p][j] += bias;                       \\
    FINISH(sum[p][j], j, ok, image, offset)
#if EDGES
#define SET_EDGES                    \\
    const float* edge[EDGES];        \\
    _Pragma("unroll") for (int e = 0; e < EDGES; ++e) edge[e] = outside[e] ? zeros : in;
#else
#define SET_EDGES
#endif
"""


@dataclass(frozen=True)
class Term:
    """A multiply-add that is left."""

    source: str
    """C expression of the input."""
    row: int
    sum: int
    weight: int
    """Bits of a float32."""


def write_source(folder: Path, layer: Layer, tiling: Tiling, part: Part, form: Form) -> Path:
    """Writes the .cu of one part of a float32 layer without groups, and what it includes.

    All but the instruction stream is the farm's own operator: copies, tile, stores.
    """
    folder.mkdir()
    source = source_path(tiling)
    headers = tiled(layer.spec, tiling).sources()
    for name in ("parameters.h", "copies.h"):
        (folder / name).write_text(headers[name])
    shutil.copy(source.with_name("memory.cuh"), folder)
    text, count = _FIRST_GROUP.subn(f"group = {part.first};", source.read_text())
    assert count == 1
    (folder / source.name).write_text(text)
    stream = Stream.of(layer, tiling, headers)
    lines = [HEAD]
    for group in range(part.first, part.end):
        lines.append(f"if (group == {group}) {{")
        for chunk in range(stream.streams.chunks):
            lines.append(f"wait_for_copies();\ncopies.fetch(NEXT({chunk}));\n{{")
            lines.append(f"const float* in = window + {chunk % tiling.stages} * STAGE;\nSET_EDGES")
            for terms in stream.statements(group, chunk):
                lines += _fmaf(terms) if form == "fmaf" else _asm(terms)
            lines.append(f"}}\ncopies.commit(NEXT({chunk}), 0);")
        lines += [*stream.stores(group), "return;\n}"]
    (folder / "loop.cuh").write_text("\n".join(lines) + "\n")
    return folder / source.name


def _fmaf(terms: Sequence[Term]) -> Iterator[str]:
    for source, of_input in groupby(terms, key=lambda term: term.source):
        yield f"{{ const float x = {source};"
        for term in of_input:
            total = f"sum[{term.row}][{term.sum}]"
            yield f"{total} = fmaf(x, {_literal(term.weight)}, {total});"
        yield "}"


def _asm(terms: Sequence[Term]) -> Iterator[str]:
    """One statement for all terms together, as the template has it: that is what nvcc compiles fastest."""
    if not terms:
        return
    sums = {each: f"%{i}" for i, each in enumerate(dict.fromkeys((term.row, term.sum) for term in terms))}
    inputs = {each: f"%{len(sums) + i}" for i, each in enumerate(dict.fromkeys(term.source for term in terms))}
    for term in terms:
        total = sums[term.row, term.sum]
        line = f"fma.rn.f32 {total},{inputs[term.source]},{immediate(term.weight)},{total};"
        yield ("asm(" if term is terms[0] else "") + f'"{line}\\n"'
    outputs = ", ".join(f'"+f"(sum[{row}][{column}])' for row, column in sums)
    yield f": {outputs} : " + ", ".join(f'"f"({source})' for source in inputs) + ");"


@dataclass(frozen=True, eq=False)
class Stream:
    """The instruction streams of a layer, zero weights left out."""

    divided: AnyTiled
    kernel: FloatArray
    """[kernels, channels, rows, columns]."""
    bias: FloatArray
    inputs: tuple[str, ...]
    """C expressions, one for each input of a chunk, as the template reads them."""
    epilogue: tuple[str, ...]

    @staticmethod
    def of(layer: Layer, tiling: Tiling, headers: dict[str, str]) -> Stream:
        divided = tiled(layer.spec, tiling)
        geometry = divided.geometry
        assert (geometry.groups, geometry.phase_count, layer.spec.data_type) == (1, 1, "float32")
        return Stream(
            divided,
            phase_weights(layer.spec, layer.weights)[:, 0].astype(np.float32),
            layer.weights.bias.astype(np.float32),
            tuple(_INPUT.findall(headers["body.h"])),
            tuple(headers["epilogue.h"].splitlines()),
        )

    def statements(self, group: int, chunk: int) -> Iterator[list[Term]]:
        """The multiply-adds of a chunk, divided as the template's statements are."""
        first = self.divided.streams.first_output(group)
        kernels = range(first, min(first + self.divided.tiling.group_outputs, self.divided.geometry.output_channels))
        inputs = iter(self.inputs)
        for statement in taps(self.divided):
            terms = []
            for tap in statement:
                source, channel = next(inputs), chunk * self.divided.tiling.chunk_channels + tap.channel
                if channel >= self.divided.geometry.channels:
                    continue
                weights = self.kernel[:, channel, :, tap.kernel_column]
                terms += [
                    Term(source, p, k - first, int(weights[k, r].view(np.uint32)))
                    for k in kernels
                    for p, r in tap.uses
                    if weights[k, r]
                ]
            yield terms
        assert next(inputs, None) is None

    def stores(self, group: int) -> Iterator[str]:
        """The lines of the kernels that exist, with their biases."""
        first = self.divided.streams.first_output(group)
        for line in self.epilogue:
            match = _STORE.match(line)
            assert match is not None
            row, column, _, rest = match.groups()
            if first + int(column) < self.divided.geometry.output_channels:
                bias = _literal(int(self.bias[first + int(column)].view(np.uint32)))
                yield f"STORE({row}, {column}, {bias}, {rest}"


def _literal(bits: int) -> str:
    return f"__uint_as_float(0x{bits:08X})"
