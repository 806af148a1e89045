"""The PTX of a skeleton: a template with markers where its loads and multiply-adds were, for one K group.

The loop is unrolled as the rewriter does it. ptxas must keep the markers, since they are volatile, and in order; what
they name tells which registers hold what. Their addresses are beyond all shared memory: none is ever run.

    head            the number of the first K group is loaded from FIRST_GROUP
    branch          to `other`, on a K group that no layer has: the tree of the K groups comes here
    loads           of every sum, from SUMS on
    each chunk      wait, barrier, next copies; then loads of the ring, the registers that inputs come into, a store
                    that names every pointer that the chunk's loads went through, and stores of the ring
    load            from LAST: no bias is added before the last chunk
    epilogue        bias placeholders added, steps, stores
    other           a store of the K group's number: its register is still there at the branch
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.operators import tiled
from codegen.operators.placeholders import FIRST_BIAS
from codegen.operators.stream import slots
from codegen.spec import is_bounded
from codegen.template import Lines, Template

POINTERS = 0x600000
MOST_POINTERS = 5
"""The first is the store's address, the others its data: up to four registers."""
REACH = 0x40000
"""An address may be so far from its marker's: whatever lies in shared memory is nearer."""
SUMS = 0x700000
FIRST_GROUP = 0x710000
RING = 0x680000
LAST = 0x780000
HELD_SUMS = 0x580000
RINGS = {1: (16, 8), 2: (16, 8), 4: (32, 16)}
"""How many registers inputs may be loaded into, in turn, by the words of the widest load."""
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


DEMANDS = (Demand(), Demand(holds_sums=True), Demand(1, holds_sums=True))
"""In turn, until nothing is moved to local memory."""
_LOAD = re.compile(r"^ld\.shared(?:\.v([24]))?\.[fub]32\s+(%[fr]\d+|\{[^}]*\}),\s*\[(%\w+)(?:\+(-?\d+))?\];$")
_FMA = re.compile(r"^fma\.rn\.f32 (%f\d+),(%f\d+),")
_BIAS = re.compile(r"^add\.rn\.f32 (%f\d+),\1,(0f[0-9A-F]{8}); // farm\.bias (\d+)$")
_FIRST_GROUP = re.compile(r"^mov\.u32 (%r\d+),0; // farm\.first_group$", re.MULTILINE)
_STORE = re.compile(r"st\.global\.cs\.f32 \[%\w+(?:\+(-?\d+))?\].*// farm\.store (\d+)$")
_BODY_END = "// farm.body.end"


@dataclass(frozen=True, eq=False)
class Marked:
    """A template as the assembler sees it: its multiply-adds and loads in numbers, the rest as a skeleton's PTX."""

    ptx: str
    chunks: int
    sums: tuple[int, ...]
    """Numbers of the sums, in the order of their markers: thread row times sums of a row, plus sum."""
    pointers: int
    order: NDArray[np.int64]
    """[slots]: the slots in the order of their lines, which is the order of the multiply-adds of each sum."""
    slot_sum: NDArray[np.int64]
    """[slots]: an index into `sums`."""
    slot_load: NDArray[np.int64]
    slot_element: NDArray[np.int64]
    """[slots]: which word of the load is multiplied."""
    load_pointer: NDArray[np.int64]
    load_offset: NDArray[np.int64]
    """[loads]: bytes from the pointer."""
    load_words: NDArray[np.int64]
    sums_per_row: int
    store_offsets: NDArray[np.int64]
    """[sums]: bytes from where the outputs of a thread begin."""
    ring_width: int
    """Words of the widest load: each place of the ring has so many registers."""

    def bias_bits(self, sum_index: int) -> int:
        """The placeholder that is added to a sum."""
        return FIRST_BIAS + self.sums[sum_index] % self.sums_per_row

    @staticmethod
    def of(template: Template, demand: Demand = DEMANDS[0]) -> Marked:
        """Raises MachineCodeError for what the assembler does not do, with the reason."""
        spec, tiling = template.spec, template.tiling
        if tiling.form != "rolled":
            raise MachineCodeError("a template of the full form")
        if spec.data_type != "float32":
            raise MachineCodeError(f"{spec.data_type} multiply-adds")
        if is_bounded(spec):
            raise MachineCodeError("bounds of inputs")
        form, layer = template.rolled, tiled(spec, tiling)
        turn, tail = _texts(form.turn), _texts(form.tail)
        loads = [_load(turn[line]) for line in form.load_lines.tolist()]
        pointers = list(dict.fromkeys(pointer for _, pointer, _ in loads))
        if len(pointers) > MOST_POINTERS:
            raise MachineCodeError(f"{len(pointers)} pointers into shared memory")
        numbers = slots(layer).sums
        operands = [_operands(turn[line]) for line in form.weight_line.tolist()]
        registers = dict(zip(numbers.tolist(), (total for total, _ in operands), strict=True))
        sums = tuple(sorted(registers))
        element = {register: i for names, _, _ in loads for i, register in enumerate(names)}
        taken = {*form.weight_line.tolist(), *form.load_lines.tolist()}
        width = max(len(names) for names, _, _ in loads)
        ring_words = RINGS[width][demand.ring]
        body: list[str] = []
        for i, line in enumerate(turn):
            if i not in taken:
                body.append(line)
            if line == _BODY_END:
                ring_loads, ring_stores = _ring(ring_words, width, pointers[0])
                held = [registers[n] for n in sums] if demand.holds_sums else []
                at = f"{pointers[0]}+{HELD_SUMS}"
                body += [*ring_loads, _pointer_marker(pointers)]
                body += [f"st.volatile.shared.f32 [{at}],{register};" for register in held] + ring_stores
        group = form.group_register
        lines = [
            f".reg .pred %other; .reg .f32 %one, %ring<{ring_words}>;",
            f"setp.ge.u32 %other,{group},{NO_GROUP}; @%other bra $other;",
            *(f"ld.volatile.shared.f32 {registers[n]},[%thread+{SUMS + 4 * i}];" for i, n in enumerate(sums)),
            *body * layer.streams.chunks,
            f"ld.volatile.shared.f32 %one,[{pointers[0]}+{LAST}];",
            *map(_held_back, tail),
            f"$other: st.volatile.shared.u32 [%thread+{LAST}],{group}; ret;",
            "}",
        ]
        head = _FIRST_GROUP.sub(
            rf".reg .u32 %thread; mov.u32 %thread,%tid.x; ld.volatile.shared.u32 \1,[%thread+{FIRST_GROUP}];", form.head
        )
        return Marked(
            ptx=head + "\n".join(lines) + "\n",
            chunks=layer.streams.chunks,
            sums=sums,
            pointers=len(pointers),
            order=np.argsort(form.weight_line, kind="stable"),
            slot_sum=np.searchsorted(sums, numbers),
            slot_load=form.load_of_slot,
            slot_element=np.array([element[multiplicand] for _, multiplicand in operands], dtype=np.int64),
            load_pointer=np.array([pointers.index(pointer) for _, pointer, _ in loads], dtype=np.int64),
            load_offset=np.array([offset for _, _, offset in loads], dtype=np.int64),
            load_words=np.array([len(names) for names, _, _ in loads], dtype=np.int64),
            sums_per_row=layer.sums,
            store_offsets=_store_offsets(tail, sums, layer.sums),
            ring_width=width,
        )


