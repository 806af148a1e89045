"""Accumulators of a template: the registers its multiply-adds add to and, of float16, the float32 ones behind them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from codegen.errors import MachineCodeError
from codegen.kernels import AnyTiled
from codegen.kernels.placeholders import immediate
from codegen.kernels.weight_stream import slots
from codegen.ptx.template import RolledForm
from codegen.ptx.template_lines import Accumulation, Bias, Line

_WORD_BYTES = 4


@dataclass(frozen=True)
class Accumulators:
    """The accumulators of a thread, in order of their numbers: thread row times accumulators of a row, plus number."""

    packed: bool
    """Whether each holds two float16 outputs."""
    registers: tuple[str, ...]
    """The registers that the multiply-adds of a chunk add to."""
    in_row: tuple[int, ...]
    """The number of each in its row: those of one number have the same bias."""
    wide: tuple[tuple[str, str], ...]
    """The float32 accumulators, lower and upper half, that each packed one is added to; empty without such."""
    exchanged_bytes: int = 0
    """Distance of a thread's accumulators where the blocks of a cluster exchange them; 0 where they do not.

    Large blocks of a cluster exchange biased outputs instead.
    """
    finished: int = 0
    """Number of outputs that a thread adds a bias to and stores."""

    @staticmethod
    def of(layer: AnyTiled, form: RolledForm) -> Accumulators:
        """Reads them from a template. Raises MachineCodeError for a template that the assembler does not support."""
        found = form.accumulator_of_slot
        registers = dict(zip(slots(layer).sums.tolist(), found, strict=True))
        numbers = sorted(registers)
        if len(set(found)) != len(numbers) or numbers != list(range(layer.tiling.rows * layer.sums)):
            raise MachineCodeError("an accumulator of the template is not one register")
        added = [line for line in form.turn.typed if isinstance(line, Accumulation) and line.packed]
        wide = {line.packed: line.wide for line in added}
        if wide and set(wide) != set(registers.values()):
            raise MachineCodeError("not every packed accumulator is added to float32 ones")
        exchanged = layer.tiling.cluster > 1 and not layer.tiling.is_large
        return Accumulators(
            packed=layer.spec.data_type == "float16",
            registers=tuple(registers[number] for number in numbers),
            in_row=tuple(number % layer.sums for number in numbers),
            wide=tuple(wide[registers[number]] for number in numbers) if wide else (),
            exchanged_bytes=_WORD_BYTES * layer.threads if exchanged else 0,
            finished=len(form.bias_lines),
        )

    @cached_property
    def pinned(self) -> tuple[str, ...]:
        """All registers that keep their values from chunk to chunk."""
        return self.registers + tuple(register for pair in self.wide for register in pair)


def waiting_for(text: str, line: Line | None, one: str, one_bits: str) -> list[str]:
    """A line of the epilogue that cannot come before the load of `one`, if it uses an accumulator.

    A bias is multiplied by the one; a packed accumulator is XORed with its bits.
    """
    match line:
        case Bias():
            return [f"fma.rn.f32 {line.register},{line.register},{one},{immediate(line.bits)};"]
        case Accumulation() if line.packed:
            return [f"xor.b32 {line.packed},{line.packed},{one_bits};", text]
        case _:
            return [text]
