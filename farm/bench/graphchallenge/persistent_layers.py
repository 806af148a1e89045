"""Layers of listed columns in one kernel, which stays on the GPU while they are computed one after another.

A block has one K group of each layer and, in each of its parts, a tile of the columns, a column a thread. More columns
than threads are computed lot after lot, each through all layers. A block's group of a layer reads much of what that
block made in the layer before and still has in registers: it begins with those inputs, and only then waits for what
other blocks make. All blocks must run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from codegen.errors import TemplateError
from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.epilogue import Clip
from codegen.ir.layer_spec import Conv2d, LayerSpec
from codegen.kernels.placeholders import immediate
from farm.bench.graphchallenge.block_assignment import groups_of_blocks

KERNEL = "chained"
ARGUMENTS = {
    "input": "u64",
    "output": "u64",
    "images": "u32",
    "output_step": "u32",
    "count": "u64",
    "places": "u64",
    "marks": "u64",
    "spare": "u64",
    "done": "u64",
    "first": "u32",
    "layers": "u32",
}
"""Those of a layer of listed columns, then: a third set of tiles, a counter for each tile of columns, DONE_BYTES apart
and zero, the layer to begin with and how many are computed. An odd number of layers leaves its outputs in `output`, an
even one in `spare`; the other set is for what lies between. Only the last layer marks its columns.
"""
DONE_BYTES = 128
MOST_PARTS = 8
"""Of a block: each has two of its 16 barriers."""
WARP = 32

_REGISTERS = """\
.reg .b32 %block, %thread, %lane, %part, %tile, %done_barrier, %ready_barrier;
.reg .b32 %columns, %lot, %base, %column, %first, %layers, %left, %passed, %step, %seen, %zero, %any, %t, %u;
.reg .b64 %input, %places, %marks, %final, %between, %counter, %from, %into, %after, %a, %b;
.reg .pred %odd, %listed, %several, %tells, %telling, %polls, %p;
"""


@dataclass(frozen=True)
class Chain:
    """How outputs and columns are shared out."""

    group: int
    """Outputs of a block."""
    threads: int
    """Of a part of a block, whole warps."""
    parts: int
    """Of a block, each with a tile of columns."""
    beside: int
    """Blocks of a group."""

    @property
    def tiles(self) -> int:
        """Of the columns."""
        return self.parts * self.beside


def chained(spec: LayerSpec, layers: Sequence[Weights], again: int, chain: Chain, arch: str) -> bytes:
    """The PTX of layers of one shape; after the last of them comes number `again`.

    Raises TemplateError for layers that are no 1x1 convolutions of one row, of whole groups, with as many inputs as
    outputs and nothing but a Clip behind the bias, and for a block of too many parts.
    """
    if not isinstance(spec, Conv2d) or spec.kernel_height * spec.kernel_width * spec.height > 1:
        raise TemplateError("a chain is of 1x1 convolutions whose columns are rows of a batch")
    groups, rest = divmod(spec.output_channels, chain.group)
    if rest or spec.channels != spec.output_channels:
        raise TemplateError("a chain is of layers of whole groups, with as many inputs as outputs")
    if not 0 < chain.parts <= MOST_PARTS:
        raise TemplateError(f"a block of a chain has 1 to {MOST_PARTS} parts: {chain.parts} have no barriers")
    groups_of = groups_of_blocks(layers, again, groups, chain.group)
    text = [_head(spec, chain, arch)]
    text.append(branches("%block", "block", 0, groups, lambda block: f"$block_{block}"))
    for block in range(groups):
        own = [int(each[block]) for each in groups_of]
        streams = [_Stream(spec, each, chain, own[i], own[i - 1]) for i, each in enumerate(layers)]
        text.append(f"$block_{block}:\n{_entries(block, streams)}")
        for i, stream in enumerate(streams):
            following = i + 1 if i + 1 < len(layers) else again
            text.append(stream.computed(f"{block}_{i}", groups) + f"bra $begin_{block}_{following};\n")
    text.append(_end(groups, chain))
    return "".join(text).encode("ascii")


@dataclass(frozen=True, eq=False)
class _Stream:
    """One layer of a block: the outputs of a group, from inputs of which the group `before` is in registers."""

    spec: Conv2d
    weights: Weights
    chain: Chain
    group: int
    before: int

    @cached_property
    def _kernel(self) -> FloatArray:
        """[outputs of the group, inputs]"""
        return self.weights.kernel.reshape(self.spec.output_channels, -1)[self._first : self._first + self.chain.group]

    @property
    def _first(self) -> int:
        return self.group * self.chain.group

    @cached_property
    def _kept(self) -> list[int]:
        """Inputs that are in registers."""
        first = self.before * self.chain.group
        return [i for i in self._inputs if first <= i < first + self.chain.group]

    @cached_property
    def _inputs(self) -> list[int]:
        found: list[int] = np.flatnonzero(self._kernel.any(axis=0)).tolist()
        return found

    def _own(self, channel: int) -> str:
        """The register of an input that is kept."""
        return f"%own{channel - self.before * self.chain.group}"

    def _load(self, register: str, channel: int) -> str:
        return f"ld.global.cg.f32 {register},[%from+{4 * self.spec.width * channel}];\n"

    def _added(self, register: str, channel: int) -> str:
        return multiply_adds(self._kernel[:, channel], register)

    def loaded(self) -> str:
        """Puts what would be in registers there, for the first layer of all."""
        return "".join(self._load(self._own(channel), channel) for channel in self._kept)

    def computed(self, name: str, groups: int) -> str:
        """Computes the layer; %p then says whether it is the last."""
        bias = self.weights.bias[self._first : self._first + self.chain.group]
        others = [channel for channel in self._inputs if channel not in set(self._kept)]
        lines = [f"$begin_{name}:\n"]
        for j, value in enumerate(bias):
            # Zero, and for ptxas all different: it would compute the outputs of equal weights once.
            lines.append(f"and.b32 %t,%zero,{j + 1};\nxor.b32 %t,%t,{_bits(value)};\nmov.b32 %sum{j},%t;\n")
        lines += [self._added(self._own(channel), channel) for channel in self._kept]
        lines.append(_wait(name, self.chain))
        lines += [self._load(f"%x{i}", channel) for i, channel in enumerate(others)]
        lines += [self._added(f"%x{i}", channel) for i, channel in enumerate(others)]
        for j in range(self.chain.group):
            place = 4 * self.spec.width * (self._first + j)
            lines.append(clipped(self.spec, f"%sum{j}"))
            lines.append(f"st.global.f32 [%into+{place}],%sum{j};\nmov.f32 %own{j},%sum{j};\n")
        lines.append(_tell(name, self.chain, groups))
        lines.append("@%p bra $last;\nmov.u64 %from,%into;\nmov.u64 %into,%after;\nmov.u64 %after,%from;\n")
        return "".join(lines)


def _entries(block: int, streams: Sequence[_Stream]) -> str:
    """Into a block's layer number %first, from what is in memory."""
    chosen = branches("%first", f"first_{block}", 0, len(streams), lambda i: f"$enter_{block}_{i}")
    return chosen + "".join(
        f"$enter_{block}_{i}:\n{stream.loaded()}bra $begin_{block}_{i};\n" for i, stream in enumerate(streams)
    )


