"""The first layers of a network in one kernel, on one batch of columns after another, so that activations stay in L2.

A warp has one K group of each layer and, in each of its turns, 32 columns; it computes one layer for all turns before
the next layer. There are no barriers between layers: the sign bit of an activation tags the batch that wrote it
(outputs are never negative), and a warp that finds another batch's tag loads again. A counter per 32 columns of a turn
tells how many groups have read all of a batch; only then may the next batch overwrite it. All blocks must be resident
at once. Loads before the counter's increment and stores after its poll are relaxed: their order relies on in-order
issue within a warp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from codegen.errors import TemplateError
from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.epilogue import Clip
from codegen.ir.layer_spec import Conv2d, LayerSpec
from farm.bench.graphchallenge.block_assignment import groups_of_blocks
from farm.bench.graphchallenge.persistent_layers import branches, clipped, float_text, multiply_adds

KERNEL = "lots"
COUNTER_BYTES = 128
"""Distance between two counters."""
WARP = 32
FIRST_SIGN = 0x80000000
"""Tag of the first batch; memory starts with the other tag, which an even number of batches leaves behind."""


@dataclass(frozen=True)
class PipelinedLayout:
    """Distribution of output channels and columns over blocks and threads."""

    group: int
    """Output channels of a block."""
    threads: int
    """Threads of a block, whole warps."""
    group_blocks: int
    """Blocks per K group."""
    turns: int
    """Turns of a warp, each on other columns."""

    @property
    def turn_columns(self) -> int:
        return self.threads * self.group_blocks

    @property
    def columns(self) -> int:
        """Columns of a batch."""
        return self.turns * self.turn_columns

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, which holds its outputs of all turns."""
        return 4 * self.turns * self.threads * self.group

    @property
    def counters(self) -> int:
        return self.columns // WARP

    def batch_count(self, columns: int) -> int:
        """Number of batches that cover `columns`; always even."""
        return 2 * max(1, -(-columns // (2 * self.columns)))


def pipelined_kernel(spec: LayerSpec, layers: Sequence[Weights], layout: PipelinedLayout, arch: str) -> bytes:
    """PTX of at least two layers of one shape.

    Arguments: input and output in whole batches, activations between layers (one batch per layer but the last,
    initially zero), marks, counters (initially zero), and as u32 the number of columns that may be marked, the turns
    (a constant would make ptxas unroll them) and the number of batches. Raises TemplateError unless the layers are 1x1
    convolutions of one row, of whole groups, with as many inputs as outputs and Clips to non-negative values as their
    epilogue, and unless a turn covers whole tiles in memory.
    """
    if not isinstance(spec, Conv2d) or spec.kernel_height * spec.kernel_width * spec.height > 1:
        raise TemplateError("pipelined batches need 1x1 convolutions of one row")
    groups, rest = divmod(spec.output_channels, layout.group)
    if rest or spec.channels != spec.output_channels or len(layers) < 2:
        raise TemplateError("pipelined batches need two or more layers of whole groups, with as many inputs as outputs")
    if spec.width & (spec.width - 1) or layout.turn_columns % spec.width:
        raise TemplateError(
            f"a turn of {layout.turn_columns} columns does not cover whole tiles of {spec.width} columns"
        )
    if not _never_negative(spec):
        raise TemplateError("pipelined layers must end with a Clip from 0: the sign bit tags the batch")
    groups_of = groups_of_blocks(layers, None, groups, layout.group)
    text = [_head(spec, layout, arch), branches("%block", "block", 0, groups, lambda block: f"$begin_{block}_0")]
    for block in range(groups):
        own = [-1, *(int(each[block]) for each in groups_of)]
        for i, (before, group) in enumerate(pairwise(own)):
            layer = _PipelinedLayer(spec, layers[i], layout, group, before, i, len(layers))
            text.append(layer.code(f"{block}_{i}"))
        text.append(_next_batch(block, groups, layout))
    return "".join([*text, "}\n"]).encode("ascii")


def _never_negative(spec: Conv2d) -> bool:
    """Whether the epilogue is of Clips and leaves no set sign bit, not even of -0."""
    low = -np.inf
    for step in spec.epilogue:
        if not isinstance(step, Clip):
            return False
        low = low if step.low is None else max(low, step.low, key=_total_order)
        low = low if step.high is None else min(low, step.high, key=_total_order)
    return not bool(np.signbit(low))


def _total_order(value: float) -> tuple[float, bool]:
    """Order in which -0 is below +0, as in PTX's min and max."""
    return value, not bool(np.signbit(value))


@dataclass(frozen=True, eq=False)
class _PipelinedLayer:
    """Code of one layer in a block: outputs of one group, with group `before` of the inputs in shared memory."""

    spec: Conv2d
    weights: Weights
    layout: PipelinedLayout
    group: int
    before: int
    number: int
    count: int

    @property
    def _last(self) -> bool:
        return self.number + 1 == self.count

    @property
    def _first(self) -> int:
        return self.group * self.layout.group

    @cached_property
    def _kernel(self) -> FloatArray:
        """[outputs of the group, inputs]"""
        return self.weights.kernel.reshape(self.spec.output_channels, -1)[self._first : self._first + self.layout.group]

    @cached_property
    def _inputs(self) -> list[int]:
        found: list[int] = np.flatnonzero(self._kernel.any(axis=0)).tolist()
        return found

    @cached_property
    def _kept(self) -> list[int]:
        """Inputs held in shared memory."""
        first = self.before * self.layout.group
        return [i for i in self._inputs if self.number and first <= i < first + self.layout.group]

    @cached_property
    def _others(self) -> list[int]:
        kept = set(self._kept)
        return [i for i in self._inputs if i not in kept]

    def _place(self, channel: int) -> int:
        return 4 * self.spec.width * channel

    def _own(self, output: int) -> int:
        """Offset of an output of the block in a thread's shared memory."""
        return 4 * self.layout.threads * output

    def _added(self, register: str, channel: int) -> str:
        return multiply_adds(self._kernel[:, channel], register)

    def code(self, name: str) -> str:
        """Code that computes the layer for all turns."""
        first = self.before * self.layout.group
        lines = [self._begun(name), *self._loaded(), *self._biases()]
        lines += [f"ld.shared.f32 %own{c - first},[%held+{self._own(c - first)}];\n" for c in self._kept]
        lines += [self._added(f"%own{c - first}", c) for c in self._kept]
        if self.number and self._others:
            lines.append(f"{self._checked()}@!%p bra $good_{name};\n$retry_{name}:\n")
            lines += [*self._loaded(), f"{self._checked()}@%p bra $retry_{name};\n$good_{name}:\n"]
            lines += [f"mov.b32 %x{m},%y{m};\n" for m in range(len(self._others))]
        lines += [self._added(f"%x{m}", c) for m, c in enumerate(self._others)]
        if not self.number:
            lines.append(_until_read(name))
        for j in range(self.layout.group):
            lines += [clipped(self.spec, f"%sum{j}"), self._stored(j)]
        lines.append(_marked(self.layout.group) if self._last else "")
        return "".join([*lines, _next_turn(name, self.spec, self.layout)])

    def _begun(self, name: str) -> str:
        text = f"$begin_{name}:\nmov.u32 %left,%turns; mov.u64 %ahead,0; mov.u64 %read,%counter; "
        text += "mov.u32 %held,%held_first; mov.u32 %at,%column;\n"
        if self.number:
            text += f"mad.lo.s64 %set,%lot_bytes,{self.number - 1},%between;\n"
        text += f"$turn_{name}:\nadd.s64 %from,{'%set' if self.number else '%input'},%ahead;\n"
        text += f"add.s64 %into,{'%output' if self._last else '%set' if self.number else '%between'},%ahead;\n"
        return text + ("add.s64 %into,%into,%lot_bytes;\n" if self.number and not self._last else "")

    def _loaded(self) -> list[str]:
        if self.number:
            load = "ld.relaxed.gpu.global.u32 %y{},[%from+{}];\n"
        else:
            load = "ld.global.cg.L2::cache_hint.f32 %x{},[%from+{}],%once;\n"
        return [load.format(m, self._place(c)) for m, c in enumerate(self._others)]

    def _biases(self) -> list[str]:
        lines, before = [], None
        for j, value in enumerate(self.weights.bias[self._first : self._first + self.layout.group]):
            lines += [] if value == before else [f"mov.f32 %bias,{float_text(value)};\n"]
            # Zero times distinct numbers: ptxas would otherwise merge outputs of equal weights.
            lines.append(f"fma.rn.f32 %sum{j},%zero,{float_text(j + 1)},%bias;\n")
            before = value
        return lines

    def _checked(self) -> str:
        """Removes this batch's tag from the loaded values; %p is set if any carried the other tag."""
        every = [f"%y{m}" for m in range(len(self._others))]
        text = "mov.b32 %bad,0;\n" + "".join(f"xor.b32 {y},{y},%sign;\n" for y in every)
        for a, b in zip(every[::2], every[1::2], strict=False):
            text += f"or.b32 %t,{a},{b};\nor.b32 %bad,%bad,%t;\n"
        return text + (f"or.b32 %bad,%bad,{every[-1]};\n" if len(every) % 2 else "") + "setp.lt.s32 %p,%bad,0;\n"

    def _stored(self, j: int) -> str:
        place = self._place(self._first + j)
        if self._last:
            return f"st.global.L2::cache_hint.f32 [%into+{place}],%sum{j},%once;\n"
        return (
            f"st.shared.f32 [%held+{self._own(j)}],%sum{j};\nmov.b32 %t,%sum{j};\nor.b32 %t,%t,%sign;\n"
            f"st.relaxed.gpu.global.u32 [%into+{place}],%t;\n"
        )


def _until_read(name: str) -> str:
    """Waits until all groups have read the previous batch's activations."""
    return (
        f"setp.eq.u32 %p,%lot,0;\n@%p bra $go_{name};\n$poll_{name}:\nld.relaxed.gpu.global.u32 %seen,[%read];\n"
        f"setp.lt.u32 %p,%seen,%readers;\n@%p bra $poll_{name};\n$go_{name}:\n"
    )


def _marked(group: int) -> str:
    """Marks columns with a non-zero output and counts this group as a reader of the batch."""
    return (
        "mov.b32 %any,0;\n"
        + "".join(f"mov.b32 %t,%sum{j};\nor.b32 %any,%any,%t;\n" for j in range(group))
        # -0.0 counts as zero.
        + "shl.b32 %any,%any,1;\nsetp.ne.b32 %p,%any,0;\nsetp.lt.and.u32 %p,%at,%columns,%p;\ncvt.u64.u32 %a,%at;\n"
        "add.s64 %a,%a,%marks;\nmov.u32 %t,1;\n@%p st.global.u8 [%a],%t;\n"
        "bar.warp.sync -1;\n@%first red.relaxed.gpu.global.add.u32 [%read],1;\n"
    )


def _next_turn(name: str, spec: Conv2d, layout: PipelinedLayout) -> str:
    return (
        f"add.s64 %ahead,%ahead,{4 * spec.channels * layout.turn_columns}; "
        f"add.s64 %read,%read,{COUNTER_BYTES * layout.turn_columns // WARP}; "
        f"add.u32 %held,%held,{4 * layout.group * layout.threads}; add.u32 %at,%at,{layout.turn_columns};\n"
        f"sub.u32 %left,%left,1; setp.ne.u32 %p,%left,0;\n@%p bra $turn_{name};\n"
    )


def _next_batch(block: int, groups: int, layout: PipelinedLayout) -> str:
    return (
        f"add.u32 %lot,%lot,1; setp.ge.u32 %p,%lot,%lots;\n@%p exit;\nadd.u32 %readers,%readers,{groups}; "
        f"xor.b32 %sign,%sign,0x80000000;\nmad.lo.u32 %column,%turns,{layout.turn_columns},%column; "
        f"add.s64 %output,%output,%lot_bytes; add.s64 %input,%input,%lot_bytes;\nbra $begin_{block}_0;\n"
    )


def _head(spec: Conv2d, layout: PipelinedLayout, arch: str) -> str:
    image = 4 * spec.channels * spec.width
    return f"""\
.version 9.0
.target {arch}
.address_size 64
.extern .shared .align 16 .b8 held[];
.visible .entry {KERNEL}(
.param .u64 input, .param .u64 output, .param .u64 between, .param .u64 marks, .param .u64 counters,
.param .u32 columns, .param .u32 turns, .param .u32 lots
)
.maxntid {layout.threads}, 1, 1
.minnctapersm 1
{{
.reg .b32 %block, %lane, %warp, %tile, %columns, %column, %turns, %left, %held_first, %held, %seen, %nothing, %any;
.reg .b32 %t, %u, %at, %lot, %lots, %sign, %bad, %readers;
.reg .b64 %input, %between, %output, %marks, %counter, %read, %ahead, %from, %into, %a, %lot_bytes, %set, %once;
.reg .pred %p, %first;
.reg .f32 %sum<{layout.group}>, %own<{layout.group}>, %x<{spec.channels}>, %bias, %zero;
.reg .b32 %y<{spec.channels}>;
ld.param.u64 %input,[input]; ld.param.u64 %output,[output]; ld.param.u64 %between,[between];
ld.param.u64 %marks,[marks]; ld.param.u64 %counter,[counters]; ld.param.u32 %columns,[columns];
ld.param.u32 %turns,[turns]; ld.param.u32 %lots,[lots];
shr.s32 %nothing,%columns,31; mov.b32 %zero,%nothing;
mov.u32 %t,%tid.x;
shl.b32 %u,%t,2; mov.u32 %held_first,held; add.u32 %held_first,%held_first,%u;
shr.u32 %warp,%t,5; and.b32 %lane,%t,31; setp.eq.u32 %first,%lane,0;
mov.u32 %tile,%ctaid.x; mad.lo.u32 %tile,%warp,{layout.group_blocks},%tile;
mul.wide.u32 %a,%tile,{COUNTER_BYTES}; add.s64 %counter,%counter,%a;
shl.b32 %column,%tile,5; add.u32 %column,%column,%lane;
shr.u32 %t,%column,{spec.width.bit_length() - 1}; mul.wide.u32 %a,%t,{image}; and.b32 %t,%column,{spec.width - 1};
mad.wide.u32 %a,%t,4,%a;
add.s64 %input,%input,%a; add.s64 %output,%output,%a; add.s64 %between,%between,%a;
mul.wide.u32 %lot_bytes,%turns,{4 * spec.channels * layout.turn_columns};
mov.u32 %lot,0; mov.u32 %readers,0; mov.u32 %sign,{FIRST_SIGN:#x};
mov.u32 %block,%ctaid.z;
createpolicy.fractional.L2::evict_first.b64 %once,1.0;
"""
