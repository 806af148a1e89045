"""Breakdown of a replay's time, from made-up kernels."""

from __future__ import annotations

from farm.bench.networks.breakdown import LayerKernels, TracedKernel, breakdown, median_of

LAYERS = [LayerKernels("first", ("conv2d", "conv2d")), LayerKernels("second", ("linear",))]


def test_overlapping_parts_count_once_and_what_runs_beside_a_layer_is_the_layers() -> None:
    spans = [
        TracedKernel("conv2d", 10, 20),
        TracedKernel("conv2d", 15, 30),
        TracedKernel("pool", 25, 40),
        TracedKernel("linear", 50, 60),
    ]
    found = breakdown(spans, LAYERS)
    assert found is not None
    assert (found.total, found.compiled, found.rest, found.gaps) == (50, 30, 10, 10)
    assert found.layers == {"first": 20, "second": 10}
    assert sum(found.to_json()[kind] for kind in ("compiled", "rest", "gaps")) == 1


def test_a_layer_that_begins_before_the_one_ahead_has_ended_is_not_charged_for_its_wait() -> None:
    spans = [TracedKernel("conv2d", 0, 10), TracedKernel("conv2d", 2, 12), TracedKernel("linear", 4, 15)]
    found = breakdown(spans, LAYERS)
    assert found is not None
    assert found.layers == {"first": 12, "second": 3}


def test_kernels_that_are_not_the_layers_launches_are_given_to_no_layer() -> None:
    found = breakdown([TracedKernel("conv2d", 0, 1), TracedKernel("linear", 2, 3)], LAYERS)
    assert found is not None
    assert (found.compiled, found.layers) == (2, {})
    swapped = [TracedKernel("linear", 0, 1), TracedKernel("conv2d", 2, 3), TracedKernel("conv2d", 4, 5)]
    found = breakdown(swapped, LAYERS)
    assert found is not None
    assert found.layers == {}


def test_the_median_replay_counts() -> None:
    replays = [breakdown([TracedKernel("pool", 0, end)], []) for end in (9, 3, 5)]
    found = median_of(replays)
    assert found is not None
    assert found.total == 5
    assert median_of([None]) is None
    assert breakdown([], LAYERS) is None
