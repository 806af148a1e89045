"""Consecutive layers of listed columns in one persistent kernel.

A block has one K group of each layer and, in each of its parts, a tile of columns, one column per thread. More columns
than threads are processed in batches, each through all layers. A block's group reads many inputs that the block itself
computed in the layer before and still holds in registers: it starts with those, then waits for the other blocks. All
blocks must be resident at once.
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
"""Arguments of a layer of listed columns, followed by a third set of tiles (`spare`), a zeroed counter per tile of
columns, DONE_BYTES apart, the number of the first layer and the count of layers. An odd count leaves the outputs in
`output`, an even one in `spare`; the other set holds activations in between. Only the last layer marks columns.
"""
DONE_BYTES = 128
MAX_PARTS = 8
"""Parts of a block: each uses two of the block's 16 barriers."""
WARP = 32

_REGISTERS = """\
.reg .b32 %block, %thread, %lane, %part, %tile, %done_barrier, %ready_barrier;
.reg .b32 %columns, %lot, %base, %column, %first, %layers, %left, %passed, %step, %seen, %zero, %any, %t, %u;
.reg .b64 %input, %places, %marks, %final, %between, %counter, %from, %into, %after, %a, %b;
.reg .pred %odd, %listed, %several, %tells, %telling, %polls, %p;
"""


@dataclass(frozen=True)
class PersistentLayout:
    """Distribution of output channels and columns over blocks and threads."""

    group: int
    """Output channels of a block."""
    threads: int
    """Threads of a part of a block, whole warps."""
    parts: int
    """Parts of a block, each with a tile of columns."""
    group_blocks: int
    """Blocks per K group."""

    @property
    def tiles(self) -> int:
        """Tiles of columns in flight."""
        return self.parts * self.group_blocks


def persistent_kernel(
    spec: LayerSpec, layers: Sequence[Weights], again: int, layout: PersistentLayout, arch: str
) -> bytes:
    """PTX of layers of one shape; the layer after the last is number `again`.

    Raises TemplateError unless the layers are 1x1 convolutions of one row, of whole groups, with as many inputs as
    outputs and only Clips as their epilogue, and for a block of too many parts.
    """
    if not isinstance(spec, Conv2d) or spec.kernel_height * spec.kernel_width * spec.height > 1:
        raise TemplateError("persistent layers need 1x1 convolutions of one row")
    groups, rest = divmod(spec.output_channels, layout.group)
    if rest or spec.channels != spec.output_channels:
        raise TemplateError("persistent layers need whole groups, and as many inputs as outputs")
    if not 0 < layout.parts <= MAX_PARTS:
        raise TemplateError(f"a block has 1 to {MAX_PARTS} parts: there are no barriers for {layout.parts}")
    groups_of = groups_of_blocks(layers, again, groups, layout.group)
    text = [_head(spec, layout, arch)]
    text.append(branches("%block", "block", 0, groups, lambda block: f"$block_{block}"))
    for block in range(groups):
        own = [int(each[block]) for each in groups_of]
        codes = [_PersistentLayer(spec, each, layout, own[i], own[i - 1]) for i, each in enumerate(layers)]
        text.append(f"$block_{block}:\n{_entries(block, codes)}")
        for i, code in enumerate(codes):
            following = i + 1 if i + 1 < len(layers) else again
            text.append(code.computed(f"{block}_{i}", groups) + f"bra $begin_{block}_{following};\n")
    text.append(_end(groups, layout))
    return "".join(text).encode("ascii")


