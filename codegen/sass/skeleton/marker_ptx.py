"""Marker PTX: a template with markers in place of its loads and multiply-adds, for one K group.

The loop is unrolled as the rewriter does it. A marker is a volatile access, which ptxas must keep, in order: its
operands tell the registers at that point. Its address is beyond all shared memory: no marker is ever run.

    head            the number of the first K group is loaded from FIRST_GROUP
    branch          to `other`, on a K group that no layer has: the tree of branches to the K groups replaces it
    loads           of every accumulator, from ACCUMULATORS on; of float16 also of the float32 ones behind it
    each chunk      wait, barrier, next copies; then loads of the ring, the registers that inputs come into, a store
                    that names every pointer of the chunk's loads, and stores of the ring; a load from AFTER where the
                    code that follows uses an accumulator, so that it stays behind
    load            from LAST: no bias is added before the last chunk, and no packed accumulator unpacked; with reserved
                    accumulators a store, and the epilogue loads each accumulator from ACCUMULATORS on
    stores          to ENDS, of packed accumulators that nothing reads any more
    epilogue        bias placeholders added, steps, stores
    other           a store of the K group's number: its register still holds it at the branch
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
from codegen.ptx.template import Lines, RolledForm, Template
from codegen.ptx.template_lines import Accumulation, Body, Load, MultiplyAdd
from codegen.sass.isa.architecture import Architecture
from codegen.sass.skeleton.accumulators import Accumulators, waiting_for
from codegen.sass.skeleton.inputs import TURN_WORDS, Bounds, Gates, InputLoads
from codegen.sass.skeleton.output_stores import Outputs, residuals, stored
from codegen.sass.skeleton.register_copies import held_in_place

POINTERS = 0x600000
MARKED_TOGETHER = 4
"""Most pointers into shared memory that a marker has as its data; the first pointer of all is its address."""
MOST_POINTERS = 1 + 2 * MARKED_TOGETHER
REACH = 0x40000
"""Largest distance of an address from its marker's: larger than shared memory."""
ACCUMULATORS = 0x700000
FIRST_GROUP = 0x710000
RING = 0x680000
LAST = 0x780000
HELD_ACCUMULATORS = 0x580000
AFTER = 0x500000
ENDS = 0x480000
RINGS = {1: (16, 8, 4), 2: (16, 8, 8), 4: (32, 16, 16)}
"""Registers that inputs are loaded into in turn, by the words of the widest load; for each `Demand.ring`."""
BANKS = 4
"""Banks of the ring: three are being loaded while one is used."""
NO_GROUP = 0x5EED0000
"""Number of the K group that the branch to `other` compares with: larger than any layer's."""


@dataclass(frozen=True)
class Demand:
    """Options of a skeleton that decide which registers ptxas has left."""

    ring: int = 0
    """Index into the sizes of RINGS."""
    holds_accumulators: bool = False
    """Whether each chunk stores all accumulators too. Without these stores, ptxas moves accumulators to local memory
    where registers are short, since nothing names them between the first chunk and the last."""
    crowded: bool = True
    """Whether to keep the number of blocks on a multiprocessor that the template asks for."""
    overlaps: bool = False
    """Whether the ring keeps its registers from the first chunk to the last, so that the weight code of neighbouring
    chunks overlaps. Float32 without gates only: other layers have copies that pass through registers."""
    reserved: bool = False
    """Whether the accumulators have registers beyond those of ptxas, which gets that many fewer (`.maxnreg`). Its
    epilogue loads each accumulator before its first use; a move replaces the load. For where registers are short."""
    pairs_pointers: bool = False
    """Whether a marker has two pointers as its data, not four, which need four consecutive registers."""


