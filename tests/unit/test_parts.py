"""Parts: the K groups of a layer cut into kernels that ptxas does in seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import stream_count, tiled
from codegen.model_zoo import TEN_OPERATORS
from codegen.selection.choose import choose_parts, choose_tiling
from codegen.selection.costs.stream import Stream
from codegen.selection.kernel_split import PART_INSTRUCTIONS, cut
from tests.unit.test_choice import PAD, multiply_adds, spread


def test_a_small_layer_is_one_part_and_so_is_the_full_form() -> None:
    spec = TEN_OPERATORS["alexnet-conv2"]
    for form, density in (("rolled", 0.1), ("full", 1.0)):
        tiling = replace(choose_tiling(spec, 64, spread(spec, density)), form=form)
        assert choose_parts(spec, tiling, spread(spec, density)) == (Part(0, stream_count(spec, tiling)),)


counts = st.lists(st.integers(0, 4608), min_size=512, max_size=512).map(np.array)


@settings(max_examples=30)
@given(counts, st.sampled_from([1, 2, 4]))
def test_parts_are_about_even_and_no_more_than_it_takes(nonzeros: NDArray[np.int64], group_outputs: int) -> None:
    spec = Conv2d(512, 7, 7, 512, 3, 3, padding=PAD)
    tiling = Tiling("conv2d", 7, 7, 1, group_outputs, 8, 2)
    work = tiled(spec, tiling).workload
    average = Stream.of(work, nonzeros.sum() / spec.weights_count)
    streams = average.code - average.multiply_adds + multiply_adds(spec, tiling, nonzeros)
    parts = choose_parts(spec, tiling, nonzeros)
    sizes = np.array([streams[part.first : part.end].sum() for part in parts])
    most = int(np.ceil(streams.sum() / PART_INSTRUCTIONS))
    assert len(parts) <= most
    # A part may be off the even share by half a stream at either end; fewer parts may be a twentieth larger.
    assert sizes.max() <= 1.05 * (streams.sum() / most + streams.max())
    shares = streams.sum() / np.arange(len(parts), most + 1)
    assert min(abs(sizes - share).max() for share in shares) <= streams.max() + 1
    assert [part.first for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert (parts[0].first, parts[-1].end) == (0, len(streams))


def test_a_tenth_of_a_large_layer_is_cut_into_parts() -> None:
    spec = Conv2d(512, 7, 7, 512, 3, 3, padding=PAD)
    tiling = choose_tiling(spec, 64, spread(spec, 0.1))
    parts = choose_parts(spec, tiling, spread(spec, 0.1))
    assert len(parts) > 1


@pytest.mark.parametrize("cluster", [1, 4])
def test_k_groups_of_one_block_are_in_one_part(cluster: int) -> None:
    parts = cut(np.full(16 * cluster, 90_000.0), cluster, block_groups=2)
    assert len(parts) > 1
    assert all(edge % (2 * cluster) == 0 for part in parts for edge in (part.first, part.end))
