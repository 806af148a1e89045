"""The choice among a layer's kernels by the number of images; `group_for` in `farm/runtime/c/farm.c` is the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Protocol, TypeVar


class ForRows(Protocol):
    """A kernel of a layer that is meant for some numbers of images."""

    @property
    def most_rows(self) -> int:
        """Largest number of images, or of rows of a linear layer, that it is meant for."""


K = TypeVar("K", bound=ForRows)


def row_groups(kernels: Iterable[K]) -> tuple[tuple[K, ...], ...]:
    """Kernels in groups that each compute the whole layer, the group for the fewest images first."""
    ascending = sorted(kernels, key=lambda each: each.most_rows)
    return tuple(tuple(group) for _, group in groupby(ascending, key=lambda each: each.most_rows))


def group_for(groups: Sequence[Sequence[K]], rows: int) -> Sequence[K]:
    """The group that runs a number of images or rows: the first that is meant for as many, else the last."""
    return next((group for group in groups if rows <= group[0].most_rows), groups[-1])
