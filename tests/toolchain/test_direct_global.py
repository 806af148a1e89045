"""1x1 convolutions whose inputs pass no shared memory, in the emulator against the reference."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, LeakyRelu, Swish
from codegen.ir.tiling import Part, Tiling
from codegen.model_zoo.pruning import random_weights
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import Template
from codegen.verification.reference import layer_output
from tests.error_bounds import error_bound
from tests.templates import shared_template, verify_random_run

SPEC = Conv2d(40, 1, 64, 24, 1, 1, epilogue=(Clip(0.0, 32.0),))
PLAIN = Tiling("direct_global", 32, 1, 1, 8, 16, stages=0)
LISTED = replace(PLAIN, listed=True)


def template_of(spec: Conv2d, tiling: Tiling) -> Template:
    return shared_template(spec, tiling)


@pytest.mark.parametrize(
    ("spec", "tiling"),
    [
        (SPEC, PLAIN),
        (replace(SPEC, epilogue=(AddResidual(), LeakyRelu(0.1))), PLAIN),
        (replace(SPEC, epilogue=(Swish(),)), replace(PLAIN, group_outputs=24)),
        (replace(SPEC, width=50), PLAIN),  # columns beyond the image
        (replace(SPEC, channels=37, output_channels=21), PLAIN),  # channels and kernels beyond the layer
        (replace(SPEC, height=7, width=9), PLAIN),  # a map is one row of columns
        (replace(SPEC, channels=3), replace(PLAIN, chunk_channels=3)),
    ],
    ids=str,
)
def test_it_computes_what_the_layer_is(spec: Conv2d, tiling: Tiling) -> None:
    weights = random_weights(spec, 0.9, seed=3)
    groups = -(-spec.output_channels // tiling.group_outputs)
    parts = (Part(0, 1), Part(1, groups)) if groups > 1 else (Part(0, 1),)
    found = verify_random_run(template_of(spec, tiling), weights, parts, batch=3)
    assert found.ok, found.message
    assert found.outputs_checked == 3 * np.prod(spec.output_shape)


def test_an_input_without_weights_is_not_loaded() -> None:
    weights = random_weights(SPEC, 0.9, seed=3)
    template = template_of(SPEC, PLAIN)
    kernel = rewrite(template, weights)
    used = np.count_nonzero(weights.kernel.reshape(3, 8, 40).any(axis=1))
    assert kernel.ptx.count(b"ld.global.nc.f32") == used
    assert b".shared" not in kernel.ptx


def test_a_listed_kernel_reads_nothing_before_the_kernel_ahead_of_it_has_ended() -> None:
    template = shared_template(SPEC, LISTED, "compute_90")
    ptx = rewrite(template, random_weights(SPEC, 0.9, seed=3)).ptx.decode()
    before, _, _ = ptx.partition("griddepcontrol.wait;")
    assert "griddepcontrol.launch_dependents;" in before
    assert "ld.global" in ptx
    assert not re.search(r"\b(ld|st)\.global", before)
    # ptxas moves a load of what never changes to before the wait, if its address is known there.
    assert not re.search(r"ld\.global\.nc\.[us]32", ptx)
    assert "griddepcontrol" not in rewrite(template_of(SPEC, LISTED), random_weights(SPEC, 0.9, seed=3)).ptx.decode()


def listed(
    weights: Weights, x: np.ndarray, count: int, places: np.ndarray, blocks: int, images: int
) -> tuple[np.ndarray, np.ndarray]:
    kernel = rewrite(template_of(SPEC, LISTED), weights)
    output = np.full((images, *SPEC.output_shape), np.nan, dtype=np.float32)
    marks = np.zeros(images * SPEC.width, dtype=np.uint8)
    given: dict[str, Any] = {"input": x, "output": output, "marks": marks, "places": places.astype(np.int32)}
    given |= {"count": np.array([count], dtype=np.int32), **kernel.launch.numbers(images)}
    arguments = [given[name] for name in kernel.launch.arguments]
    emulate.run(kernel.ptx, (blocks, 1, 3), kernel.launch.block, 0, arguments)
    return output, marks


@pytest.mark.parametrize("blocks", [1, 3], ids=["one block goes over all columns", "blocks share them"])
@pytest.mark.parametrize("count", [1, 70, 97])
def test_listed_columns_come_out_side_by_side_and_those_with_an_output_are_marked(count: int, blocks: int) -> None:
    images = 3
    weights = random_weights(SPEC, 0.9, seed=3)
    weights = replace(weights, bias=np.full(SPEC.output_channels, -0.3, dtype=np.float32))
    rng = np.random.default_rng(1)
    x = (rng.random((images, *SPEC.input_shape)) < 0.1).astype(np.float32)
    x[:, :, :, ::4] = 0  # columns without an output, since the bias is negative
    places = np.sort(rng.permutation(images * SPEC.width)[:count])
    output, marks = listed(weights, x, count, places, blocks, images)

    chosen = np.moveaxis(x[:, :, 0], 1, 2).reshape(-1, SPEC.channels)[places]
    as_image = np.zeros((1, SPEC.channels, 1, count), dtype=np.float32)
    as_image[0, :, 0] = chosen.T
    spec = replace(SPEC, width=count)
    expected = layer_output(spec, weights, as_image)[0, :, 0].T
    columns = np.moveaxis(output[:, :, 0], 1, 2).reshape(-1, SPEC.output_channels)
    bound = error_bound(spec, weights, as_image)[0, :, 0].T
    assert (np.abs(columns[:count] - expected) <= bound).all()
    assert np.isnan(columns[count:]).all()
    alive = (columns[:count] > 0).any(axis=1)
    assert marks[:count].tolist() == alive.astype(int).tolist()
    assert not marks[count:].any()
    if count > 1:
        assert 0 < alive.sum() < count


def test_the_count_is_no_more_than_the_images_hold() -> None:
    weights = random_weights(SPEC, 0.9, seed=3)
    x = np.ones((1, *SPEC.input_shape), dtype=np.float32)
    output, _ = listed(weights, x, 1000, np.arange(64), 2, 1)
    assert not np.isnan(output).any()
