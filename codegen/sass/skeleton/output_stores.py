"""Stores of a K group's outputs, and loads of what is added to them, by the number of the accumulator in its row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.ptx.template_lines import Address, Line, Store
from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import Words

Outputs = dict[int, int]
"""The accumulator's number in its row, by bytes from the first access through one pointer."""


def stored(tail: list[Line | None]) -> list[Outputs]:
    """The outputs that an epilogue stores, by pointer."""
    return _by_pointer((line.output, line.number) for line in tail if isinstance(line, Store))


def residuals(tail: list[Line | None]) -> list[Outputs]:
    """The values that an epilogue loads and adds to outputs, by pointer."""
    return _by_pointer((line.residual, line.number) for line in tail if isinstance(line, Store))


def _by_pointer(accesses: Iterable[tuple[Address | None, int]]) -> list[Outputs]:
    pointers: dict[str, Outputs] = defaultdict(dict)
    for address, number in accesses:
        if address:
            pointers[address.pointer][address.offset] = number
    return [_from_first(outputs) for outputs in pointers.values()]


def _from_first(outputs: Outputs) -> Outputs:
    first = min(outputs)
    return {offset - first: number for offset, number in outputs.items()}


def accesses_of(
    words: Words, accesses: NDArray[np.int64], pointers: list[Outputs], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The words among `accesses` that belong to accumulators of these numbers.

    Raises MachineCodeError where that cannot be told. Which register holds which pointer is not known, so every
    pointer must have the same outputs. A half outside the map is never stored: ptxas leaves out those of all outputs.
    """
    offsets, addresses = encoding.OFFSET.get(words[accesses]), encoding.SOURCE_A.get(words[accesses])
    offsets = offsets - ((offsets >> 23) << 24)
    found: list[int] = []
    registers = sorted(set(addresses.tolist()))
    told = len(registers) == len(pointers) and all(each == pointers[0] for each in pointers)
    for register in registers if told else ():
        of = accesses[addresses == register]
        place = dict(
            zip(
                (offsets[addresses == register] - offsets[addresses == register].min()).tolist(),
                of.tolist(),
                strict=True,
            )
        )
        counts = Counter(map(pointers[0].get, place))
        told &= counts.keys() == set(pointers[0].values()) and len(set(counts.values())) == 1 and len(place) == len(of)
        found += [each for offset, each in place.items() if pointers[0].get(offset) in numbers]
    if not told:
        raise MachineCodeError("the last K group has fewer output channels: their stores cannot be told apart")
    return np.array(found, dtype=np.int64)
