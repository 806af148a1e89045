"""Facts that distinguish the machine code of one architecture from that of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codegen.sass.isa.latencies import Latencies
from codegen.sass.isa.opcodes import FORM_SHIFT, KIND_MASK, Opcode
from codegen.sass.isa.published_latencies import PublishedLatencies


@dataclass(frozen=True)
class ConstantPlaces:
    """Offsets in constant bank 0."""

    block: int = 0x0
    grid: int = 0xC
    stack_pointer: int = 0x28
    descriptor: int = 0x208
    """Descriptor of global memory."""


@dataclass(frozen=True)
class CopyBits:
    """Bits of LDGSTS."""

    address: int = 70
    """Set where the address has 64 bits."""
    size: int = 73
    """The first of two bits, how often 4 bytes are doubled."""


@dataclass(frozen=True)
class LoadBits:
    """Bits of LDG and LDS."""

    read_only: int = 2
    """Order of a load from memory that nobody writes, LDG.CONSTANT."""
    shared: int = 0
    """The upper half of each LDS of ptxas."""


Interval = tuple[frozenset[str], frozenset[str], int]
"""Names of instructions that keep a pipe busy, names of those that wait for it, and the least cycles between two."""


def pipe(cycles: int, *names: str) -> Interval:
    """The interval of a pipe that is slower than the issue of words, whatever is in it."""
    return frozenset(names), frozenset(names), cycles


@dataclass(frozen=True, eq=False)
class Architecture:
    """Facts about the words of an architecture, for whoever writes, checks or emulates them."""

    capability: int
    """90 for sm_90."""
    opcodes: Mapping[int, Opcode]
    """By the lower nine bits of the opcode, or by all twelve, which come first."""
    latencies: Latencies
    """Least cycles that ptxas leaves, by its cubins."""
    published: PublishedLatencies
    """NVIDIA's figures; the hazard checker takes the larger of both."""
    intervals: tuple[Interval, ...] = ()
    kept_intervals: tuple[Interval, ...] = ()
    """Intervals that ptxas nearly always keeps, but not always: the assembler keeps them, the checker accepts less."""
    matrix_halves: bool = True
    """Whether the tensor cores' unit has packed float16 multiply-adds, HFMA2.MMA."""
    barriers_drain: bool = False
    """Whether a warp passes BAR only after its memory accesses have read their operands."""
    descriptors: bool = True
    """Whether the uniform registers of an access to global memory hold a descriptor, not a summand of the address."""
    branch_pieces: int = 2
    """Pieces of a word that hold the distance of a BRA."""
    constants: ConstantPlaces = ConstantPlaces()
    copies: CopyBits = CopyBits()
    loads: LoadBits = LoadBits()
    shared_base: int = 1024
    """Address of the first byte of a block's own shared memory."""
    shared_kib: int = 228
    """Shared memory of a multiprocessor."""

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"

    def writes_like(self, other: Architecture) -> bool:
        """Whether both have all facts but their numbers in common, so that one's code is the other's too."""
        mine, theirs = (vars(each) | {"capability": 0} for each in (self, other))
        return mine == theirs

    def opcode(self, number: int) -> Opcode | None:
        """The facts of an opcode of twelve bits; None if it is unknown."""
        form, known = number >> FORM_SHIFT, self.opcodes.get(number) or self.opcodes.get(number & KIND_MASK)
        return known if known and form and (not known.forms or form in known.forms) else None
