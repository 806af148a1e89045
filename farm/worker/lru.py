"""The last few values used, by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

SHAPES = 64
"""As many layers of different shapes as a network has: each checkpoint of a sweep comes back to them. A template, read,
takes about half a megabyte, an assembler a third.
"""
Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Keeps `size` values; the one that was not used for longest goes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of the key, made if it is not here; what `make` raises goes through."""
        if key not in self._values:
            self._values[key] = make()
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]