def _wait(name: str, chain: Chain) -> str:
    """Until all groups have done the layer before for this tile."""
    return (
        f"setp.eq.u32 %p,%passed,0;\n@%p bra $go_{name};\n@!%polls bra $ready_{name};\n"
        f"$poll_{name}:\nld.acquire.gpu.global.u32 %seen,[%counter];\nsetp.lt.u32 %p,%seen,%passed;\n"
        f"@%p bra $poll_{name};\n$ready_{name}:\n{_barrier('sync', 'ready', chain)}$go_{name}:\n"
    )


def _tell(name: str, chain: Chain, groups: int) -> str:
    """That this group has done the layer, unless it is the only one; the warps that do not tell go on at once."""
    return (
        f"@!%several bra $told_{name};\n@%telling bra $tell_{name};\n{_barrier('arrive', 'done', chain)}"
        f"bra $told_{name};\n$tell_{name}:\n{_barrier('sync', 'done', chain)}@!%tells bra $told_{name};\n"
        "fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%counter],1;\n"
        f"$told_{name}:\n@%several add.u32 %passed,%passed,{groups};\nsub.u32 %left,%left,1;\nsetp.eq.u32 %p,%left,0;\n"
    )


def _barrier(what: str, which: str, chain: Chain) -> str:
    """Of a part: two in turn, since who has arrived at one may be at the next before the others are."""
    return "bar.sync 0;\n" if chain.parts == 1 else f"barrier.{what} %{which}_barrier,{chain.threads};\n"


def multiply_adds(weights: FloatArray, register: str) -> str:
    """Of an input in a register, to the sum of each output that has a weight for it."""
    return "".join(
        f"fma.rn.f32 %sum{j},{register},{float_text(weights[j])},%sum{j};\n" for j in np.flatnonzero(weights).tolist()
    )


def clipped(spec: Conv2d, register: str) -> str:
    """What ends a layer. Raises TemplateError for a step that is no Clip."""
    lines = []
    for step in spec.epilogue:
        if not isinstance(step, Clip):
            raise TemplateError("a chain's layers end with nothing but a Clip")
        bounds = [("max", step.low), ("min", step.high)]
        lines += [f"{name}.NaN.f32 {register},{register},{float_text(to)};\n" for name, to in bounds if to is not None]
    return "".join(lines)