@dataclass(frozen=True, eq=False)
class _PersistentLayer:
    """Code of one layer in a block: outputs of one group, with group `before` of the inputs in registers."""

    spec: Conv2d
    weights: Weights
    layout: PersistentLayout
    group: int
    before: int

    @cached_property
    def _kernel(self) -> FloatArray:
        """[outputs of the group, inputs]"""
        return self.weights.kernel.reshape(self.spec.output_channels, -1)[self._first : self._first + self.layout.group]

    @property
    def _first(self) -> int:
        return self.group * self.layout.group

    @cached_property
    def _kept(self) -> list[int]:
        """Inputs held in registers."""
        first = self.before * self.layout.group
        return [i for i in self._inputs if first <= i < first + self.layout.group]

    @cached_property
    def _inputs(self) -> list[int]:
        found: list[int] = np.flatnonzero(self._kernel.any(axis=0)).tolist()
        return found

    def _own(self, channel: int) -> str:
        """Register of a held input."""
        return f"%own{channel - self.before * self.layout.group}"

    def _load(self, register: str, channel: int) -> str:
        return f"ld.global.cg.f32 {register},[%from+{4 * self.spec.width * channel}];\n"

    def _added(self, register: str, channel: int) -> str:
        return multiply_adds(self._kernel[:, channel], register)

    def loaded(self) -> str:
        """Loads the inputs held in registers, for the first layer of a launch."""
        return "".join(self._load(self._own(channel), channel) for channel in self._kept)

    def computed(self, name: str, groups: int) -> str:
        """Code that computes the layer and sets %p if it is the last."""
        bias = self.weights.bias[self._first : self._first + self.layout.group]
        others = [channel for channel in self._inputs if channel not in set(self._kept)]
        lines = [f"$begin_{name}:\n"]
        for j, value in enumerate(bias):
            # Zeros that differ for ptxas, which would otherwise merge outputs of equal weights.
            lines.append(f"and.b32 %t,%zero,{j + 1};\nxor.b32 %t,%t,{_bits(value)};\nmov.b32 %sum{j},%t;\n")
        lines += [self._added(self._own(channel), channel) for channel in self._kept]
        lines.append(_wait(name, self.layout))
        lines += [self._load(f"%x{i}", channel) for i, channel in enumerate(others)]
        lines += [self._added(f"%x{i}", channel) for i, channel in enumerate(others)]
        for j in range(self.layout.group):
            place = 4 * self.spec.width * (self._first + j)
            lines.append(clipped(self.spec, f"%sum{j}"))
            lines.append(f"st.global.f32 [%into+{place}],%sum{j};\nmov.f32 %own{j},%sum{j};\n")
        lines.append(_tell(name, self.layout, groups))
        lines.append("@%p bra $last;\nmov.u64 %from,%into;\nmov.u64 %into,%after;\nmov.u64 %after,%from;\n")
        return "".join(lines)


def _entries(block: int, layers: Sequence[_PersistentLayer]) -> str:
    """Branches to a block's layer number %first after loading its held inputs."""
    chosen = branches("%first", f"first_{block}", 0, len(layers), lambda i: f"$enter_{block}_{i}")
    return chosen + "".join(
        f"$enter_{block}_{i}:\n{layer.loaded()}bra $begin_{block}_{i};\n" for i, layer in enumerate(layers)
    )


def _wait(name: str, layout: PersistentLayout) -> str:
    """Waits until all groups have finished the previous layer of this tile."""
    return (
        f"setp.eq.u32 %p,%passed,0;\n@%p bra $go_{name};\n@!%polls bra $ready_{name};\n"
        f"$poll_{name}:\nld.acquire.gpu.global.u32 %seen,[%counter];\nsetp.lt.u32 %p,%seen,%passed;\n"
        f"@%p bra $poll_{name};\n$ready_{name}:\n{_barrier('sync', 'ready', layout)}$go_{name}:\n"
    )


def _tell(name: str, layout: PersistentLayout, groups: int) -> str:
    """Counts this group as finished with the layer, if there are more layers; only one warp per part waits for it."""
    return (
        f"@!%several bra $told_{name};\n@%telling bra $tell_{name};\n{_barrier('arrive', 'done', layout)}"
        f"bra $told_{name};\n$tell_{name}:\n{_barrier('sync', 'done', layout)}@!%tells bra $told_{name};\n"
        "fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%counter],1;\n"
        f"$told_{name}:\n@%several add.u32 %passed,%passed,{groups};\nsub.u32 %left,%left,1;\nsetp.eq.u32 %p,%left,0;\n"
    )


def _barrier(what: str, which: str, layout: PersistentLayout) -> str:
    """A barrier of a part; two alternate, as a warp may reach the next one before others have left."""
    return "bar.sync 0;\n" if layout.parts == 1 else f"barrier.{what} %{which}_barrier,{layout.threads};\n"


def multiply_adds(weights: FloatArray, register: str) -> str:
    """Multiply-adds of an input in a register into each accumulator with a weight for it."""
    return "".join(
        f"fma.rn.f32 %sum{j},{register},{float_text(weights[j])},%sum{j};\n" for j in np.flatnonzero(weights).tolist()
    )


