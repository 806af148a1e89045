"""The chosen tiling: deterministic, within every limit, the same for neighbours of a pruning sweep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.choice import (
    LONG_STREAM_BYTES,
    SHARED_BYTES,
    STREAM_BYTES,
    STREAM_MULTIPLY_ADDS,
    SUMS,
    candidates,
    choose_tiling,
)
from codegen.errors import TilingError
from codegen.networks import TEN_OPERATORS
from codegen.operators import launch_of
from codegen.operators.conv2d import groups
from codegen.prediction import bank_conflicts, predict_microseconds, registers_of, stream_of
from codegen.spec import Conv2d
from codegen.tiling import Tiling


def spread(spec: Conv2d, density: float) -> np.ndarray:
    """The same share of non-zeros in every kernel."""
    return np.full(spec.kernels, round(density * spec.weights_count / spec.kernels))


def largest_stream(spec: Conv2d, tiling: Tiling, nonzeros: np.ndarray) -> int:
    starts = range(0, spec.kernels, tiling.group_kernels)
    return tiling.rows * max(int(nonzeros[k : k + tiling.group_kernels].sum()) for k in starts)


@pytest.mark.parametrize("name", TEN_OPERATORS)
@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_every_operator_gets_a_tiling_within_the_limits(name: str, batch: int, density: float) -> None:
    spec = TEN_OPERATORS[name]
    nonzeros = spread(spec, density)
    tiling = choose_tiling(spec, batch, nonzeros)
    assert largest_stream(spec, tiling, nonzeros) <= STREAM_MULTIPLY_ADDS
    assert stream_of(spec, tiling, density).code_bytes <= STREAM_BYTES
    assert launch_of(spec, tiling).shared_bytes <= SHARED_BYTES
    assert tiling.rows * tiling.group_kernels <= SUMS
    assert registers_of(spec, tiling) <= 255
    assert tiling.threads <= 1024


specs = st.builds(
    Conv2d,
    channels=st.integers(1, 64),
    height=st.integers(1, 230),
    width=st.integers(1, 230),
    kernels=st.integers(1, 64),
    kernel_height=st.integers(1, 7),
    kernel_width=st.integers(1, 7),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(*[st.integers(0, 5)] * 4),
).filter(lambda spec: spec.output_height > 0 and spec.output_width > 0)


@settings(max_examples=60, deadline=None)
@given(specs, st.sampled_from([0.02, 0.1, 0.6]), st.sampled_from([1, 7, 64]))
def test_any_layer_gets_a_tiling_that_covers_it(spec: Conv2d, density: float, batch: int) -> None:
    tiling = choose_tiling(spec, batch, spread(spec, density))
    assert tiling.threads <= 1024
    assert launch_of(spec, tiling).shared_bytes <= SHARED_BYTES
    assert groups(spec, tiling) * tiling.group_kernels >= spec.kernels


def test_the_same_layer_gets_the_same_tiling_twice() -> None:
    spec = TEN_OPERATORS["resnet-conv1"]
    assert choose_tiling(spec, 64, spread(spec, 0.1)) == choose_tiling(spec, 64, spread(spec, 0.1))


def test_a_few_weights_more_or_less_share_a_template() -> None:
    spec = TEN_OPERATORS["vgg-conv3"]
    assert len({choose_tiling(spec, 64, spread(spec, density)) for density in (0.096, 0.1, 0.104)}) == 1


def test_near_batches_share_a_template() -> None:
    spec = TEN_OPERATORS["alexnet-conv2"]
    assert len({choose_tiling(spec, batch, spread(spec, 0.1)) for batch in (48, 64, 100)}) == 1


def test_weights_in_few_kernels_get_smaller_groups_than_the_same_number_spread() -> None:
    spec = TEN_OPERATORS["resnet-conv2"]
    total = spec.weights_count // 10
    uneven = np.zeros(spec.kernels, dtype=int)
    uneven[:13] = total // 13
    tiling = choose_tiling(spec, 64, uneven)
    assert largest_stream(spec, tiling, uneven) <= STREAM_MULTIPLY_ADDS
    assert tiling.group_kernels < choose_tiling(spec, 64, spread(spec, 0.1)).group_kernels


def test_the_full_form_has_the_tiling_of_the_rolled_one() -> None:
    spec = TEN_OPERATORS["lenet-conv1"]
    rolled = choose_tiling(spec, 64, spread(spec, 0.1))
    assert choose_tiling(spec, 64, spread(spec, 0.1), form="full") == replace(rolled, form="full")


def test_a_kernel_larger_than_shared_memory_is_an_error_that_says_so() -> None:
    spec = Conv2d(1, 400, 400, 1, 200, 200)
    with pytest.raises(TilingError, match=r"its kernel is 200x200.*shared memory"):
        choose_tiling(spec, 1, spread(spec, 0.1))


def test_candidates_differ() -> None:
    everything = list(candidates(TEN_OPERATORS["resnet-conv1"]))
    assert len(set(everything)) == len(everything)


def test_more_images_never_take_less_time() -> None:
    spec = TEN_OPERATORS["resnet-conv1"]
    tiling = Tiling(56, 4, 1, 64, 8, 2)
    times = [predict_microseconds(spec, tiling, batch, 0.1) for batch in (1, 4, 16, 64, 256)]
    assert times == sorted(times)


def test_lanes_two_columns_apart_conflict_in_pairs() -> None:
    near = Conv2d(1, 64, 64, 1, 1, 1)
    far = Conv2d(1, 128, 128, 1, 1, 1, stride=(2, 2))
    assert bank_conflicts(near, Tiling(32, 2, 1, 1, 1, 2)) == 1
    assert bank_conflicts(far, Tiling(32, 2, 1, 1, 1, 2)) == 2


def test_a_layer_too_large_for_one_kernel_is_an_error_that_says_how_large() -> None:
    spec = Conv2d(512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1))
    with pytest.raises(TilingError, match=r"its code would be \d+ MB.*prune"):
        choose_tiling(spec, 64, spread(spec, 0.1))


def test_many_channels_get_longer_streams_rather_than_none() -> None:
    spec = Conv2d(256, 14, 14, 512, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1))
    tiling = choose_tiling(spec, 64, spread(spec, 0.1))
    assert STREAM_BYTES < stream_of(spec, tiling, 0.1).code_bytes <= LONG_STREAM_BYTES


def test_a_kernel_with_more_terms_than_a_stream_should_have_is_compiled_all_the_same() -> None:
    spec = Conv2d(1024, 4, 4, 8, 3, 3, padding=(1, 1, 1, 1))
    tiling = choose_tiling(spec, 64, spread(spec, 1.0))
    assert tiling.group_kernels == 1
    assert largest_stream(spec, tiling, spread(spec, 1.0)) > STREAM_MULTIPLY_ADDS


def test_what_nothing_fits_is_not_compiled_into_hundreds_of_megabytes() -> None:
    spec = Conv2d(1024, 4, 4, 1024, 3, 3, padding=(1, 1, 1, 1))
    with pytest.raises(TilingError, match="its code would be"):
        choose_tiling(spec, 64, spread(spec, 1.0))


def test_offsets_of_a_huge_image_fit_an_address() -> None:
    spec = Conv2d(8, 16_384, 16_384, 16, 3, 3, padding=(1, 1, 1, 1))
    tiling = choose_tiling(spec, 1, spread(spec, 0.1))
    assert 4 * tiling.group_kernels * tiling.rows * 16_384**2 < 2**31
    assert 4 * tiling.chunk_channels * 16_384**2 < 2**31