_IN_TURN = (Demand(), Demand(holds_accumulators=True), Demand(1, holds_accumulators=True))
DEMANDS = (*(replace(each, overlaps=True) for each in _IN_TURN), *_IN_TURN)
"""Tried in turn until ptxas moves nothing to local memory."""
LAST_DEMAND = Demand(crowded=False)
"""Tried where each of these fails."""
RESERVED_DEMANDS = (Demand(reserved=True), Demand(1, reserved=True), Demand(2, reserved=True))
"""Tried last, again until ptxas moves nothing to local memory."""
PAIRED_DEMAND = Demand(crowded=False, pairs_pointers=True)
"""The last resort: with several markers of four pointers, ptxas may move pointers into the registers of others."""
_RESIDENT = re.compile(r"^\.minnctapersm (\d+)$", re.MULTILINE)
_THREADS = re.compile(r"^\.maxntid (\d+), 1, 1$", re.MULTILINE)
_REGISTERS, _MOST_REGISTERS = 2**16, 255
"""Registers of a multiprocessor; most registers of a thread."""
_OWN_SHARED_BYTES = 1024
"""Shared memory that each block takes besides its own."""
_LEAST_REGISTERS = 24
"""Fewest registers that ptxas is left with beside the accumulators."""
_WARP, _WARPS_TOGETHER, _REGISTERS_TOGETHER = 32, 4, 8
"""Granularity in which threads are given registers."""
_NAME = re.compile(r"%[fr]\d+")


@dataclass(frozen=True, eq=False)
class MarkerPtx:
    """A template as the assembler sees it: multiply-adds and loads as arrays, the rest as the PTX of a skeleton."""

    ptx: str
    chunks: int
    accumulators: Accumulators
    pointers: int
    order: NDArray[np.int64]
    """[slots]: the slots in the order of their lines: the multiply-adds keep this order."""
    slot_accumulator: NDArray[np.int64]
    """[slots]: the number of its accumulator."""
    slot_load: NDArray[np.int64]
    slot_element: NDArray[np.int64]
    """[slots]: the word of the load that is multiplied."""
    load_pointer: NDArray[np.int64]
    load_offset: NDArray[np.int64]
    """[loads]: bytes from the pointer."""
    load_words: NDArray[np.int64]
    bounds: Bounds | None
    """Bounds of inputs; None for a layer without."""
    gates: Gates | None
    """Gates of inputs; None for a layer without."""
    gate_pointer: NDArray[np.int64]
    """[loads of gates]"""
    stores: list[Outputs]
    residuals: list[Outputs]
    """Values added to outputs, by pointer."""
    ring_width: int
    """Words of the widest load: the registers of each place of the ring."""

    @staticmethod
    def of(template: Template, architecture: Architecture, demand: Demand = DEMANDS[0]) -> MarkerPtx:
        """Raises MachineCodeError for a template that the assembler does not support, with the reason."""
        spec, tiling, form = template.spec, template.tiling, template.form
        if not isinstance(form, RolledForm):
            raise MachineCodeError("the assembler supports neither full templates nor tables")
        layer = tiled(spec, tiling)
        loads = [_load(form.turn, line) for line in form.load_lines.tolist()]
        gates = Gates.of(form) if is_gated(spec) else None
        bounds = Bounds.of(form) if is_bounded(spec) else None
        pointers = list(dict.fromkeys([*(pointer for _, pointer, _ in loads), *(gates.pointers if gates else ())]))
        if len(pointers) > MOST_POINTERS:
            raise MachineCodeError(f"{len(pointers)} pointers into shared memory: more than {MOST_POINTERS}")
        accumulators = Accumulators.of(layer, form)
        slot_load, slot_element = form.load_of_slot, _elements(form, loads, gates or bounds)
        found = InputLoads.of([(pointers.index(pointer), offset, len(names)) for names, pointer, offset in loads])
        if gates is None:
            found, slot_load, slot_element = found.joined(slot_load, slot_element)
        width = TURN_WORDS if gates else int(found.words.max())
        overlaps = demand.overlaps and gates is None and spec.data_type == "float32" and layer.streams.chunks > 1
        return MarkerPtx(
            ptx=_with_markers(
                form,
                accumulators,
                pointers,
                layer.streams.chunks,
                width,
                replace(demand, overlaps=overlaps),
                1024 * architecture.shared_kib // (layer.launch.shared_bytes + _OWN_SHARED_BYTES),
            ),
            chunks=layer.streams.chunks,
            accumulators=accumulators,
            pointers=len(pointers),
            order=np.argsort(form.weight_line, kind="stable"),
            slot_accumulator=slots(layer).sums,
            slot_load=slot_load,
            slot_element=slot_element,
            load_pointer=found.pointer,
            load_offset=found.offset,
            load_words=found.words,
            bounds=bounds,
            gates=gates,
            gate_pointer=np.array([pointers.index(each) for each in (gates.pointers if gates else ())], dtype=np.int64),
            stores=stored(form.tail.typed),
            residuals=residuals(form.tail.typed),
            ring_width=width,
        )


