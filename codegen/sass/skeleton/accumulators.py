"""The sums of a template: the registers that its multiply-adds add to and, of float16, where those are added up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from codegen.errors import MachineCodeError
from codegen.kernels import AnyTiled
from codegen.kernels.weight_stream import slots
from codegen.ptx.template import Lines, RolledForm

_FMA = re.compile(r"^fma\.rn\.f32 (%f\d+),(%f\d+|x\d+),0f[0-9A-F]{8},\1;$")
_PACKED_FMA = re.compile(r"^mov\.b32 w,0x[0-9A-F]{8}; fma\.rn\.f16x2 (%r\d+),(%r\d+),w,\1;$")
_ACCUMULATE = re.compile(
    r"^\{.*mov\.b32 \{l,h\},(%r\d+);.*add\.rn\.f32 (%f\d+),\2,a; add\.rn\.f32 (%f\d+),\3,b;"
    r".*\} // farm\.accumulate \d+ \d+$"
)
_BIAS = re.compile(r"^add\.rn\.f32 (%f\d+),\1,(0f[0-9A-F]{8}); // farm\.bias \d+$")
_WORD_BYTES = 4


@dataclass(frozen=True)
class Sums:
    """The sums of a thread, in order of their numbers: thread row times sums of a row, plus the number in the row."""

    packed: bool
    """Whether each has those of two outputs, in float16."""
    registers: tuple[str, ...]
    """That the multiply-adds of a chunk add to."""
    in_row: tuple[int, ...]
    """Which sum of its row each is: those of one number have the same bias."""
    wide: tuple[tuple[str, str], ...]
    """Of packed ones that are added to float32 ones from chunk to chunk, these: lower half, upper half. Else none."""
    exchanged_bytes: int = 0
    """Where the blocks of a cluster add up each other's sums: how far apart a thread stores them. Else 0."""
    finished: int = 0
    """Sums that a thread has a bias for, and stores."""

    @staticmethod
    def of(layer: AnyTiled, form: RolledForm) -> Sums:
        """Raises MachineCodeError if the template is otherwise than the assembler knows."""
        turn, found = texts(form.turn), form.sum_of_slot
        registers = dict(zip(slots(layer).sums.tolist(), found, strict=True))
        numbers = sorted(registers)
        if len(set(found)) != len(numbers) or numbers != list(range(layer.tiling.rows * layer.sums)):
            raise MachineCodeError("a sum of the template is not one register")
        wide = dict(each for i in form.accumulate_lines.tolist() if (each := _accumulated(turn[i])))
        if wide and set(wide) != set(registers.values()):
            raise MachineCodeError("not every packed sum is added to one of float32")
        return Sums(
            packed=layer.spec.data_type == "float16",
            registers=tuple(registers[number] for number in numbers),
            in_row=tuple(number % layer.sums for number in numbers),
            wide=tuple(wide[registers[number]] for number in numbers) if wide else (),
            exchanged_bytes=_WORD_BYTES * layer.threads if layer.tiling.cluster > 1 else 0,
            finished=len(form.bias_lines),
        )

    @cached_property
    def pinned(self) -> tuple[str, ...]:
        """All registers that must stay what they are from chunk to chunk."""
        return self.registers + tuple(register for pair in self.wide for register in pair)

    def ending(self, line: str, one: str, one_bits: str) -> list[str]:
        """A line of the epilogue, so that it waits for the load of a one: as it is, if nothing of a sum is in it.

        A packed sum goes through a register that depends on the one, a bias is multiplied with it.
        """
        if match := _BIAS.match(line):
            return [f"fma.rn.f32 {match[1]},{match[1]},{one},{match[2]};"]
        if match := _ACCUMULATE.match(line):
            return [f"xor.b32 {match[1]},{match[1]},{one_bits};", line]
        return [line]


def texts(lines: Lines) -> list[str]:
    """As strings."""
    return lines.text.tobytes().decode("ascii").splitlines()


def multiply_add(line: str) -> tuple[str, str]:
    """Sum and multiplicand of a multiply-add. Raises MachineCodeError if it is none."""
    if (match := _FMA.match(line) or _PACKED_FMA.match(line)) is None:
        raise MachineCodeError(f"the multiply-add '{line}'")
    return match[1], match[2]


def is_accumulation(line: str) -> bool:
    """Whether it adds a packed sum to those of float32."""
    return _accumulated(line) is not None


def _accumulated(line: str) -> tuple[str, tuple[str, str]] | None:
    match = _ACCUMULATE.match(line)
    return None if match is None else (match[1], (match[2], match[3]))
