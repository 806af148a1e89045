"""Rankings of tilings: worked out once, kept in the store, and worked out again where what they depend on changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from codegen.ir.tiling import Tiling
from codegen.selection.choose import choose_tiling
from codegen.selection.question import RankingQuestion
from codegen.selection.ranking import ranking_of
from codegen.target.arch import has_clusters
from codegen.target.device_model import typical_device
from farm.api import Farm
from farm.errors import StoreDeniedError, StoreError
from farm.jobs.model import BuildOptions
from farm.maintenance.gc import Limits, collect_garbage
from farm.store.contract import Record, Store
from farm.store.disk import DiskStore
from farm.store.memory import MemoryStore
from farm.testing import laptop_farm
from farm.tuning.book import TuningBook
from farm.tuning.rankings import RANKING_STAGE, KeptRankings
from tests.samples import SMALL, checkpoint, clear_code_digests, fixed_toolchain, layer
from tests.tuning_samples import other_tiling, record

LAYER = layer()
OPTIONS = BuildOptions(("sm_80", "sm_90"))
QUESTION = RankingQuestion(SMALL, 64, 0.1, "float32", clusters=True, tables=True)


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[LayerSpec]:
    """The layers whose rankings the cost model was asked for."""
    asked: list[LayerSpec] = []

    def ask(question: RankingQuestion) -> tuple[Tiling, ...]:
        asked.append(question.spec)
        return ranking_of(question)

    monkeypatch.setattr("farm.tuning.rankings.ranking_of", ask)
    return asked


def chosen(rankings: KeptRankings, of: Any = LAYER, options: BuildOptions = OPTIONS) -> list[Tiling]:
    """For each architecture."""
    book = TuningBook({}, rankings)
    found = book.tilings(of.spec, options.batches[0], of.weights.nonzeros_per_output, options)
    return [tiling for tiling, _ in found]


def kept(store: Store) -> list[Record]:
    keys = [each.key for each in store.records() if each.stage == RANKING_STAGE]
    return [record for key in keys if (record := store.get_record(RANKING_STAGE, key))]


def test_a_choice_is_made_once_and_kept(worked_out: list[LayerSpec]) -> None:
    store = MemoryStore()
    first = chosen(KeptRankings(store))
    assert worked_out == [SMALL, SMALL]  # for the GPU of each architecture
    assert chosen(KeptRankings(store)) == first
    assert len(worked_out) == len(kept(store)) == 2


def test_another_gpu_has_a_ranking_of_its_own_and_the_same_one_shares_it(worked_out: list[LayerSpec]) -> None:
    rankings = KeptRankings(MemoryStore())
    chosen(rankings)
    chosen(rankings, options=replace(OPTIONS, gpus=("A30",)))
    assert len(worked_out) == 3
    chosen(rankings, options=replace(OPTIONS, gpus=("A100", "H200")))
    assert len(worked_out) == 3


def test_the_checkpoints_of_a_sweep_share_it_and_other_bands_do_not(worked_out: list[LayerSpec]) -> None:
    rankings = KeptRankings(MemoryStore())
    chosen(rankings)
    chosen(rankings, layer(seed=1))
    assert len(worked_out) == 2
    chosen(rankings, layer(sparsity=0.5))
    chosen(rankings, options=replace(OPTIONS, batches=(1,)))
    assert len(worked_out) == 6


@pytest.mark.parametrize(
    "spec",
    [SMALL, Linear(256, 64), Conv2d(64, 14, 14, 64, 3, 3, padding=(1, 1, 1, 1), data_type="float16")],
    ids=["convolution", "linear", "float16"],
)
@pytest.mark.parametrize("batch", [1, 64])
def test_a_kept_ranking_chooses_what_the_cost_model_chooses(spec: LayerSpec, batch: int) -> None:
    store, of = MemoryStore(), layer(spec=spec)
    nonzeros = of.weights.nonzeros_per_output
    by_model = [
        choose_tiling(spec, batch, nonzeros, clusters=has_clusters(arch), device=typical_device(arch))
        for arch in OPTIONS.archs
    ]
    for _ in range(2):
        assert chosen(KeptRankings(store), of, replace(OPTIONS, batches=(batch,))) == by_model


def test_what_is_behind_the_kept_tilings_is_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.tuning.rankings.FIRST", 2)
    store = MemoryStore()
    whole = list(ranking_of(QUESTION))
    for _ in range(2):
        assert list(KeptRankings(store)(QUESTION)) == whole
    [found] = kept(store)
    assert (len(found["tilings"]), found["count"]) == (2, len(whole))


def test_a_record_counts_as_soon_as_it_is_added_and_until_it_goes() -> None:
    rankings = KeptRankings(MemoryStore())
    older, hopper = chosen(rankings)
    tuned = other_tiling(hopper)

    def with_records(*records: Any) -> list[Tiling]:
        book = replace(TuningBook.of(records), ranking=rankings)
        return [tiling for tiling, _ in book.tilings(SMALL, 64, LAYER.weights.nonzeros_per_output, OPTIONS)]

    assert with_records(record(tuned)) == [older, tuned]
    assert with_records() == [older, hopper]


@pytest.mark.parametrize("name", ["selection/coefficients.py", "kernels/conv2d.py", "selection/feasibility.py"])
def test_a_change_of_the_cost_models_sources_works_it_out_again(
    name: str, worked_out: list[LayerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read_text, changed = MemoryStore(), Path.read_text, Path(codegen.__file__).parent / name
    chosen(KeptRankings(store))
    clear_code_digests()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path: read_text(path) + "x" * (path == changed))
        chosen(KeptRankings(store))
    assert len(worked_out) == 4
    clear_code_digests()
    chosen(KeptRankings(store))
    assert len(worked_out) == 4


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda record: {label: value for label, value in record.items() if label != name}


def with_another_number(record: dict[str, Any]) -> dict[str, Any]:
    first, *rest = record["tilings"]
    return {**record, "tilings": [{**first, "stages": first["stages"] + 1}, *rest]}


@pytest.mark.parametrize(
    "damage",
    [
        without("tilings"),
        without("count"),
        without("check"),
        with_another_number,
        lambda record: {**record, "tilings": 7},
        lambda record: {**record, "count": "many"},
        lambda record: {**record, "count": record["count"] - 1},
        lambda _: {},
    ],
    ids=["no tilings", "no count", "no check", "another number", "no list", "no number", "another count", "empty"],
)
def test_a_damaged_entry_is_worked_out_again_and_replaced(
    damage: Callable[[dict[str, Any]], dict[str, Any]], worked_out: list[LayerSpec]
) -> None:
    store = MemoryStore()
    first, whole = chosen(KeptRankings(store)), kept(store)
    for each in list(store.records()):
        store.put_record(each.stage, each.key, damage(dict(store.get_record(each.stage, each.key) or {})))
    assert chosen(KeptRankings(store)) == first
    assert (len(worked_out), kept(store)) == (4, whole)


def test_half_a_file_is_worked_out_again_and_replaced(tmp_path: Path, worked_out: list[LayerSpec]) -> None:
    store = DiskStore(tmp_path)
    first, whole = chosen(KeptRankings(store)), kept(store)
    for file in tmp_path.rglob("*.json"):
        file.write_bytes(file.read_bytes()[:100])
    assert chosen(KeptRankings(store)) == first
    assert (len(worked_out), kept(store)) == (4, whole)


def test_recache_works_it_out_again(worked_out: list[LayerSpec]) -> None:
    store = MemoryStore()
    chosen(KeptRankings(store))
    chosen(KeptRankings(store, recache=True))
    assert len(worked_out) == 4


@pytest.mark.parametrize("error", [StoreError, StoreDeniedError])
def test_a_store_that_takes_no_records_is_asked_once_and_costs_nothing_else(error: type[StoreError]) -> None:
    asked = []

    class Refusing(MemoryStore):
        def put_record(self, stage: str, key: str, _: Record) -> None:
            asked.append((stage, key))
            raise error("may not be written")

    assert chosen(KeptRankings(Refusing())) == chosen(KeptRankings(MemoryStore()))
    assert len(asked) == 1


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    monkeypatch.setattr("farm.api.find_toolchain", lambda *_: fixed_toolchain())
    monkeypatch.setattr("farm.api.known_toolchain", lambda toolchain, _: toolchain)
    monkeypatch.setattr("farm.api.unasked_toolchain", lambda toolchain, _: toolchain)
    with laptop_farm(tmp_path) as found:
        yield found


def test_a_plan_keeps_nothing_and_a_job_what_the_next_plan_finds(farm: Farm, worked_out: list[LayerSpec]) -> None:
    plan = partial(farm.forecast, [checkpoint(LAYER)], replace(OPTIONS, tuning=False))
    store = farm._store
    plan()
    assert (len(worked_out), kept(store)) == (2, [])
    farm.submit([checkpoint(LAYER)], replace(OPTIONS, tuning=False))
    assert (len(worked_out), len(kept(store))) == (4, 2)
    plan()
    assert len(worked_out) == 4


def test_what_is_old_is_garbage_although_no_job_refers_to_it(tmp_path: Path) -> None:
    store = MemoryStore()
    chosen(KeptRankings(store, namespace="team"))
    for name in store._recorded:
        store._recorded[name] -= 40 * 86_400.0
    with laptop_farm(tmp_path) as farm:
        sweep = collect_garbage(store, farm._ledger, Limits(older_than_seconds=30 * 86_400.0, namespace="team"))
    assert len(sweep.records) == 2
