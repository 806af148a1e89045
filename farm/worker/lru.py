"""A cache in memory that evicts the least recently used value."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

DISTINCT_SHAPES = 128
"""Layers of different shape and architecture in a large network: each checkpoint of a sweep uses all of them again.

A parsed template takes about half a megabyte, an assembler a third.
"""
Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Up to `size` values by key; the least recently used one is evicted first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made and kept on a miss. Raises what `make` raises."""
        if key not in self._values:
            self._values[key] = make()
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]

    def values(self) -> Collection[Value]:
        """All values that are kept."""
        return self._values.values()
