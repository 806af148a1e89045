"""Cache of the cost model's rankings in the store: ranking a layer evaluates thousands of tilings."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from codegen.ir.tiling import Tiling
from codegen.keys import RankingKey, ranking_key
from codegen.selection.question import RankingQuestion
from codegen.selection.ranking import ranking_of
from farm.errors import StoreError
from farm.store.contract import Record, Store

RANKING_STAGE = "ranking"
FIRST = 32
"""Cached tilings per ranking. In five networks the first tiling that fits a layer's weights is the thirteenth at most;
if none of the cached ones fits, the whole ranking is computed again."""


@dataclass(frozen=True)
class _Head:
    """The first tilings of a ranking."""

    tilings: tuple[Tiling, ...]
    count: int
    """Length of the whole ranking."""


class KeptRankings:
    """A `codegen.selection.ranking.Ranking` cached in the store.

    A ranking depends on a shape and on bands of batch and density, not on weights: the checkpoints of a sweep share it.
    It does not include tuning records, so a new record takes effect at once.
    """

    def __init__(self, store: Store, *, namespace: str = "", writes: bool = True, recache: bool = False) -> None:
        self._store = store
        self._namespace = namespace
        self._writes = writes
        self._recache = recache
        self._heads: dict[RankingKey, _Head] = {}

    def __call__(self, question: RankingQuestion) -> Iterator[Tiling]:
        """The ranking; tilings after the cached ones are computed on demand."""
        key = ranking_key(question)
        if (head := self._heads.get(key) or self._found(key)) is None:
            ranking = ranking_of(question)
            head = _Head(ranking[:FIRST], len(ranking))
            self._keep(key, head)
        self._heads[key] = head
        yield from head.tilings
        if len(head.tilings) < head.count:
            yield from ranking_of(question)[len(head.tilings) :]

    def _found(self, key: RankingKey) -> _Head | None:
        record = None if self._recache else self._store.get_record(RANKING_STAGE, key.digest)
        return None if record is None else _head_of(record)

    def _keep(self, key: RankingKey, head: _Head) -> None:
        if not self._writes:
            return
        tilings, count = [tiling.to_json() for tiling in head.tilings], head.count
        record = {"tilings": tilings, "count": count, "check": _check(tilings, count), "namespace": self._namespace}
        self._writes = False  # after a write that failed: some submitters may not write records
        with suppress(StoreError):
            self._store.put_record(RANKING_STAGE, key.digest, record)
            self._writes = True


def _head_of(record: Record) -> _Head | None:
    """Reads the output of `_keep`; None for anything else."""
    try:
        if record["check"] != _check(record["tilings"], record["count"]):
            return None
        return _Head(tuple(Tiling(**each) for each in record["tilings"]), int(record["count"]))
    except (KeyError, TypeError, ValueError):
        return None


def _check(tilings: object, count: object) -> int:
    """Checksum: records have no digests, and a damaged number would silently select another tiling."""
    return zlib.crc32(json.dumps([tilings, count], sort_keys=True).encode())
