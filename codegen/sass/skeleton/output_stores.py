"""Which stores of a K group, and which loads of what is added to them, belong to which sum of a row."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.isa import encoding
from codegen.sass.isa.encoding import Words

_STORE = re.compile(r"st\.global\.cs\.[fb]\d+ \[(%\w+)(?:\+(-?\d+))?\].*// farm\.store (\d+)$")
_RESIDUAL = re.compile(r"ld\.global\.nc\.[fb]\d+ \w+,\[(%\w+)(?:\+(-?\d+))?\].*// farm\.store (\d+)$")

Outputs = dict[int, int]
"""By bytes from the first that goes through a pointer: which sum of its row it belongs to."""


def stored(tail: list[str]) -> list[Outputs]:
    """What goes through each pointer that the epilogue stores through."""
    return _by_pointer(_STORE, tail)


def residuals(tail: list[str]) -> list[Outputs]:
    """The same of what is added to the outputs."""
    return _by_pointer(_RESIDUAL, tail)


def _by_pointer(pattern: re.Pattern[str], tail: list[str]) -> list[Outputs]:
    pointers: dict[str, Outputs] = defaultdict(dict)
    for line in tail:
        if match := pattern.search(line):
            pointers[match[1]][int(match[2] or 0)] = int(match[3])
    return [_from_first(outputs) for outputs in pointers.values()]


def _from_first(outputs: Outputs) -> Outputs:
    first = min(outputs)
    return {offset - first: number for offset, number in outputs.items()}


def accesses_of(
    words: Words, accesses: NDArray[np.int64], pointers: list[Outputs], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Those of the words `accesses` that belong to sums of these numbers.

    Raises MachineCodeError where that cannot be told: it takes the same outputs through every pointer, since which
    register has which pointer is not known.
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
        told &= set(place) == set(pointers[0]) and len(place) == len(of)
        found += [each for offset, each in place.items() if pointers[0].get(offset) in numbers]
    if not told:
        raise MachineCodeError("the last K group has fewer output channels, and which store is whose cannot be told")
    return np.array(found, dtype=np.int64)
