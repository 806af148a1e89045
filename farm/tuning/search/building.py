"""Builds of candidates ahead of their measurement, including those of later layers."""

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
"""Most tilings of equal tile, rows, images and K groups measured before others, unless they lead."""


class Builder(Protocol):
    """Builds kernels in the background, as KernelPool does."""

    @property
    def workers(self) -> int:
        """Concurrent builds."""

    def assembler_of(self, spec: LayerSpec, tiling: Tiling) -> Assembler:
        """The assembler of a layer."""

    def submit(
        self,
        case: Case,
        accumulate: Accumulator,
        tiling: Tiling | None = None,
        wanted: Callable[[], bool] = lambda: True,
        *,
        fallback: bool = True,
    ) -> Future[BuiltLayer]:
        """Queues a build, which may be dropped once `wanted` is false. Its future raises NotBuiltError.

        Without `fallback`, ptxas does not build what the assembler refuses.
        """


class Building:
    """Builds of one layer's candidates, the best predicted first."""

    def __init__(
        self, case: Case, builder: Builder, tilings: Sequence[Tiling], accumulate: Accumulator, most: int | None
    ) -> None:
        """`most` limits the number of builds; None: no limit."""
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
        """Sets the layers whose builds are queued once all of this one are."""
        self._later = later

    def favour(self, tiling: Tiling) -> None:
        """Moves tilings similar to this one to the front."""
        self._left.sort(key=lambda other: _alike(other) != _alike(tiling))

    def as_built(self, late: Callable[[], bool]) -> Iterator[tuple[Tiling, Future[BuiltLayer]]]:
        """Yields each ended build; once `late`, only the first candidate is still waited for."""
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
                # In predicted order: time may be up before all are measured.
                for future in [each for each in self._begun if each in done]:
                    tiling = self._begun.pop(future)
                    if tiling == self.first or not late():
                        yield tiling, future
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Drops the builds that were not yielded."""
        self._wanted = False
        for future in self._begun:
            future.cancel()

    def _fill(self) -> None:
        """Keeps two builds per worker queued, of this layer while it has any."""
        free = 2 * self._builder.workers - len(self._begun)
        free -= sum(each.under_way for each in self._later)
        for building in (self, *self._later):
            free -= building._begin(free)

    @property
    def under_way(self) -> int:
        """Queued builds that have not ended."""
        return sum(not future.done() for future in self._begun)

    def _begin(self, count: int) -> int:
        count = min(max(0, count), self._room, len(self._left))
        next_ones, self._left = self._left[:count], self._left[count:]
        self._room -= count
        for tiling in next_ones:
            # Only the first is worth minutes of ptxas, which would keep other candidates waiting.
            future = self._builder.submit(
                self.case, self._accumulate, tiling, lambda: self._wanted, fallback=tiling == self.first
            )
            self._begun[future] = tiling
        return count

    def _drop(self) -> None:
        """Drops all builds but the first candidate's; a running one stops after its current kernel, which is cached."""
        for future in [each for each, tiling in self._begun.items() if tiling != self.first]:
            future.cancel()
            del self._begun[future]


def spread(tilings: Sequence[Tiling]) -> list[Tiling]:
    """Tilings in order, with at most ALIKE similar ones before the rest."""
    seen: dict[tuple[int, ...], int] = {}
    first: list[Tiling] = []
    later: list[Tiling] = []
    for tiling in tilings:
        kind = _alike(tiling)
        seen[kind] = seen.get(kind, 0) + 1
        (first if seen[kind] <= ALIKE else later).append(tiling)
    return first + later


def _alike(tiling: Tiling) -> tuple[int, ...]:
    """Value that is equal for similar tilings."""
    tile = tiling.tile_width, tiling.tile_height, tiling.rows, tiling.images
    return *tile, tiling.group_outputs, tiling.block_groups, tiling.cluster
