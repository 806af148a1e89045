"""The PTX of a skeleton: a template with markers where its loads and multiply-adds were, for one K group.

The loop is unrolled as the rewriter does it. ptxas must keep the markers, since they are volatile, and in order; what
they name tells which registers hold what. Their addresses are beyond all shared memory: none is ever run.

    head            the number of the first K group is loaded from FIRST_GROUP
    branch          to `other`, on a K group that no layer has: the tree of the K groups comes here
    loads           of every sum, from SUMS on; of float16, of the float32 sums too that packed ones are added to
    each chunk      wait, barrier, next copies; then loads of the ring, the registers that inputs come into, a store
                    that names every pointer that the chunk's loads went through, and stores of the ring; a load from
                    AFTER where what follows uses a sum, so as not to come before it
    load            from LAST: no bias is added before the last chunk, and no packed sum taken apart; of sums that are
                    apart a store, and the epilogue loads each from SUMS on
    stores          to ENDS of packed sums that nothing reads any more
    epilogue        bias placeholders added, steps, stores
    other           a store of the K group's number: its register is still there at the branch
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.ir.layer_spec import is_bounded, is_gated
from codegen.kernels import tiled
from codegen.kernels.weight_stream import slots
from codegen.ptx.template import RolledForm, Template
from codegen.sass.assemble.input_bounds import Bounds
from codegen.sass.assemble.input_gates import TURN_WORDS, Gates
from codegen.sass.skeleton.accumulators import Sums, is_accumulation, multiply_add, texts
from codegen.sass.skeleton.input_loads import Loads
from codegen.sass.skeleton.output_stores import Outputs, residuals, stored
from codegen.sass.skeleton.register_copies import held_in_place

POINTERS = 0x600000
MARKED_TOGETHER = 4
"""Pointers into shared memory that a marker shows as its data; the first of all is its address."""
MOST_POINTERS = 1 + 2 * MARKED_TOGETHER
REACH = 0x40000
"""An address may be so far from its marker's: whatever lies in shared memory is nearer."""
SUMS = 0x700000
FIRST_GROUP = 0x710000
RING = 0x680000
LAST = 0x780000
HELD_SUMS = 0x580000
AFTER = 0x500000
ENDS = 0x480000
RINGS = {1: (16, 8, 4), 2: (16, 8, 8), 4: (32, 16, 16)}
"""How many registers inputs may be loaded into, in turn, by the words of the widest load."""
BANKS = 4
"""Of the ring: three are being loaded while one is used."""
NO_GROUP = 0x5EED0000
"""The K group that the branch to `other` asks for."""


@dataclass(frozen=True)
class Demand:
    """What a skeleton asks of ptxas."""

    ring: int = 0
    """Which of RINGS."""
    holds_sums: bool = False
    """Whether each chunk stores all sums too. Without, one that nothing names between first and last is what ptxas
    likes to move to local memory where registers are short."""
    crowded: bool = True
    """Whether as many blocks are to fit on a multiprocessor as the template asks for, if it does."""
    runs_on: bool = False
    """Whether the ring keeps its registers from the first chunk to the last, so that streams run on from one to the
    next. Not with gates, and in float32 only: others have copies that pass through registers beside the markers."""
    apart: bool = False
    """Whether the sums have registers beyond those of ptxas, which is given so many fewer. Its epilogue loads each sum
    before its first use, which becomes a move. Without, it moves sums to local memory where registers are short, or
    needs every one of them at once for the markers of a chunk."""


