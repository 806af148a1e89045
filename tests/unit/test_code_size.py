"""Bytes of code for each non-zero weight: bounded for large layers, and fewer where a limit asks for it."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.ir.layer_spec import Conv2d, Linear
from codegen.selection.choose import choose_tiling, ranked_tilings
from codegen.selection.code_size import stream_instructions
from tests.unit.test_choice import PAD, spread

LARGE = {
    "vgg16 fc1": Linear(25088, 4096),
    "vgg16 fc2": Linear(4096, 4096),
    "vgg16 fc8": Linear(4096, 1000),
    "alexnet fc6": Linear(9216, 4096),
    "llama up": Linear(4096, 11008),
    "bert, out of the feed-forward": Linear(3072, 768),
    "bert, into the feed-forward": Linear(768, 3072),
    "vit-b/16 patches": Conv2d(3, 224, 224, 768, 16, 16, stride=(16, 16)),
    "vit-b/32 patches": Conv2d(3, 224, 224, 768, 32, 32, stride=(32, 32)),
    "vit-h/14 patches": Conv2d(3, 224, 224, 1280, 14, 14, stride=(14, 14)),
    "mixer-l/16 patches": Conv2d(3, 224, 224, 1024, 16, 16, stride=(16, 16)),
    "mixer-s/32 patches": Conv2d(3, 224, 224, 512, 32, 32, stride=(32, 32)),
}


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("name", LARGE)
def test_a_tenth_of_a_large_layer_takes_at_most_24_bytes_a_nonzero(name: str, batch: int) -> None:
    spec = LARGE[name]
    drawn = np.random.default_rng(0).binomial(spec.weights_count // spec.output_channels, 0.1, spec.output_channels)
    for nonzeros in (spread(spec, 0.1), drawn):
        tiling = choose_tiling(spec, batch, nonzeros, code_limit_bytes=10**9, tables=False)
        code_bytes = 16 * float(stream_instructions(spec, tiling, nonzeros).sum())
        assert 16 < code_bytes / nonzeros.sum() <= 24.05


@pytest.mark.parametrize("name", ["vgg16 fc2", "vit-b/16 patches"])
def test_a_limit_below_the_fastest_tiling_is_met_by_a_smaller_one(name: str) -> None:
    spec = LARGE[name]
    nonzeros = spread(spec, 0.1)
    sizes = [
        16 * float(stream_instructions(spec, tiling, nonzeros).sum())
        for tiling in ranked_tilings(spec, 64, nonzeros, code_limit_bytes=10**9)
    ]
    limit = int(min(sizes)) + 1
    assert limit < sizes[0]
    chosen = choose_tiling(spec, 64, nonzeros, code_limit_bytes=limit)
    assert 16 * float(stream_instructions(spec, chosen, nonzeros).sum()) <= limit


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("channels", [256, 512])
def test_a_3x3_layer_of_7x7_maps_takes_at_most_24_bytes_a_nonzero(channels: int, batch: int) -> None:
    spec = Conv2d(channels, 7, 7, channels, 3, 3, padding=PAD)
    nonzeros = spread(spec, 0.1)
    tiling = choose_tiling(spec, batch, nonzeros)
    assert 16 * stream_instructions(spec, tiling, nonzeros).sum() <= 24 * nonzeros.sum()