def clipped(spec: Conv2d, register: str) -> str:
    """The epilogue of a layer. Raises TemplateError for a step other than Clip."""
    lines = []
    for step in spec.epilogue:
        if not isinstance(step, Clip):
            raise TemplateError("the epilogue may hold Clips only")
        bounds = [("max", step.low), ("min", step.high)]
        lines += [f"{name}.NaN.f32 {register},{register},{float_text(to)};\n" for name, to in bounds if to is not None]
    return "".join(lines)


def _head(spec: Conv2d, layout: PersistentLayout, arch: str) -> str:
    """Text from the first line up to a batch's first layer, with the addresses of its columns."""
    parameters = ",\n".join(f".param .{kind} {KERNEL}_{name}" for name, kind in ARGUMENTS.items())
    polling = WARP if layout.threads > WARP else 0  # another warp than the one that counts, which waits for its stores
    return f"""\
.version 9.0
.target {arch}
.address_size 64
.visible .entry {KERNEL}(
{parameters}
)
.maxntid {layout.threads * layout.parts}, 1, 1
.minnctapersm 1
{{
{_REGISTERS}.reg .f32 %sum<{layout.group}>, %own<{layout.group}>, %x<{spec.channels}>;
{_parameter("%a", "count")}ld.global.u32 %columns,[%a];
{_parameter("%t", "images")}shr.s32 %zero,%t,31;
mul.lo.u32 %t,%t,{spec.width};
min.s32 %columns,%columns,%t;
mov.u32 %t,%tid.x;
div.u32 %part,%t,{layout.threads};
rem.u32 %thread,%t,{layout.threads};
and.b32 %lane,%thread,{WARP - 1};
setp.lt.u32 %telling,%thread,{WARP};
setp.eq.u32 %tells,%thread,0;
setp.eq.u32 %polls,%thread,{polling};
mov.u32 %done_barrier,%part;
add.u32 %ready_barrier,%part,{layout.parts};
mov.u32 %tile,%ctaid.x;
mad.lo.u32 %tile,%part,{layout.group_blocks},%tile;
{_parameter("%counter", "done")}mul.wide.u32 %a,%tile,{DONE_BYTES};
add.s64 %counter,%counter,%a;
shr.u32 %t,%thread,5;
mad.lo.u32 %base,%t,{layout.tiles},%tile;
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


def _end(groups: int, layout: PersistentLayout) -> str:
    """Marks after a batch's last layer, and the loop of warps without columns in the batch."""
    step = layout.tiles * layout.threads
    return (
        "$last:\nmov.b32 %any,0;\n"
        + "".join(f"mov.b32 %t,%own{j};\nor.b32 %any,%any,%t;\n" for j in range(layout.group))
        # -0.0 counts as zero.
        + "shl.b32 %any,%any,1;\nsetp.ne.b32 %p,%any,0;\ncvt.u64.u32 %a,%column;\nadd.s64 %a,%a,%marks;\n"
        + "mov.u32 %t,1;\n@%p st.global.u8 [%a],%t;\n"
        + f"$next:\nadd.u32 %lot,%lot,{step};\nadd.u32 %base,%base,{step};\nbra $lot;\n"
        + f"$idle:\n{_wait('idle', layout)}{_tell('idle', layout, groups)}@!%p bra $idle;\nbra $next;\n}}\n"
    )


def _parameter(register: str, name: str) -> str:
    return f"ld.param.{ARGUMENTS[name]} {register},[{KERNEL}_{name}];\n"


def _address(register: str, tiles: str, column: str, spec: Conv2d) -> str:
    """Address of a column's first element."""
    return (
        f"div.u32 %u,{column},{spec.width};\nmul.wide.u32 {register},%u,{4 * spec.channels * spec.width};\n"
        f"add.s64 {register},{register},{tiles};\nrem.u32 %u,{column},{spec.width};\n"
        f"mad.wide.u32 {register},%u,4,{register};\n"
    )


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def float_text(value: float) -> str:
    """Immediate of a float32."""
    return immediate(_bits(value))


def branches(register: str, name: str, low: int, high: int, label: Callable[[int], str]) -> str:
    """Branch to the label of a register's value in [low, high), by bisection."""
    if high - low == 1:
        return f"bra {label(low)};\n"
    middle = (low + high) // 2
    return (
        f"setp.ge.u32 %p,{register},{middle};\n@%p bra $from_{name}_{middle};\n"
        f"{branches(register, name, low, middle, label)}$from_{name}_{middle}:\n"
        f"{branches(register, name, middle, high, label)}"
    )
