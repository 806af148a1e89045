"""Which bits of each instruction the emulator understands: with any other bit set, it does not know the word."""

from __future__ import annotations

from typing import Final

from codegen.emulator.faults import UnsupportedError
from codegen.emulator.sass.state import Instruction
from codegen.sass.isa.opcodes import SHAPES

_SCHEDULING: Final = (105, 23)
"""Stalls, scoreboards, reuse: nothing that changes a result."""
_GUARD: Final = (0, 16)
_LOW_SIGN, _HIGH_SIGN, _A_SIGN = (62, 2), (74, 2), (72, 2)
_INPUT, _FIRST, _SECOND = (87, 4), (81, 3), (84, 3)
_UNIFORM: Final = (91, 1)
"""Set where the form of the opcode names a uniform register too."""
_SIZE, _OFFSET, _DESCRIPTOR = (73, 3), (40, 24), (91, 1)

_FIELDS: Final[dict[int, tuple[tuple[int, int], ...]]] = {
    0x02: (),
    0x03: (),
    0x05: ((72, 8), (80, 1)),
    0x07: (_INPUT,),
    0x08: (_INPUT, _A_SIGN, _LOW_SIGN),
    0x09: (_INPUT, _A_SIGN, _LOW_SIGN, (81, 1)),
    0x0B: (_INPUT, _FIRST, _SECOND, _A_SIGN, _LOW_SIGN, (74, 2), (76, 4)),
    0x0C: (_INPUT, _FIRST, _SECOND, (73, 1), (74, 2), (76, 3)),
    0x10: (_INPUT, _FIRST, _SECOND, (72, 1), (63, 1), (74, 2), (77, 4)),
    0x11: (_INPUT, _FIRST, (63, 1), (73, 1), (74, 1), (75, 5), (80, 1)),
    0x12: (_INPUT, _FIRST, (72, 8), (80, 1)),
    0x16: (),
    0x19: ((73, 2), (76, 1), (80, 1)),
    0x1C: (_INPUT, _FIRST, _SECOND, (16, 8), (64, 8), (72, 5), (77, 4)),
    0x20: (_A_SIGN, _LOW_SIGN, (77, 1)),
    0x21: (_A_SIGN, _LOW_SIGN, (77, 1)),
    0x23: (_A_SIGN, _LOW_SIGN, _HIGH_SIGN, (77, 1)),
    0x24: (_INPUT, (72, 1), (63, 1), (73, 1), (74, 2)),
    0x25: (_INPUT, (73, 1), (75, 1)),
    0x27: (_INPUT, (73, 1), (75, 1)),
    0x30: ((72, 1), (60, 2), (63, 1), (78, 1)),
    0x31: (_A_SIGN, _LOW_SIGN, (60, 2), (74, 2), (81, 4)),
    0x35: (_A_SIGN, _LOW_SIGN, (60, 2), (74, 2), (81, 4)),
    0x36: ((72, 1), (63, 1)),
    0x3E: (_A_SIGN, _LOW_SIGN, (76, 1)),
    0x46: (_INPUT,),
    0x48: (_INPUT,),
    0x82: (),
    0x8C: (_INPUT, _FIRST, _SECOND, (73, 1), (74, 2), (76, 3)),
    0x90: (_INPUT, _FIRST, _SECOND, (72, 1), (63, 1), (74, 2), (77, 4)),
    0x91: (_INPUT, _FIRST, (63, 1), (73, 1), (74, 1), (75, 5), (80, 1)),
    0x92: (_INPUT, _FIRST, (72, 8), (80, 1)),
    0x99: ((73, 2), (76, 1), (80, 1)),
    0xA4: (_INPUT, (72, 1), (63, 1), (73, 1), (74, 2)),
    0xA5: (_INPUT, (73, 1), (75, 1)),
    0xB9: ((38, 21), _SIZE),
    0x108: (_LOW_SIGN, (74, 4)),
    0x118: (),
    0x119: ((72, 8),),
    0x11A: ((38, 6), (44, 4)),
    0x11D: (),
    0x141: ((16, 4),),
    0x142: (_INPUT, (16, 4)),
    0x145: (_INPUT, (16, 4), (32, 32)),
    0x147: (_INPUT, (16, 8), (34, 48)),
    0x148: (_INPUT,),
    0x14D: (_INPUT,),
    0x155: ((24, 8), (84, 1)),
    0x156: ((24, 8), (32, 8)),
    0x180: ((32, 23), _SIZE, (72, 1)),
    0x181: ((32, 8), _OFFSET, _SIZE, _DESCRIPTOR),
    0x182: ((38, 21), _SIZE),
    0x183: (_OFFSET, _SIZE, (84, 3)),
    0x184: ((32, 8), _OFFSET, _SIZE, _DESCRIPTOR),
    0x186: ((32, 8), _OFFSET, (64, 6), _SIZE, _DESCRIPTOR),
    0x187: ((32, 8), _OFFSET, _SIZE, (84, 3)),
    0x188: ((32, 8), _OFFSET, (64, 6), _SIZE, _DESCRIPTOR),
    0x18F: (),
    0x192: (),
    0x1AB: (),
    0x1AE: (_INPUT, (32, 32), (64, 6), _SIZE, _DESCRIPTOR),
    0x1AF: (),
    0x1C3: ((72, 8),),
    0x1C7: (),
}
"""By the opcode without its form: first bit and number of bits of what its function reads beside its operands."""
_REST: Final[dict[int, tuple[int, ...]]] = {
    0x02: (0xF << 72,),
    0x0C: (0x7 << 68,),
    0x20: (0x4 << 84,),
    0x24: (0x7 << 81,),
    0x25: (0x7 << 81,),
    0x27: (0x7 << 81,),
    0x3E: (0xFF << 64,),
    0x46: (0x1 << 72,),
    0x48: (0x7E01 << 72,),
    0x8C: (0x7 << 68,),
    0xA4: (0x7 << 81,),
    0xA5: (0x7 << 81,),
    0x11D: (0x1 << 80,),
    0x141: (0x7 << 87,),
    0x180: (0x1 << 84,),
    0x181: (0x41E91 << 72,),
    0x186: (0x40011 << 72,),
    0x18F: (0x1 << 89 | 0xFF << 24,),
    0x192: (0xA << 76,),
    0x1C7: (0x1 << 91,),
    0x1AE: (0x12104 << 68, 0x10104 << 68),
}
"""What ptxas has in the other bits, where it is not zero: predicates that are the true one, hints for caches."""