_IN_TURN = (Demand(), Demand(holds_sums=True), Demand(1, holds_sums=True))
DEMANDS = (*(replace(each, runs_on=True) for each in _IN_TURN), *_IN_TURN)
"""In turn, until nothing is moved to local memory."""
LAST_DEMAND = Demand(crowded=False)
"""Of a template that none of these does for."""
APART = (Demand(apart=True), Demand(1, apart=True), Demand(2, apart=True))
"""The last, again until nothing is moved to local memory."""
_LOAD = re.compile(r"^ld\.shared(?:\.v([24]))?\.[fub]32\s+(%[fr]\d+|\{[^}]*\}),\s*\[(%\w+)(?:\+(-?\d+))?\];$")
_FIRST_GROUP = re.compile(r"^mov\.u32 (%r\d+),0; // farm\.first_group$", re.MULTILINE)
_RESIDENT = re.compile(r"^\.minnctapersm (\d+)$", re.MULTILINE)
_THREADS = re.compile(r"^\.maxntid (\d+), 1, 1$", re.MULTILINE)
_REGISTERS, _MOST_REGISTERS = 2**16, 255
"""Of a multiprocessor, of a thread."""
_SHARED_BYTES, _OWN_SHARED_BYTES = 228 * 1024, 1024
"""Of a multiprocessor, of each block beside what it asks for."""
_LEAST_REGISTERS = 24
"""That ptxas is left with beside the sums."""
_WARP, _WARPS_TOGETHER, _REGISTERS_TOGETHER = 32, 4, 8
"""Threads have registers in such portions."""
_NAME = re.compile(r"%[fr]\d+")
_BODY_END = "// farm.body.end"


@dataclass(frozen=True, eq=False)
class Marked:
    """A template as the assembler sees it: its multiply-adds and loads in numbers, the rest as a skeleton's PTX."""

    ptx: str
    chunks: int
    sums: Sums
    pointers: int
    order: NDArray[np.int64]
    """[slots]: the slots in the order of their lines, which is the order of the multiply-adds of each sum."""
    slot_sum: NDArray[np.int64]
    """[slots]: the number of its sum."""
    slot_load: NDArray[np.int64]
    slot_element: NDArray[np.int64]
    """[slots]: which word of the load is multiplied."""
    load_pointer: NDArray[np.int64]
    load_offset: NDArray[np.int64]
    """[loads]: bytes from the pointer."""
    load_words: NDArray[np.int64]
    bounds: Bounds | None
    """Of a layer whose input is brought within such."""
    gates: Gates | None
    """Of a layer whose input is multiplied by such."""
    gate_pointer: NDArray[np.int64]
    """[loads of gates]"""
    stores: list[Outputs]
    residuals: list[Outputs]
    """By pointer."""
    ring_width: int
    """Words of the widest load: each place of the ring has so many registers."""

    @staticmethod
    def of(template: Template, demand: Demand = DEMANDS[0]) -> Marked:
        """Raises MachineCodeError for what the assembler does not do, with the reason."""
        spec, tiling = template.spec, template.tiling
        if tiling.form != "rolled" or tiling.reads_table:
            raise MachineCodeError("a full template, or one of weights in a table")
        form, layer = template.rolled, tiled(spec, tiling)
        turn, tail = texts(form.turn), texts(form.tail)
        loads = [_load(turn[line]) for line in form.load_lines.tolist()]
        gates = _gates(turn, form) if is_gated(spec) else None
        bounds = _bounds(turn, form) if is_bounded(spec) else None
        through = [pointer for _, pointer, _ in loads]
        pointers = list(dict.fromkeys([*through, *(gates.pointers if gates else ())]))
        if len(pointers) > MOST_POINTERS:
            raise MachineCodeError(f"{len(pointers)} pointers into shared memory")
        sums = Sums.of(layer, form)
        element = {register: i for names, _, _ in loads for i, register in enumerate(names)}
        multiplicands = [multiply_add(turn[line])[1] for line in form.weight_line.tolist()]
        multiplicands = [prepared.source_of(each) if (prepared := gates or bounds) else each for each in multiplicands]
        slot_load, slot_element = form.load_of_slot, np.array([element[each] for each in multiplicands], dtype=np.int64)
        found = Loads.of([(pointers.index(pointer), offset, len(names)) for names, pointer, offset in loads])
        if gates is None:
            found, slot_load, slot_element = found.joined(slot_load, slot_element)
        width = TURN_WORDS if gates else int(found.words.max())
        ring_words = RINGS[width][demand.ring]
        runs_on = demand.runs_on and gates is None and spec.data_type == "float32" and layer.streams.chunks > 1
        ring_loads, ring_stores = _ring(ring_words, width, "%thread" if runs_on else pointers[0], pointers[0])
        markers = [*([] if runs_on else ring_loads), *_markers(pointers, sums, demand), *ring_stores]
        taken = {*form.weight_line.tolist(), *form.load_lines.tolist()}
        taken |= {*form.input_lines.tolist(), *form.gate_lines.tolist(), *form.bound_lines.tolist()}
        body = _body([line for i, line in enumerate(turn) if i not in taken], sums, markers, pointers[0])
        group = form.group_register
        lines = [
            f".reg .pred %other; .reg .f32 %one, %after, %ring<{ring_words}>; .reg .b32 %onebits, %afterbits;",
            f"setp.ge.u32 %other,{group},{NO_GROUP}; @%other bra $other;",
            *([] if demand.apart else _sum_loads(sums.pinned)),
            *(ring_loads if runs_on else []),
            *body * layer.streams.chunks,
            *_tail(tail, sums, pointers[0], demand),
            f"$other: st.volatile.shared.u32 [%thread+{LAST}],{group}; ret;",
            "}",
        ]
        head = _resident(form.head, layer.launch.shared_bytes)
        head = _beside(head, len(sums.pinned)) if demand.apart else head
        head = head if demand.crowded else _RESIDENT.sub("", head)
        head = _FIRST_GROUP.sub(
            rf".reg .u32 %thread; mov.u32 %thread,%tid.x; ld.volatile.shared.u32 \1,[%thread+{FIRST_GROUP}];", head
        )
        return Marked(
            ptx=head + "\n".join(lines) + "\n",
            chunks=layer.streams.chunks,
            sums=sums,
            pointers=len(pointers),
            order=np.argsort(form.weight_line, kind="stable"),
            slot_sum=slots(layer).sums,
            slot_load=slot_load,
            slot_element=slot_element,
            load_pointer=found.pointer,
            load_offset=found.offset,
            load_words=found.words,
            bounds=bounds,
            gates=gates,
            gate_pointer=np.array([pointers.index(each) for each in (gates.pointers if gates else ())], dtype=np.int64),
            stores=stored(tail),
            residuals=residuals(tail),
            ring_width=width,
        )


