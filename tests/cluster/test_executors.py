"""One contract for all executors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farm.worker.cache_lookup import find_cubin
from farm.worker.messages import CubinFacts, CubinResult, Fault
from tests.cluster.sleeping import running, sleeping_ptxas, wait_until
from tests.cluster.workplace import Workplace, workplace
from tests.samples import SMALLER, layer


@pytest.fixture(scope="module", params=["inline", "processes", "ray"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    with workplace(tmp_path_factory.mktemp("farm"), request.param) as place:
        yield place


def test_every_request_gives_one_result_and_its_bytes_are_in_the_store(place: Workplace) -> None:
    todo = place.plan(layer(), layer(spec=SMALLER))
    assert {result.key for result in place.do(*todo.templates)} == {request.key for request in todo.templates}
    cubins = place.do(*todo.cubins)
    assert sorted(result.key for result in cubins) == sorted(request.key for request in todo.cubins)
    assert all(result.failure is None and not result.hit for result in cubins)
    for result in cubins:
        found = find_cubin(place.store, result.key)
        assert found is not None
        assert isinstance(result, CubinResult)
        assert found.made == result.made
    assert place.executor.wait(0.0) == []


def test_each_part_of_a_layer_is_a_kernel_of_its_own_groups(place: Workplace) -> None:
    sample = layer(sparsity=0.5)
    todo = place.plan(sample, parts=2)
    place.do(*todo.templates)
    kept: dict[str, dict[int, int]] = {"sm_80": {}, "sm_90": {}}
    requests = {request.key: request for request in todo.cubins}
    for result in place.do(*todo.cubins):
        assert isinstance(result, CubinResult)
        assert isinstance(result.made, CubinFacts)
        request = requests[result.key]
        kept[request.arch][request.part.first] = result.made.fmas_kept // request.template.tiling.rows
    halves = sample.weights.nonzeros_per_output.reshape(2, -1).sum(axis=1)
    assert kept == {arch: dict(enumerate(halves.tolist())) for arch in ("sm_80", "sm_90")}


def test_a_stored_result_is_a_hit(place: Workplace) -> None:
    todo = place.plan(layer(), archs=("sm_80",))
    place.do(*todo.templates)
    place.do(*todo.cubins)
    assert [result.hit for result in place.do(*todo.templates, *todo.cubins)] == [True, True]


def test_a_cubin_makes_its_template_where_there_is_none(place: Workplace) -> None:
    todo = place.plan(layer(spec=replace(SMALLER, width=7)), archs=("sm_90",))
    [result] = place.do(*todo.cubins)
    assert result.failure is None


def test_a_failure_is_a_result_and_later_requests_are_served(place: Workplace) -> None:
    todo = place.plan(layer(), archs=("sm_90",))
    lost = replace(todo.cubins[0], weights="00" * 32)
    [result] = place.do(lost)
    assert result.failure is not None
    assert result.failure.fault is Fault.FARM
    assert place.do(*todo.templates)[0].failure is None


def test_a_request_planned_with_other_tools_is_refused_not_built(place: Workplace) -> None:
    todo = place.plan(layer(seed=7), archs=("sm_90",))
    stale = replace(todo.cubins[0], key="ab" * 32)
    [result] = place.do(stale)
    assert result.failure is not None
    assert "ptxas (13.0.88)" in result.failure.message
    assert find_cubin(place.store, stale.key) is None


def test_wait_without_requests_returns_at_once(place: Workplace) -> None:
    start = time.monotonic()
    assert place.executor.wait(30.0) == []
    assert time.monotonic() - start < 5


def test_a_cancelled_request_gives_no_result_and_the_executor_works_on(place: Workplace) -> None:
    todo = place.plan(layer(seed=3), layer(seed=4), layer(seed=5), archs=("sm_90",))
    for request in todo.cubins:
        place.executor.submit(request)
    place.executor.cancel_all()
    assert place.executor.wait(0.5) == []
    [result] = place.do(todo.templates[0])
    assert result.failure is None


@pytest.mark.parametrize("executor", ["inline", "processes", "ray"])
def test_cancelling_ends_the_tool_of_a_request_within_2_s_and_no_other(executor: str, tmp_path: Path) -> None:
    script, runs = sleeping_ptxas(tmp_path)
    with workplace(tmp_path, executor, script) as place:
        todo = place.plan(layer(), layer(seed=1), archs=("sm_90",))
        place.do(*todo.templates)
        first, second = todo.cubins
        place.executor.submit(first)
        wait_until(lambda: len(running(runs)) == 1)
        [tool] = running(runs)
        place.executor.submit(second)
        start = time.monotonic()
        place.executor.cancel([first.key])
        wait_until(lambda: tool not in running(runs))
        assert time.monotonic() - start < 2
        wait_until(lambda: len(running(runs)) == 1)  # of the second
        place.executor.cancel_all()
        wait_until(lambda: not running(runs))
        assert place.executor.wait(1.0) == []
        assert place.do(*todo.templates)[0].hit


@pytest.mark.parametrize("executor", ["inline", "processes", "ray"])
def test_closing_ends_the_tools(executor: str, tmp_path: Path) -> None:
    script, runs = sleeping_ptxas(tmp_path)
    with workplace(tmp_path, executor, script) as place:
        todo = place.plan(layer(), archs=("sm_90",))
        place.do(*todo.templates)
        place.executor.submit(todo.cubins[0])
        wait_until(lambda: len(running(runs)) == 1)
    wait_until(lambda: not running(runs))


def test_there_is_room_for_a_request_for_every_worker(place: Workplace) -> None:
    assert place.executor.capacity >= place.settings.jobs


@pytest.mark.parametrize("executor", ["inline", "processes", "ray"])
def test_an_executor_that_was_not_used_costs_nothing_and_can_be_closed_twice(executor: str, tmp_path: Path) -> None:
    start = time.monotonic()
    with workplace(tmp_path, executor) as place:
        place.executor.close()
    assert time.monotonic() - start < 1