def check_known(word: Instruction) -> None:
    """Raises UnsupportedError if the emulator does not know the instruction, or a bit that is set."""
    if word.kind not in _FIELDS:
        raise UnsupportedError("this emulator does not know the instruction")
    rest = unknown_bits(word)
    if rest not in _REST.get(word.kind, (0,)):
        raise UnsupportedError(f"bits of the instruction that this emulator does not know, {rest:#034x}")


def unknown_bits(word: Instruction) -> int:
    """The word without its operands and what else is known of it."""
    shape, form = SHAPES[word.kind], word.form()
    fields = [*_FIELDS[word.kind], _GUARD, _SCHEDULING]
    if shape.to or word.kind == 0x1AE:
        fields.append((16, 8))
    if shape.a:
        fields.append((24, 8))
    arithmetic = (word.kind < 0x100 and word.kind != 0xB9) or word.kind == 0x108
    if arithmetic:
        fields.append(_UNIFORM)
    if arithmetic and (shape.b or shape.c or word.kind == 0x03):
        fields += [(32, 32)] if form in (2, 4) else [(38, 21)] if form in (3, 5) else [(32, 8)]
        if shape.b and shape.c:
            fields.append((64, 8))
    known = 0
    for first, count in fields:
        known |= (1 << count) - 1 << first
    return word.bits & ~known