def _resident(head: str, shared_bytes: int) -> str:
    """The head of a kernel that asks for no more blocks on a multiprocessor than find shared memory there.

    The registers of those that do not are there for loads of what is added to outputs: beside the ring ptxas has none
    left for them otherwise, and loads them behind the last chunk.
    """
    most = _SHARED_BYTES // (shared_bytes + _OWN_SHARED_BYTES)
    return _RESIDENT.sub(lambda found: f".minnctapersm {min(int(found[1]), most)}", head)


def _beside(head: str, sums: int) -> str:
    """The head of a kernel that leaves registers for so many sums on a multiprocessor with all its blocks."""
    threads, blocks = _THREADS.search(head), _RESIDENT.search(head)
    if threads is None:
        raise MachineCodeError("a kernel without its number of threads")
    warps = -(-int(threads[1]) // (_WARP * _WARPS_TOGETHER)) * _WARPS_TOGETHER * (int(blocks[1]) if blocks else 1)
    each = min(_REGISTERS // (warps * _WARP) // _REGISTERS_TOGETHER * _REGISTERS_TOGETHER, _MOST_REGISTERS)
    if each - sums < _LEAST_REGISTERS:
        raise MachineCodeError(f"{sums} sums of {each} registers")
    return _THREADS.sub(rf"\g<0>\n.maxnreg {each - sums}", _RESIDENT.sub("", head))


def _sum_loads(registers: tuple[str, ...]) -> list[str]:
    return [f"ld.volatile.shared.b32 {each},[%thread+{SUMS + 4 * i}];" for i, each in enumerate(registers)]


def _tail(tail: list[str], sums: Sums, pointer: str, demand: Demand) -> Iterator[str]:
    """The epilogue, which waits for the last marker, or for the load of each sum."""
    last = f"{pointer}+{LAST}"
    if not demand.apart:
        yield f"ld.volatile.shared.f32 %one,[{last}]; mov.b32 %onebits,%one;"
        if sums.wide:
            yield from (_store(each, f"{pointer}+{ENDS + 4 * i}") for i, each in enumerate(sums.registers))
        for line in tail:
            yield from sums.ending(line, "%one", "%onebits")
        return
    yield _store("0", last)
    missing = dict(zip(sums.pinned, _sum_loads(sums.pinned), strict=True))
    for line in tail:
        yield from (missing.pop(each) for each in _NAME.findall(line) if each in missing)
        yield line


def _load(line: str) -> tuple[list[str], str, int]:
    """The registers, pointer and offset of a load."""
    if (match := _LOAD.match(line)) is None:
        raise MachineCodeError(f"the load '{line}'")
    return re.findall(r"%[fr]\d+", match[2]), match[3], int(match[4] or 0)


def _gates(turn: list[str], form: RolledForm) -> Gates:
    return Gates.of(turn, form.input_lines.tolist(), form.gate_lines.tolist(), form.input_of_slot)


def _bounds(turn: list[str], form: RolledForm) -> Bounds:
    return Bounds.of(turn, form.input_lines.tolist(), form.bound_lines.tolist(), form.input_of_slot)


def _body(lines: list[str], sums: Sums, markers: list[str], pointer: str) -> list[str]:
    """The lines of a turn with its markers. What reads a sum after the multiply-adds reads what comes from AFTER."""
    end = lines.index(_BODY_END)
    names = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, sums.pinned))})(?!\w)")
    register = "%afterbits" if sums.packed else "%after"
    after = [names.sub(register, line) for line in lines[end + 1 :] if not is_accumulation(line)]
    if not any(register in line for line in after):
        return [*lines[:end], *markers, *after]
    load = f"ld.volatile.shared.f32 %after,[{pointer}+{AFTER}]; mov.b32 %afterbits,%after;"
    return [*map(held_in_place, lines[:end]), *markers, load, *after]


