"""Layers of listed columns in one kernel, which stays on the GPU while they are computed one after another.

A block has one K group of each layer and, in each of its parts, a tile of the columns. A tile goes on to the next layer
as soon as all groups have done it: the tiles that a multiprocessor has wait at different times, and share the code that
it fetches. All blocks must run at once. Which of a layer's groups a block has is chosen so that it reads much of what
that block made in the layer before: if a thread has no more than one column, that is still in its registers. The kernel
is put together from the layers' own, the rewriter's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import TemplateError
from codegen.layers import Weights
from codegen.operators import tiled
from codegen.rewrite import rewrite
from codegen.template import Template

KERNEL = "chained"
ARGUMENTS = ("spare", "done", "first", "layers")
"""After those of a layer: a third set of tiles, a counter for each tile of columns, DONE_BYTES apart and zero, the
layer to begin with and how many are computed. The first reads `input` and writes `output`, the second reads that and
writes `spare`; from then on these two take turns. Only the last one marks its columns.
"""
DONE_BYTES = 128

_PARAMETER = re.compile(r"ld\.param\.u64\s+(%rd\d+), \[\w+_param_(\d+)\];")
_TURN = re.compile(r"mov\.u32 (%r\d+),(%r\d+); // farm\.turn (%r\d+)\n\$turn:\n")
_LAST = re.compile(r"setp\.ge\.s32 p,%r\d+,(%r\d+);")
_LOAD = re.compile(r"ld\.global\.nc\.f32\s+(%f\d+), \[(%rd\d+)(?:\+(\d+))?\];")
_ADVANCE = re.compile(r"add\.s64\s+(%rd\d+), \1, (\d+);")
_STORED = re.compile(r"mov\.b32 a,v;(?=[^\n]*// farm\.store (\d+))")
_MOVED = {"input": "%from", "output": "%into", "places": "%listed"}
"""What is not the same for every layer, and the register that has it."""
_REGISTERS = """\
.reg .b64 %from, %into, %after, %listed, %counter;
.reg .b32 %first_layer, %left, %passed, %seen, %part, %part_thread, %part_tile, %part_tiles, %part_barrier;
.reg .pred %leads, %begun, %more, %marks, %alone, %kept;
"""


@dataclass(frozen=True)
class Chain:
    """How the columns are shared out."""

    parts: int
    """Of a block, each with a tile of columns and with the threads that a layer's own kernel has."""
    beside: int
    """Blocks of a group."""

    @property
    def tiles(self) -> int:
        """Of the columns."""
        return self.parts * self.beside


def chained(template: Template, layers: Sequence[Weights], again: int, chain: Chain) -> bytes:
    """The PTX of layers that have one template; after the last of them comes number `again`.

    Raises TemplateError for one whose pointers are used before its first column is known.
    """
    layer = tiled(template.spec, template.tiling)
    arguments, groups, threads = layer.launch.arguments, layer.streams.count, template.tiling.tile_width
    texts = [rewrite(template, weights).ptx.decode("ascii") for weights in layers]
    found = _TURN.search(texts[0])
    if found is None:
        raise TemplateError("a chain is of layers of listed columns")
    head = texts[0][: found.start()]
    moved = [(m[1], _MOVED[name]) for m in _PARAMETER.finditer(head) if (name := arguments[int(m[2])]) in _MOVED]
    for register, _ in moved:
        if len(re.findall(rf"{register}\b", head)) > 1:
            raise TemplateError(f"{register} is a pointer that changes from layer to layer, and used before the loop")
    begin = "".join(f"mov.u64 {register},{value};\n" for register, value in moved) + f"mov.u32 {found[1]},{found[2]};\n"
    streams = [[_changing(each, arguments) for each in _streams(text[found.end() :], groups)] for text in texts]
    last = _LAST.search(texts[0], found.end())
    if last is None:
        raise TemplateError("a layer of listed columns ends with the last of them")
    size, row_bytes = template.tiling.group_kernels, 4 * layer.geometry.width
    groups_of = _groups_of_blocks(layers, again, groups, size)

    def computed(block: int, number: int) -> str:
        group, before = groups_of[number][block], groups_of[number - 1 if number else len(layers) - 1][block]
        made = f"{begin}mov.u32 {template.rolled.group_register},{group};\n"
        stream = _kept(streams[number][group], before * size, size, row_bytes)
        following = number + 1 if number + 1 < len(layers) else again
        name = f"{block}_{number}"
        return f"{_layer(stream, made, name, groups, threads, chain)}@%more bra $layer_{block}_{following};\nret;\n"

    def stream(block: int) -> str:
        begins = _branches("%first_layer", f"layer_{block}", 0, len(layers), lambda number: f"$layer_{block}_{number}")
        return begins + "".join(computed(block, number) for number in range(len(layers)))

    return (
        _head(head, arguments, threads, chain)
        + f".reg .f32 %own<{size}>;\n"
        + "".join(f"mov.f32 %own{i},0f00000000;\n" for i in range(size))
        + f"setp.le.s32 %alone,{last[1]},{found[3]};\n"
        + _branches(template.rolled.group_register, "block", 0, groups, lambda block: f"$block_{block}")
        + "".join(f"$block_{block}:\n{stream(block)}" for block in range(groups))
        + "}\n"
    ).encode("ascii")


