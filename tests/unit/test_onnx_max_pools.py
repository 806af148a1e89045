"""ONNX reader: a max pool after a layer is recorded, and fused where predicted to be faster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.errors import TilingError
from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Layer, Pool, Weights
from codegen.ir.layer_spec import Clip, Conv2d, LeakyRelu, MaxPool, spec_from_json, unpooled
from codegen.ir.tiling import Tiling
from codegen.kernels import tiled
from codegen.kernels.max_pool import has_whole_windows
from codegen.model_zoo import random_weights, unet
from codegen.selection.choose import choose_tiling, misfit_of, ranked_tilings
from codegen.selection.cost_model import pool_microseconds, predict_microseconds
from codegen.verification.reference import layer_output, outcomes
from farm.jobs.model import BuildOptions
from farm.jobs.submission import new_job
from farm.tuning.book import NO_RECORDS
from farm.tuning.pools import pooled_where_faster
from tests.unit.onnx_models import constants, info, layer_of, model, node, save, tensors_of, values

CONV = node("Conv", "x w b", "c", "conv", pads=[1, 1, 1, 1])
RELU = node("Relu", "c", "a", "relu")
POOL = node("MaxPool", "a", "y", "pool", kernel_shape=[2, 2], strides=[2, 2])


def net(*nodes: onnx.NodeProto, x: Any = ("N", 3, 9, 8), **arrays: Any) -> onnx.ModelProto:
    tensors = {"w": values(4, 3, 3, 3), "b": values(4), **arrays}
    return model(list(nodes), constants(**tensors), inputs=[info("x", x)])


def pool(**attributes: Any) -> onnx.NodeProto:
    return node("MaxPool", "a", "y", "pool", **{"kernel_shape": [2, 2], "strides": [2, 2], **attributes})


def test_a_layer_with_its_pool_computes_what_the_model_does(tmp_path: Path) -> None:
    proto = net(CONV, RELU, POOL)
    layer = layer_of(tmp_path, proto)
    assert (layer.output, layer.pool) == ("a", Pool("MaxPool pool", "y"))
    joined = layer.with_pool()
    assert (joined.output, joined.folded, joined.pool) == ("y", ("Relu relu", "MaxPool pool"), None)
    assert joined.spec.epilogue == (Clip(low=0.0), MaxPool())
    assert joined.spec.output_shape == (4, 4, 4)
    assert joined.spec.multiply_adds == layer.spec.multiply_adds
    assert spec_from_json(joined.spec.to_json()) == joined.spec
    x = values(2, 3, 9, 8, seed=3)
    [expected] = tensors_of(proto, ["y"], x=x)
    np.testing.assert_allclose(layer_output(joined.spec, joined.weights, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 1]], ids=str)
def test_windows_of_3x3_may_have_padding_at_any_side(pads: list[int], tmp_path: Path) -> None:
    proto = net(CONV, RELU, pool(kernel_shape=[3, 3], pads=pads))
    joined = layer_of(tmp_path, proto).with_pool()
    assert isinstance(joined.spec, Conv2d)
    assert joined.spec.pool == MaxPool(3, (pads[0], pads[1], pads[2], pads[3]))
    assert spec_from_json(json.loads(json.dumps(joined.spec.to_json()))) == joined.spec
    x = values(2, 3, 9, 8, seed=3)
    [expected] = tensors_of(proto, ["y"], x=x)
    assert expected.shape[1:] == joined.spec.output_shape
    np.testing.assert_allclose(layer_output(joined.spec, joined.weights, x), expected, rtol=1e-5, atol=1e-5)


def test_a_pool_of_2x2_is_written_as_when_there_were_no_others() -> None:
    spec = Conv2d(3, 8, 8, 4, 3, 3, epilogue=(MaxPool(),))
    assert spec.to_json()["epilogue"] == [{"step": "max_pool"}]


OTHERS = {
    "windows of 4x4": [CONV, RELU, pool(kernel_shape=[4, 4])],
    "windows of 3x3, three apart": [CONV, RELU, pool(kernel_shape=[3, 3], strides=[3, 3])],
    "windows of 3x3 with more padding": [CONV, RELU, pool(kernel_shape=[3, 3], pads=[0, 2, 0, 0])],
    "windows of 3x3 with padding at some sides only": [CONV, RELU, pool(kernel_shape=[3, 3], pads=[1, 1])],
    "windows of 3x3, rounded up": [CONV, RELU, pool(kernel_shape=[3, 3], ceil_mode=1)],
    "overlapping windows of 2x2": [CONV, RELU, pool(strides=[1, 1])],
    "strides left out, which are 1": [CONV, RELU, node("MaxPool", "a", "y", "pool", kernel_shape=[2, 2])],
    "padding": [CONV, RELU, pool(pads=[1, 1, 0, 0])],
    "padding as the size asks": [CONV, RELU, pool(auto_pad="SAME_UPPER")],
    "rounded up": [CONV, RELU, pool(ceil_mode=1)],
    "averages": [CONV, RELU, node("AveragePool", "a", "y", "pool", kernel_shape=[2, 2], strides=[2, 2])],
    "an activation that falls": [
        CONV, node("Sigmoid", "c", "s"), node("Mul", "c s", "a"), POOL
    ],
    "a slope below zero": [CONV, node("LeakyRelu", "c", "a", "leaky", alpha=-0.5), POOL],
    "another reader of the map": [CONV, RELU, POOL, node("Exp", "a", "z")],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_pools_are_left(name: str, tmp_path: Path) -> None:
    assert layer_of(tmp_path, net(*OTHERS[name])).pool is None


def test_1x1_kernels_and_maps_without_a_window_leave_their_pool(tmp_path: Path) -> None:
    pointwise = net(node("Conv", "x w b", "c", "conv"), RELU, POOL, w=values(4, 3, 1, 1))
    assert layer_of(tmp_path, pointwise).pool is None
    assert layer_of(tmp_path, net(CONV, RELU, POOL, x=("N", 3, 1, 8))).pool is None


def test_a_map_with_another_reader_is_not_pooled_by_its_layer(tmp_path: Path) -> None:
    onnx.save(unet(0.9, 0), tmp_path / "unet.onnx")
    assert [layer.name for layer in read_checkpoint(tmp_path / "unet.onnx").layers if layer.pool] == []


def behind(spec: Conv2d, sparsity: float = 0.9) -> Layer:
    return Layer("conv", spec, random_weights(spec, sparsity), "x", "a", pool=Pool("MaxPool pool", "y"))


LARGE = Conv2d(64, 224, 224, 64, 3, 3, padding=(1, 1, 1, 1), epilogue=(Clip(low=0.0),))
DEEP = Conv2d(512, 14, 14, 512, 3, 3, padding=(1, 1, 1, 1), epilogue=(Clip(low=0.0),))


def test_a_pool_joins_its_layer_where_that_is_predicted_to_be_faster() -> None:
    options = BuildOptions(("sm_90",), batches=(64,))
    assert pooled_where_faster(behind(LARGE), NO_RECORDS, options).spec.epilogue[-1] == MaxPool()
    # Split over a cluster the layer is much faster than any tiling with whole windows.
    assert pooled_where_faster(behind(DEEP), NO_RECORDS, BuildOptions(("sm_90",), batches=(1,))).spec == DEEP
    alone = Layer("conv", LARGE, random_weights(LARGE, 0.9), "x", "a")
    assert pooled_where_faster(alone, NO_RECORDS, options) is alone


def test_a_pool_that_saves_little_does_not_change_the_tiling() -> None:
    # Predicted 6 % faster together; conv3_3 of VGG-16, once predicted 3 % faster so, was measured 34 % slower.
    spec = Conv2d(128, 112, 112, 128, 3, 3, padding=(1, 1, 1, 1), epilogue=(Clip(low=0.0),))
    assert pooled_where_faster(behind(spec), NO_RECORDS, BuildOptions(("sm_90",), batches=(8,))).spec == spec
    spec = Conv2d(256, 56, 56, 256, 3, 3, padding=(1, 1, 1, 1), epilogue=(Clip(low=0.0),))
    # Nor one whose exchange of sums would take as long as the pool.
    assert pooled_where_faster(behind(spec), NO_RECORDS, BuildOptions(("sm_90",), batches=(1,))).spec == spec


def test_an_overlapping_pool_joins_its_layer_where_predicted_faster() -> None:
    first = Conv2d(3, 224, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3), epilogue=(Clip(low=0.0),))
    pool = Pool("MaxPool pool", "y", MaxPool(3, (1, 1, 1, 1)))
    for batch in (1, 64):
        options = BuildOptions(("sm_90",), batches=(batch,))
        assert pooled_where_faster(replace(behind(first), pool=pool), NO_RECORDS, options).pool is None
    # The sums that two tiles have are computed twice: of many channels that takes longer than the pool.
    deep = Conv2d(512, 14, 14, 512, 3, 3, padding=(1, 1, 1, 1), epilogue=(Clip(low=0.0),))
    layer = replace(behind(deep), pool=pool)
    assert pooled_where_faster(layer, NO_RECORDS, BuildOptions(("sm_90",), batches=(64,))) is layer


def test_tiles_of_windows_that_overlap_have_one_row_and_column_more() -> None:
    spec = Conv2d(3, 64, 64, 16, 3, 3, padding=(1, 1, 1, 1), epilogue=(MaxPool(3, (1, 1, 1, 1)),))
    for tiling, tiles in ((Tiling("conv2d", 9, 9, 1, 16, 1, 2), (8, 8)), (Tiling("conv2d", 9, 5, 2, 16, 1, 2), (8, 8))):
        layer = tiled(spec, tiling)
        assert has_whole_windows(layer)
        assert layer.tiles == tiles
    for width, height, rows in ((1, 9, 1), (8, 9, 1), (9, 8, 1), (9, 3, 3), (9, 2, 4)):
        assert not has_whole_windows(tiled(spec, Tiling("conv2d", width, height, rows, 16, 1, 2)))
    assert not has_whole_windows(tiled(replace(spec, data_type="float16"), Tiling("conv2d", 9, 9, 1, 16, 1, 2)))


def test_a_layer_that_no_tiling_with_windows_fits_keeps_its_pool_apart() -> None:
    spec = Conv2d(600, 8, 8, 2, 7, 7, epilogue=(Clip(low=0.0),))
    layer = behind(spec, 0.0)
    options = BuildOptions(("sm_90",), batches=(1,), code_limit_bytes=1_000)
    assert pooled_where_faster(layer, NO_RECORDS, options) is layer


def test_the_network_of_a_job_has_no_pool_that_a_layer_computes(tmp_path: Path) -> None:
    from farm.store.memory import MemoryStore

    proto = net(CONV, RELU, POOL, node("Exp", "y", "z"), x=("N", 3, 64, 64))
    proto.graph.output[0].name = "z"
    checkpoint, store = read_checkpoint(save(tmp_path, proto)), MemoryStore()
    job = new_job(checkpoint, BuildOptions(("sm_90",), batches=(64,)), namespace="", name="net", store=store)
    assert [(build.output, build.spec.epilogue[-1]) for build in job.builds] == [("y", MaxPool())]
    assert job.network is not None
    assert [each.operator for each in read_network(store.get(job.network)).nodes] == ["Layer", "Exp"]


def test_all_tilings_of_a_layer_with_a_pool_have_whole_windows() -> None:
    spec = behind(LARGE).with_pool().spec
    nonzeros = random_weights(spec, 0.9).nonzeros_per_output
    ranked = ranked_tilings(spec, 64, nonzeros, clusters=True)
    assert len(ranked) > 100
    assert all(has_whole_windows(tiled(spec, each)) for each in ranked)
    uneven = Tiling("conv2d", 112, 7, 1, 32, 4, 2)
    assert misfit_of(spec, uneven, nonzeros) == "its blocks have no whole windows of the pool"
    assert misfit_of(unpooled(spec), uneven, nonzeros) == ""


def test_a_layer_with_a_pool_is_of_the_rolled_form() -> None:
    spec = behind(DEEP).with_pool().spec
    with pytest.raises(TilingError, match="without input bounds, gates or a pool: leave out --template full"):
        choose_tiling(spec, 1, random_weights(spec, 0.9).nonzeros_per_output, form="full")


def test_a_fused_pool_is_predicted_faster_than_a_separate_one() -> None:
    tiling = Tiling("conv2d", 32, 8, 1, 64, 2, 8)
    joined = behind(LARGE).with_pool().spec
    assert isinstance(joined, Conv2d)
    apart = predict_microseconds(tiled(LARGE, tiling), 64, 0.1) + pool_microseconds(joined, 64)
    assert predict_microseconds(tiled(joined, tiling), 64, 0.1) < apart


def test_a_window_may_have_any_outcome_of_its_values() -> None:
    spec = Conv2d(1, 2, 4, 1, 1, 2, padding=(0, 0, 0, 1), epilogue=(LeakyRelu(0.5), MaxPool()), data_type="float16")
    weights = Weights(np.array([[[[60000, 60000]]]], np.float32), np.zeros(1, np.float32))
    x = np.array([[[[1, 1, 1, 0.25], [0, 0, -1, -1]]]], np.float16)
    first, *others = outcomes(spec, weights, x)
    left, right = (np.array([[[[value, np.nan]]]]) for value in (np.inf, 30000.0))
    assert not first.possible[..., 0].any()  # two products of 60,000 overflow
    assert any(each.is_met_by(left)[..., 0].all() for each in others)
    assert not any(each.is_met_by(right)[..., 0].any() for each in (first, *others))
