"""Launches replayed as a CUDA graph compute what they compute by themselves, and take a time that makes sense."""

from __future__ import annotations

import time

import numpy as np
import pytest

from codegen.errors import DeviceError
from codegen.ir.tiling import Part
from codegen.kernels import stream_count
from farm.cuda.graph import CudaGraph
from farm.cuda.measure.layer_data import LayerData, Shape
from tests.gpu.layers import ODD_LAYERS, weights_of
from tests.gpu.workbench import Workbench, whole

SEVERAL_GROUPS = next(
    name
    for name, odd in ODD_LAYERS.items()
    if odd.tiling.form == "rolled" and stream_count(odd.spec, odd.tiling) > 2 and odd.spec.data_type == "float32"
)


def test_parts_replayed_side_by_side_give_what_one_kernel_gives(workbench: Workbench) -> None:
    odd = ODD_LAYERS[SEVERAL_GROUPS]
    weights = weights_of(odd.spec, 0.5)
    device, parts = workbench.device, [Part(i, i + 1) for i in range(stream_count(odd.spec, odd.tiling))]
    kernels = workbench.cubins(workbench.kernels(odd.spec, odd.tiling, weights, parts))
    alone = workbench.cubins(workbench.kernels(odd.spec, odd.tiling, weights, whole(odd.spec, odd.tiling)))
    with LayerData(device, Shape(odd.spec, odd.batch, seed=1, sets=2), device.facts.l2_bytes) as stage:
        stream = device.new_stream()
        layer = device.load_layer(kernels, stream)
        stage.poison()

        def launch(i: int) -> None:
            layer(stage.inputs[i], stage.outputs[i], odd.batch, stage.residual_address)

        with CudaGraph(stream.handle, lambda: launch(0)) as graph:
            graph.replay()
            graph.replay()
            replayed = stage.output()
        expected = device.run_layer(alone, stage.x, odd.spec.output_shape, stage.residual)
        np.testing.assert_array_equal(replayed, expected)
        assert 0 < device.microseconds(launch, stage.sets, stream) < 10_000


def test_recording_runs_nothing(workbench: Workbench) -> None:
    odd = ODD_LAYERS[SEVERAL_GROUPS]
    device = workbench.device
    kernels = workbench.cubins(
        workbench.kernels(odd.spec, odd.tiling, weights_of(odd.spec, 0.5), whole(odd.spec, odd.tiling))
    )
    with LayerData(device, Shape(odd.spec, odd.batch, seed=1, sets=2), device.facts.l2_bytes) as stage:
        stream = device.new_stream()
        layer = device.load_layer(kernels, stream)
        stage.poison()
        with CudaGraph(stream.handle, lambda: layer(stage.inputs[0], stage.outputs[0], odd.batch)):
            assert np.isnan(stage.output()).all()


def test_a_stream_that_is_held_back_runs_nothing_until_it_is_let_go(workbench: Workbench) -> None:
    odd = ODD_LAYERS[SEVERAL_GROUPS]
    device = workbench.device
    kernels = workbench.cubins(
        workbench.kernels(odd.spec, odd.tiling, weights_of(odd.spec, 0.5), whole(odd.spec, odd.tiling))
    )
    with LayerData(device, Shape(odd.spec, odd.batch, seed=1, sets=2), device.facts.l2_bytes) as stage:
        stream = device.new_stream()
        layer = device.load_layer(kernels, stream)
        layer(stage.inputs[0], stage.outputs[0], odd.batch)
        stream.synchronize()
        with device.gate(stream).closed():
            layer(stage.inputs[0], stage.outputs[0], odd.batch)
            time.sleep(0.05)  # a kernel of microseconds would be done
            assert not stream.is_done()
        stream.synchronize()
        assert stream.is_done()


def test_what_fails_while_it_is_recorded_leaves_the_stream_usable(workbench: Workbench) -> None:
    device = workbench.device
    stream = device.new_stream()

    def fail() -> None:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        CudaGraph(stream.handle, fail)
    with CudaGraph(stream.handle, lambda: None) as graph:
        graph.replay()


def test_a_stream_that_cannot_be_recorded_is_an_error_in_words(workbench: Workbench) -> None:
    with pytest.raises(DeviceError, match="cuStreamBeginCapture_v2 failed"):
        CudaGraph(0, lambda: None)  # the default stream