def _groups_of_blocks(layers: Sequence[Weights], again: int, groups: int, size: int) -> list[NDArray[np.int64]]:
    """Of each layer, the group of outputs that each block computes: one that reads much of what the block made before.

    Layers before number `again` have the last one's: number `again` finds the same, whichever is before it. Raises
    TemplateError for layers that are not of whole groups, or have not as many inputs as outputs.
    """
    if any(weights.kernel.shape[:2] != (groups * size, groups * size) for weights in layers):
        raise TemplateError("a chain is of layers of whole groups, with as many inputs as outputs")
    found = [np.arange(groups)]
    for weights in layers[again + 1 :]:
        shared = _shared_inputs(weights, groups, size)[:, found[-1]].T
        if weights is layers[-1]:
            shared = shared + _shared_inputs(layers[again], groups, size)
        found.append(_matched(shared))
    return [found[-1]] * again + found


def _shared_inputs(weights: Weights, groups: int, size: int) -> NDArray[np.int64]:
    """[groups, groups]: how many of the inputs that each group of outputs reads each group of the layer before made."""
    read = weights.kernel.reshape(groups, size, -1).any(axis=1)
    found: NDArray[np.int64] = read.reshape(groups, groups, size).sum(axis=2)
    return found


def _matched(shared: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each block's group, given [blocks, groups]: as many as can be have one of which they share the most."""
    count = len(shared)
    wanted = [np.flatnonzero(row == row.max()) if row.max() else np.zeros(0, np.int64) for row in shared]
    owner = np.full(count, -1)

    def place(block: int, seen: set[int]) -> bool:
        for group in wanted[block].tolist():
            if group not in seen:
                seen.add(group)
                if owner[group] < 0 or place(int(owner[group]), seen):
                    owner[group] = block
                    return True
        return False

    left = [block for block in range(count) if not place(block, set())]
    owner[owner < 0] = left
    found = np.empty(count, np.int64)
    found[owner] = np.arange(count)
    return found


def _kept(stream: str, first: int, size: int, row_bytes: int) -> str:
    """With `size` inputs from number `first` on in registers: loaded unless the layer before left them there."""
    lines, loads, at, begin = stream.splitlines(keepends=True), [], 0, -1
    for i, line in enumerate(lines):
        if begin < 0 and "// farm.body.begin" in line:
            begin = i
        if begin < 0:
            continue
        if found := _ADVANCE.match(line):
            at += int(found[2])
        elif found := _LOAD.match(line):
            place = at + int(found[3] or 0)
            own = place // row_bytes - first
            if 0 <= own < size:
                loads.append(f"@!%kept ld.global.nc.f32 %own{own},[{found[2]}+{place}];\n")
                lines[i] = f"mov.f32 {found[1]},%own{own};\n"
    text = "".join([*lines[:begin], *loads, *lines[begin:]])
    return _STORED.sub(r"mov.b32 a,v; mov.f32 %own\1,v;", text)


def _streams(text: str, groups: int) -> list[str]:
    """What each group does with the columns of a turn, from their addresses on."""
    head, *rest = text.split(".reg .pred %from", 1)
    *pieces, end = text.split("bra $turn;\n")
    if len(pieces) != groups or end != "}\n":
        raise TemplateError(f"a layer of {groups} groups has {len(pieces)} streams")
    plain = ["".join(line for line in each.splitlines(keepends=True) if not _chooses(line)) for each in pieces]
    return [plain[0], *(head + each for each in plain[1:])] if rest else plain


def _changing(stream: str, arguments: Sequence[str]) -> str:
    """With the pointers of the layer where the parameters of a kernel are read."""

    def value(found: re.Match[str]) -> str:
        moved = _MOVED.get(arguments[int(found[2])])
        return f"mov.u64 {found[1]}, {moved};" if moved else found[0]

    return _PARAMETER.sub(value, stream)


def _chooses(line: str) -> bool:
    """Whether a line is of the rewriter's choice of the group."""
    return bool(re.match(r"\.reg \.pred %from|setp\.ge\.u32 %from|@%from|\$from\d+:", line))


def _layer(stream: str, begin: str, name: str, groups: int, threads: int, chain: Chain) -> str:
    """One layer of a group: waits for the one before, computes, tells."""
    barrier = "bar.sync 0;\n" if chain.parts == 1 else f"barrier.sync %part_barrier,{threads};\n"
    stream = stream.replace("@p exit;", f"@p bra $done_{name};")
    stream, marks = re.subn(r"setp\.ne\.b32 p,a,0; (?=[^\n]*st\.global\.u8)", "setp.ne.and.b32 p,a,0,%marks; ", stream)
    if marks != 1:
        raise TemplateError("a layer of listed columns marks a column in one place")
    return (
        f"$layer_{name}:\nsetp.eq.u32 %marks,%left,1;\nsetp.ne.u32 %begun,%passed,0;\n"
        f"@!%begun bra $begin_{name};\n@!%leads bra $ready_{name};\n"
        f"$poll_{name}:\nld.acquire.gpu.global.u32 %seen,[%counter];\nsetp.lt.u32 %begun,%seen,%passed;\n"
        f"@%begun bra $poll_{name};\n$ready_{name}:\n{barrier}$begin_{name}:\n"
        f"setp.ne.and.u32 %kept,%passed,0,%alone;\n{begin}$turn_{name}:\n"
        f"{_shared(stream)}bra $turn_{name};\n$done_{name}:\n{barrier}@!%leads bra $told_{name};\n"
        "fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%counter],1;\n"
        f"$told_{name}:\nadd.u32 %passed,%passed,{groups};\nsub.u32 %left,%left,1;\nsetp.ne.u32 %more,%left,0;\n"
        "mov.u64 %from,%into;\nmov.u64 %into,%after;\nmov.u64 %after,%from;\nmov.u64 %listed,0;\n"
    )


def _head(head: str, arguments: Sequence[str], threads: int, chain: Chain) -> str:
    """From the file's first line to the group, with the parameters of a chain."""
    entry = re.search(r"\.entry (\w+)\(\n(.*?)\n\)\n\.maxntid [^\n]*\n", head, re.DOTALL)
    begin = re.search(r"^(?=ld\.param)", head, re.MULTILINE)
    if entry is None or begin is None:
        raise TemplateError("a template begins with its entry and what it reads of its parameters")
    parameters = [f".param .u{64 if name in ARGUMENTS[:2] else 32} {KERNEL}_{name}" for name in ARGUMENTS]
    of = {name: f"{entry[1]}_param_{i}" for i, name in enumerate(arguments)}
    own = "".join(
        f"ld.param.u64 {register},[{name}];\n"
        for register, name in [(_MOVED[name], of[name]) for name in _MOVED] + [("%after", f"{KERNEL}_spare")]
    )
    own += (
        f"ld.param.u64 %counter,[{KERNEL}_done];\nld.param.u32 %first_layer,[{KERNEL}_first];\n"
        f"ld.param.u32 %left,[{KERNEL}_layers];\nmov.u32 %passed,0;\nmov.u32 %part_thread,%tid.x;\n"
        f"div.u32 %part,%part_thread,{threads};\nrem.u32 %part_thread,%part_thread,{threads};\n"
        "setp.eq.u32 %leads,%part_thread,0;\nadd.u32 %part_barrier,%part,1;\nmov.u32 %part_tiles,%nctaid.x;\n"
        "mov.u32 %part_tile,%ctaid.x;\nmad.lo.u32 %part_tile,%part,%part_tiles,%part_tile;\n"
        f"mul.lo.u32 %part_tiles,%part_tiles,{chain.parts};\nmul.wide.u32 %listed,%part_tile,{DONE_BYTES};\n"
        f"add.s64 %counter,%counter,%listed;\nld.param.u64 %listed,[{of['places']}];\n"
    )
    setup = re.sub(r"griddepcontrol\.[^\n]*\n", "", _shared(head[begin.start() :]))
    for name, value in (("%tid.x", "%part_thread"), ("%ctaid.x", "%part_tile"), ("%nctaid.x", "%part_tiles")):
        setup = setup.replace(name, value)
    return (
        head[: entry.start()]
        + f".entry {KERNEL}(\n"
        + ",\n".join([entry[2], *parameters])
        + f"\n)\n.maxntid {threads * chain.parts}, 1, 1\n.minnctapersm 1\n"
        + head[entry.end() : begin.start()]
        + _REGISTERS
        + own
        + setup
    )


def _shared(text: str) -> str:
    """With loads of what other blocks write: not by a multiprocessor's own cache."""
    return text.replace("ld.global.nc.", "ld.global.cg.")


def _branches(register: str, name: str, low: int, high: int, label: Callable[[int], str]) -> str:
    """To the label of the number in a register, in log2(high - low) steps."""
    if high - low == 1:
        return f"bra {label(low)};\n"
    middle = (low + high) // 2
    return (
        f"setp.ge.u32 %more,{register},{middle};\n@%more bra $from_{name}_{middle};\n"
        f"{_branches(register, name, low, middle, label)}$from_{name}_{middle}:\n"
        f"{_branches(register, name, middle, high, label)}"
    )
