"""Input transforms of a statement before its multiply-adds: clipping to bounds, or multiplying by gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codegen.ir.layer_spec import is_bounded, is_gated
from codegen.kernels.channel_gates import quads
from codegen.kernels.lowering import AnyTiled
from codegen.kernels.placeholders import immediate


def with_prepared_inputs(
    layer: AnyTiled, channels: Sequence[int], first: int, results: int, lines: list[str]
) -> list[str]:
    """The lines of a statement, after those that transform its inputs if the layer does that.

    The inputs are of these channels of a chunk, numbered from `first` on. The statement's operands are `results` sums,
    the inputs and, in gated layers, the address of the chunk's gates.
    """
    numbers = range(first, first + len(channels))
    registers = ",".join(prepared_input(number) for number in numbers)
    if is_bounded(layer.spec):
        bounding = [line for i, number in enumerate(numbers) for line in _bounding(number, f"%{results + i}")]
        return [f'"{{ .reg .pred p; .reg .f32 b,{registers};\\n"', *bounding, *lines, '"}\\n"']
    if is_gated(layer.spec):
        gates = ",".join(f"g{number}" for number in numbers)
        gating = _gating(layer, channels, first, results)
        return [f'"{{ .reg .b32 {registers},{gates};\\n"', *gating, *lines, '"}\\n"']
    return lines


def prepared_input(number: int) -> str:
    """The register of an input of the loop after its transform, by its number."""
    return f"x{number}"


def _bounding(number: int, source: str) -> Iterator[str]:
    """The lines that clip an input to the bounds of its channel."""
    x = prepared_input(number)
    yield f'"mov.f32 {x},{source};\\n"'
    for macro, side in (("NOT_BELOW", "low"), ("NOT_ABOVE", "high")):
        yield f'"mov.f32 b,{immediate(0)}; " {macro}("{x}") "// farm.{side} {number}\\n"'


def _gating(layer: AnyTiled, channels: Sequence[int], first: int, results: int) -> Iterator[str]:
    """The lines of a statement that load the gates of its inputs, from the number `first` on, and multiply by them.

    Its operands are `results` sums, the inputs, and the address of the chunk's gates.
    """
    for quad in quads(layer, channels):
        numbers = [first + channel - channels[0] for channel in quad]
        vector = f".v{len(quad)}" if len(quad) > 1 else ""
        names = ",".join(f"g{number}" for number in numbers)
        data = f"{{{names}}}" if vector else names
        place = f"[%{results + len(channels)}+{4 * quad[0]}]"
        yield f'"ld.shared{vector}.b32 {data},{place}; // farm.gates {numbers[0]} {len(quad)}\\n"'
    multiply = "mul.rn.f16x2" if layer.spec.data_type == "float16" else "mul.rn.f32"
    for i, _ in enumerate(channels):
        yield f'"{multiply} {prepared_input(first + i)},%{results + i},g{first + i};\\n"'