def _head(spec: Conv2d, chain: Chain, arch: str) -> str:
    """From the file's first line to where a lot of columns begins: their addresses, and how many layers are left."""
    parameters = ",\n".join(f".param .{kind} {KERNEL}_{name}" for name, kind in ARGUMENTS.items())
    polling = WARP if chain.threads > WARP else 0  # not the warp that tells, which waits for its stores
    return f"""\
.version 8.0
.target {arch}
.address_size 64
.visible .entry {KERNEL}(
{parameters}
)
.maxntid {chain.threads * chain.parts}, 1, 1
.minnctapersm 1
{{
{_REGISTERS}.reg .f32 %sum<{chain.group}>, %own<{chain.group}>, %x<{spec.channels}>;
{_parameter("%a", "count")}ld.global.u32 %columns,[%a];
{_parameter("%t", "images")}shr.s32 %zero,%t,31;
mul.lo.u32 %t,%t,{spec.width};
min.s32 %columns,%columns,%t;
mov.u32 %t,%tid.x;
div.u32 %part,%t,{chain.threads};
rem.u32 %thread,%t,{chain.threads};
and.b32 %lane,%thread,{WARP - 1};
setp.lt.u32 %telling,%thread,{WARP};
setp.eq.u32 %tells,%thread,0;
setp.eq.u32 %polls,%thread,{polling};
mov.u32 %done_barrier,%part;
add.u32 %ready_barrier,%part,{chain.parts};
mov.u32 %tile,%ctaid.x;
mad.lo.u32 %tile,%part,{chain.beside},%tile;
{_parameter("%counter", "done")}mul.wide.u32 %a,%tile,{DONE_BYTES};
add.s64 %counter,%counter,%a;
shr.u32 %t,%thread,5;
mad.lo.u32 %base,%t,{chain.tiles},%tile;
shl.b32 %base,%base,5;
mov.u32 %block,%ctaid.z;
{_parameter("%input", "input")}{_parameter("%places", "places")}{_parameter("%marks", "marks")}\
{_parameter("%first", "first")}{_parameter("%layers", "layers")}{_parameter("%a", "output")}{_parameter("%b", "spare")}\
setp.ne.u64 %listed,%places,0;
setp.gt.u32 %several,%layers,1;
and.b32 %t,%layers,1;
setp.ne.u32 %odd,%t,0;
selp.b64 %final,%a,%b,%odd;
selp.b64 %between,%b,%a,%odd;
mov.u32 %passed,0;
mov.u32 %lot,0;
$lot:
setp.ge.s32 %p,%lot,%columns;
@%p exit;
mov.u32 %left,%layers;
setp.ge.s32 %p,%base,%columns;
@%p bra $idle;
add.u32 %column,%base,%lane;
sub.u32 %t,%columns,1;
min.s32 %column,%column,%t;
mov.u32 %t,%column;
mul.wide.u32 %a,%column,4;
add.s64 %a,%a,%places;
@%listed ld.global.u32 %t,[%a];
{_address("%from", "%input", "%t", spec)}{_address("%a", "%final", "%column", spec)}\
sub.u32 %t,%column,%lot;
{_address("%b", "%between", "%t", spec)}selp.b64 %into,%a,%b,%odd;
selp.b64 %after,%b,%a,%odd;
"""


def _end(groups: int, chain: Chain) -> str:
    """What follows a lot's last layer, and the layers of a warp that has no columns in it."""
    step = chain.tiles * chain.threads
    return (
        "$last:\nmov.b32 %any,0;\n"
        + "".join(f"mov.b32 %t,%own{j};\nor.b32 %any,%any,%t;\n" for j in range(chain.group))
        # -0.0 is no output either.
        + "shl.b32 %any,%any,1;\nsetp.ne.b32 %p,%any,0;\ncvt.u64.u32 %a,%column;\nadd.s64 %a,%a,%marks;\n"
        + "mov.u32 %t,1;\n@%p st.global.u8 [%a],%t;\n"
        + f"$next:\nadd.u32 %lot,%lot,{step};\nadd.u32 %base,%base,{step};\nbra $lot;\n"
        + f"$idle:\n{_wait('idle', chain)}{_tell('idle', chain, groups)}@!%p bra $idle;\nbra $next;\n}}\n"
    )


def _parameter(register: str, name: str) -> str:
    return f"ld.param.{ARGUMENTS[name]} {register},[{KERNEL}_{name}];\n"


def _address(register: str, tiles: str, column: str, spec: Conv2d) -> str:
    """Of a column's first element."""
    return (
        f"div.u32 %u,{column},{spec.width};\nmul.wide.u32 {register},%u,{4 * spec.channels * spec.width};\n"
        f"add.s64 {register},{register},{tiles};\nrem.u32 %u,{column},{spec.width};\n"
        f"mad.wide.u32 {register},%u,4,{register};\n"
    )


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def float_text(value: float) -> str:
    """A float32 as an immediate."""
    return immediate(_bits(value))


def branches(register: str, name: str, low: int, high: int, label: Callable[[int], str]) -> str:
    """To the label of the number in a register, in log2(high - low) steps."""
    if high - low == 1:
        return f"bra {label(low)};\n"
    middle = (low + high) // 2
    return (
        f"setp.ge.u32 %p,{register},{middle};\n@%p bra $from_{name}_{middle};\n"
        f"{branches(register, name, low, middle, label)}$from_{name}_{middle}:\n"
        f"{branches(register, name, middle, high, label)}"
    )