def _texts(lines: Lines) -> list[str]:
    return lines.text.tobytes().decode("ascii").splitlines()


def _load(line: str) -> tuple[list[str], str, int]:
    """The registers, pointer and offset of a load."""
    if (match := _LOAD.match(line)) is None:
        raise MachineCodeError(f"the load '{line}'")
    return re.findall(r"%[fr]\d+", match[2]), match[3], int(match[4] or 0)


def _operands(line: str) -> tuple[str, str]:
    """Sum and multiplicand of a multiply-add."""
    if (match := _FMA.match(line)) is None:
        raise MachineCodeError(f"the multiply-add '{line}'")
    return match[1], match[2]


def _pointer_marker(pointers: list[str]) -> str:
    address, *others = pointers
    data = (others + others)[: next(count for count in (1, 2, 4) if count >= len(others))] or ["0"]
    vector, names = (f".v{len(data)}", f"{{{','.join(data)}}}") if len(data) > 1 else ("", data[0])
    return f"st.volatile.shared{vector}.u32 [{address}+{POINTERS}],{names};"


def _ring(words: int, width: int, pointer: str) -> tuple[list[str], list[str]]:
    """Loads of all its registers, then stores: in between they hold nothing else."""
    vector = f".v{width}" if width > 1 else ""
    loads, stores = [], []
    for first in range(0, words, width):
        names = ",".join(f"%ring{first + i}" for i in range(width))
        data = f"{{{names}}}" if width > 1 else names
        place = f"[{pointer}+{RING + 4 * first}]"
        loads.append(f"ld.volatile.shared{vector}.f32 {data},{place};")
        stores.append(f"st.volatile.shared{vector}.f32 {place},{data};")
    return loads, stores


def _store_offsets(tail: list[str], sums: tuple[int, ...], sums_per_row: int) -> NDArray[np.int64]:
    """[sums]: where each is stored. The rows of a sum are stored in order."""
    rows = [0] * sums_per_row
    offsets: dict[int, int] = {}
    for line in tail:
        if match := _STORE.search(line):
            number = int(match[2])
            offsets[rows[number] * sums_per_row + number] = int(match[1] or 0)
            rows[number] += 1
    if sorted(offsets) != list(sums):
        raise MachineCodeError("a sum is not stored once")
    return np.array([offsets[number] for number in sums], dtype=np.int64)


def _held_back(line: str) -> str:
    """A line of the epilogue; a bias is added in a way that waits for the load before it."""
    match = _BIAS.match(line)
    return f"fma.rn.f32 {match[1]},{match[1]},%one,{match[2]};" if match else line