def _markers(pointers: list[str], sums: Sums, demand: Demand) -> Iterator[str]:
    """Those of a chunk, in place of its multiply-adds, without the ring's."""
    yield from _pointer_markers(pointers)
    if demand.holds_sums:
        yield from (_store(each, f"{pointers[0]}+{HELD_SUMS}") for each in sums.pinned)


def _store(register: str, address: str) -> str:
    return f"st.volatile.shared.b32 [{address}],{register};"


def _pointer_markers(pointers: list[str]) -> Iterator[str]:
    address, *all_others = pointers
    for first in range(0, max(1, len(all_others)), MARKED_TOGETHER):
        others = all_others[first : first + MARKED_TOGETHER]
        data = (others + others)[: next(count for count in (1, 2, 4) if count >= len(others))] or ["0"]
        vector, names = (f".v{len(data)}", f"{{{','.join(data)}}}") if len(data) > 1 else ("", data[0])
        yield f"st.volatile.shared{vector}.u32 [{address}+{POINTERS}],{names};"


def _ring(words: int, width: int, source: str, target: str) -> tuple[list[str], list[str]]:
    """Loads of all its registers, and stores: in between they hold nothing else."""
    vector = f".v{width}" if width > 1 else ""
    loads, stores = [], []
    for first in range(0, words, width):
        names = ",".join(f"%ring{first + i}" for i in range(width))
        data = f"{{{names}}}" if width > 1 else names
        loads.append(f"ld.volatile.shared{vector}.f32 {data},[{source}+{RING + 4 * first}];")
        stores.append(f"st.volatile.shared{vector}.f32 [{target}+{RING + 4 * first}],{data};")
    return loads, stores
