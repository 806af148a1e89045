"""Candidates on their way: so many begun that every builder has one to go on with, those of later layers too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol

from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Accumulator, Tiling
from codegen.sass.qualification import Assembler
from farm.cuda.measure.kernels import BuiltLayer
from farm.cuda.measure.workload import Case

ALIKE = 3
"""Tilings with the same tile, rows, images and K groups that are tried before others, unless they are the fastest."""


class Builder(Protocol):
    """Builds kernels beside the search: a KernelPool."""

    @property
    def workers(self) -> int:
        """Builds at once."""

    def assembler_of(self, spec: LayerSpec, tiling: Tiling) -> Assembler:
        """Who makes a layer's machine code."""

    def submit(
        self,
        case: Case,
        accumulate: Accumulator,
        tiling: Tiling | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Future[BuiltLayer]:
        """Begins a layer, which may end without a result once it is not wanted. Its future raises NotBuiltError."""


class Building:
    """One layer's candidates, the best predicted first."""

    def __init__(
        self, case: Case, builder: Builder, tilings: Sequence[Tiling], accumulate: Accumulator, most: int | None
    ) -> None:
        """`most` is how many of the tilings are built; None: all."""
        self.case = case
        self._builder = builder
        self.first = tilings[0]
        self._left = list(tilings)
        self._room = len(tilings) if most is None else most
        self._accumulate = accumulate
        self._begun: dict[Future[BuiltLayer], Tiling] = {}
        self._wanted = True
        self._later: Sequence[Building] = ()

    def before(self, later: Sequence[Building]) -> None:
        """These are built once nothing of this one is left to begin."""
        self._later = later

    def favour(self, tiling: Tiling) -> None:
        """What is nearly like this one comes next."""
        self._left.sort(key=lambda other: _alike(other) != _alike(tiling))

    def as_built(self, late: Callable[[], bool]) -> Iterator[tuple[Tiling, Future[BuiltLayer]]]:
        """Each as it is built, whatever came of it; when it is late, only the first one is still waited for."""
        try:
            if not self._begun:
                self._begin(1)
            while True:
                if late():
                    self._drop()
                else:
                    self._fill()
                if not self._begun:
                    return
                done, _ = wait(self._begun, return_when=FIRST_COMPLETED)
                # The best predicted first: time may be up before all have been measured.
                for future in [each for each in self._begun if each in done]:
                    tiling = self._begun.pop(future)
                    if tiling == self.first or not late():
                        yield tiling, future
        finally:
            self.give_up()

    def give_up(self) -> None:
        """What was begun and not taken is not wanted any more."""
        self._wanted = False
        for future in self._begun:
            future.cancel()

    def _fill(self) -> None:
        """Two for each builder are under way, of this layer while it has any."""
        free = 2 * self._builder.workers - len(self._begun)
        free -= sum(each.under_way for each in self._later)
        for building in (self, *self._later):
            free -= building._begin(free)

    @property
    def under_way(self) -> int:
        """Begun and not built yet."""
        return sum(not future.done() for future in self._begun)

    def _begin(self, count: int) -> int:
        count = min(max(0, count), self._room, len(self._left))
        next_ones, self._left = self._left[:count], self._left[count:]
        self._room -= count
        for tiling in next_ones:
            future = self._builder.submit(self.case, self._accumulate, tiling, lambda: self._wanted)
            self._begun[future] = tiling
        return count

    def _drop(self) -> None:
        """What runs already ends after its kernel at hand, which is in the store for the next time."""
        for future in [each for each, tiling in self._begun.items() if tiling != self.first]:
            future.cancel()
            del self._begun[future]


def spread(tilings: Sequence[Tiling]) -> list[Tiling]:
    """The same tilings in the same order, but of those nearly alike only a few at first, the others after all."""
    seen: dict[tuple[int, ...], int] = {}
    first: list[Tiling] = []
    later: list[Tiling] = []
    for tiling in tilings:
        kind = _alike(tiling)
        seen[kind] = seen.get(kind, 0) + 1
        (first if seen[kind] <= ALIKE else later).append(tiling)
    return first + later


def _alike(tiling: Tiling) -> tuple[int, ...]:
    """The same for tilings that are nearly alike."""
    return tiling.tile_width, tiling.tile_height, tiling.rows, tiling.images, tiling.group_outputs, tiling.cluster