def _load(turn: Lines, line: int) -> tuple[tuple[str, ...], str, int]:
    """The registers, pointer and offset of the load in a line."""
    load = turn.typed[line]
    if not isinstance(load, Load) or load.address is None:
        raise MachineCodeError(f"unrecognised load: '{turn.strings[line]}'")
    return load.registers, load.address.pointer, load.address.offset


def _elements(
    form: RolledForm, loads: list[tuple[tuple[str, ...], str, int]], prepared: Gates | Bounds | None
) -> NDArray[np.int64]:
    """[slots]: the word of its load that each slot multiplies."""
    element = {register: i for names, _, _ in loads for i, register in enumerate(names)}
    if prepared:
        sources = [prepared.sources[number] for number in prepared.of_slot.tolist()]
    else:
        lines = [form.turn.typed[line] for line in form.weight_line.tolist()]
        sources = [line.multiplicand for line in lines if isinstance(line, MultiplyAdd)]
    return np.array([element[each] for each in sources], dtype=np.int64)


def _with_markers(
    form: RolledForm,
    accumulators: Accumulators,
    pointers: list[str],
    chunks: int,
    width: int,
    demand: Demand,
    most_resident: int,
) -> str:
    """The PTX: head, branch, a copy of the loop for each chunk, epilogue and `other`."""
    ring_words = RINGS[width][demand.ring]
    source = "%thread" if demand.overlaps else pointers[0]
    ring_loads, ring_stores = _ring(ring_words, width, source, pointers[0])
    in_chunk = [*([] if demand.overlaps else ring_loads), *_markers(pointers, accumulators, demand), *ring_stores]
    group = form.group_register
    lines = [
        f".reg .pred %other; .reg .f32 %one, %after, %ring<{ring_words}>; .reg .b32 %onebits, %afterbits;",
        f"setp.ge.u32 %other,{group},{NO_GROUP}; @%other bra $other;",
        *([] if demand.reserved else _accumulator_loads(accumulators.pinned)),
        *(ring_loads if demand.overlaps else []),
        *_chunk(form, accumulators, in_chunk, pointers[0]) * chunks,
        *_epilogue(form.tail, accumulators, pointers[0], demand),
        f"$other: st.volatile.shared.u32 [%thread+{LAST}],{group}; ret;",
        "}",
    ]
    head = _with_resident_blocks(form.head, most_resident)
    head = _with_reserved_registers(head, len(accumulators.pinned)) if demand.reserved else head
    head = head if demand.crowded else _RESIDENT.sub("", head)
    first_group = f"ld.volatile.shared.u32 {form.first_group.register},[%thread+{FIRST_GROUP}];"
    head = head.replace(form.first_group.text, f".reg .u32 %thread; mov.u32 %thread,%tid.x; {first_group}")
    return head + "\n".join(lines) + "\n"


def _with_resident_blocks(head: str, most: int) -> str:
    """A head that asks for no more than the `most` blocks that fit into the shared memory of a multiprocessor.

    ptxas uses the registers of the others to load early what is added to outputs; otherwise it has none left beside the
    ring, and loads those values behind the last chunk.
    """
    return _RESIDENT.sub(lambda found: f".minnctapersm {min(int(found[1]), most)}", head)


def _with_reserved_registers(head: str, count: int) -> str:
    """A head whose .maxnreg leaves `count` registers of a thread free when all its blocks are resident."""
    threads, blocks = _THREADS.search(head), _RESIDENT.search(head)
    if threads is None:
        raise MachineCodeError("the template lacks its number of threads")
    warps = -(-int(threads[1]) // (_WARP * _WARPS_TOGETHER)) * _WARPS_TOGETHER * (int(blocks[1]) if blocks else 1)
    each = min(_REGISTERS // (warps * _WARP) // _REGISTERS_TOGETHER * _REGISTERS_TOGETHER, _MOST_REGISTERS)
    if each - count < _LEAST_REGISTERS:
        raise MachineCodeError(f"{count} accumulators do not fit in {each} registers")
    return _THREADS.sub(rf"\g<0>\n.maxnreg {each - count}", _RESIDENT.sub("", head))


def _accumulator_loads(registers: tuple[str, ...]) -> list[str]:
    return [f"ld.volatile.shared.b32 {each},[%thread+{ACCUMULATORS + 4 * i}];" for i, each in enumerate(registers)]


def _epilogue(tail: Lines, accumulators: Accumulators, pointer: str, demand: Demand) -> Iterator[str]:
    """The epilogue behind the last marker; with reserved accumulators it loads each before its first use."""
    last = f"{pointer}+{LAST}"
    if not demand.reserved:
        yield f"ld.volatile.shared.f32 %one,[{last}]; mov.b32 %onebits,%one;"
        if accumulators.wide:
            yield from (_store(each, f"{pointer}+{ENDS + 4 * i}") for i, each in enumerate(accumulators.registers))
        for text, line in zip(tail.strings, tail.typed, strict=True):
            yield from waiting_for(text, line, "%one", "%onebits")
        return
    yield _store("0", last)
    missing = dict(zip(accumulators.pinned, _accumulator_loads(accumulators.pinned), strict=True))
    for text in tail.strings:
        yield from (missing.pop(each) for each in _NAME.findall(text) if each in missing)
        yield text


def _chunk(form: RolledForm, accumulators: Accumulators, markers: list[str], pointer: str) -> list[str]:
    """A turn of the loop with markers in place of its loads and multiply-adds.

    Code behind the multiply-adds that reads an accumulator reads the value loaded from AFTER instead.
    """
    taken = (form.weight_line, form.load_lines, form.input_lines, form.gate_lines, form.bound_lines)
    left = np.setdiff1d(np.arange(len(form.turn)), np.concatenate(taken)).tolist()
    end = form.turn.typed.index(Body("end"))
    before = [form.turn.strings[i] for i in left if i < end]
    names = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, accumulators.pinned))})(?!\w)")
    register = "%afterbits" if accumulators.packed else "%after"
    after = [names.sub(register, form.turn.strings[i]) for i in left if i > end and not _adds_packed(form.turn, i)]
    if not any(register in line for line in after):
        return [*before, *markers, *after]
    load = f"ld.volatile.shared.f32 %after,[{pointer}+{AFTER}]; mov.b32 %afterbits,%after;"
    return [*map(held_in_place, before), *markers, load, *after]


def _adds_packed(turn: Lines, line: int) -> bool:
    """Whether a line adds a packed accumulator to float32 ones: the assembler writes those words itself."""
    found = turn.typed[line]
    return isinstance(found, Accumulation) and bool(found.packed)


def _markers(pointers: list[str], accumulators: Accumulators, demand: Demand) -> Iterator[str]:
    """The markers of a chunk without those of the ring."""
    yield from _pointer_markers(pointers, 2 if demand.pairs_pointers else MARKED_TOGETHER)
    if demand.holds_accumulators:
        yield from (_store(each, f"{pointers[0]}+{HELD_ACCUMULATORS}") for each in accumulators.pinned)


def _store(register: str, address: str) -> str:
    return f"st.volatile.shared.b32 [{address}],{register};"


def _pointer_markers(pointers: list[str], together: int) -> Iterator[str]:
    address, *all_others = pointers
    for first in range(0, max(1, len(all_others)), together):
        others = all_others[first : first + together]
        data = (others + others)[: next(count for count in (1, 2, 4) if count >= len(others))] or ["0"]
        vector, names = (f".v{len(data)}", f"{{{','.join(data)}}}") if len(data) > 1 else ("", data[0])
        yield f"st.volatile.shared{vector}.u32 [{address}+{POINTERS}],{names};"


def _ring(words: int, width: int, source: str, target: str) -> tuple[list[str], list[str]]:
    """InputLoads of all its registers, and stores: in between they hold nothing else."""
    vector = f".v{width}" if width > 1 else ""
    loads, stores = [], []
    for first in range(0, words, width):
        names = ",".join(f"%ring{first + i}" for i in range(width))
        data = f"{{{names}}}" if width > 1 else names
        loads.append(f"ld.volatile.shared{vector}.f32 {data},[{source}+{RING + 4 * first}];")
        stores.append(f"st.volatile.shared{vector}.f32 [{target}+{RING + 4 * first}],{data};")
    return loads, stores
