"""A layer is left dense where the framework is clearly faster, by prediction, on every GPU that it is compiled for."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from codegen.frontend.model_file import read_model
from codegen.ir.layer_spec import Conv2d, Linear
from codegen.selection.dense_cost import predict_dense_microseconds
from codegen.target.device_model import DEVICES, device_named
from farm.api import Farm
from farm.errors import UsageError
from farm.jobs.dense_choice import LayerTimes, whole_left_dense
from farm.jobs.model import BuildOptions, NewJob
from farm.jobs.submission import new_job
from farm.store.memory import MemoryStore
from farm.testing import laptop_settings
from tests.benchmarks.dense_cost.fit import errors, read_points
from tests.samples import checkpoint, layer
from tests.unit.onnx_models import conv, info, model, pruned, save, tensor, values

SPARSE = layer("sparse", spec=Conv2d(64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1)), sparsity=0.99)
DENSE = layer("dense", spec=Conv2d(64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1)), sparsity=0.1)
OPTIONS = BuildOptions(("sm_90",), allow_tf32=True)


def submitted(options: BuildOptions = OPTIONS) -> NewJob:
    return new_job(checkpoint(SPARSE, DENSE), options, namespace="test", name="net", store=MemoryStore())


def test_a_layer_with_few_zeros_is_left_dense_and_the_reason_names_both_times_and_the_way_out() -> None:
    job = submitted()
    assert [build.layer for build in job.builds] == ["sparse"]
    [left] = job.skipped
    assert (left.name, left.kind, left.weights) == ("dense", "left dense", DENSE.spec.weights_count)
    assert "us in PyTorch" in left.reason
    assert "(TF32, H200); --leave-dense never compiles it" in left.reason


@pytest.mark.parametrize("change", [{"leave_dense": "never"}, {"strict": True}, {"allow_tf32": False}])
def test_it_is_compiled_if_that_is_asked_for_or_if_the_framework_is_as_slow(change: dict[str, Any]) -> None:
    assert [build.layer for build in submitted(replace(OPTIONS, **change)).builds] == ["sparse", "dense"]


def test_it_is_compiled_if_one_of_the_architectures_gains() -> None:
    slow = next(each for each in DEVICES["sm_75"] if each.name == "GTX 1650")
    assert predict_dense_microseconds(DENSE.spec, 64, "fp32", device=slow) > 1000
    both = submitted(replace(OPTIONS, archs=("sm_75", "sm_90"), allow_tf32=False))
    assert not both.skipped


def times(compiled: float, left: float, dense: float) -> LayerTimes:
    return LayerTimes("FP16, H100", compiled, left, dense)


def test_a_network_that_gains_little_is_left_dense_as_a_whole_and_the_reason_names_both_times() -> None:
    layers = [((times(50, 60, 50),), False), ((times(90, 60, 50),), True)]
    assert whole_left_dense(layers, OPTIONS) == (
        "the network is as fast dense, by prediction: 100.0 us in PyTorch, 110.0 us compiled (FP16, H100); "
        "--leave-dense never compiles it"
    )
    faster = [((times(20, 60, 50),), False), ((times(90, 60, 50),), True)]
    assert not whole_left_dense(faster, OPTIONS)
    on_two = [((*slow, *fast), left) for (slow, left), (fast, _) in zip(layers, faster, strict=True)]
    assert not whole_left_dense(on_two, OPTIONS)
    assert not whole_left_dense(layers, replace(OPTIONS, leave_dense="never"))


def test_a_layer_below_the_least_sparsity_is_left_dense_in_any_case() -> None:
    never = replace(OPTIONS, leave_dense="never", min_sparsity=0.9)
    [left] = submitted(never).skipped
    assert left.reason == "10.0% of its weights are zero, less than --min-sparsity"
    with pytest.raises(UsageError, match="no layer can be compiled: sparse"):
        submitted(replace(never, min_sparsity=0.99))


def test_predictions_of_each_kind_are_within_a_factor_of_two_of_nearly_all_that_was_measured() -> None:
    kinds = defaultdict(list)
    for point in read_points():
        kinds[point.kind].append(point)
    assert len(kinds) == 18
    for kind, points in kinds.items():
        found = errors(points)
        assert statistics.fmean(abs(each) < log(2) for each in found) >= 0.9, kind
        assert abs(statistics.fmean(found)) < 0.1, kind


def test_a_dense_layer_takes_longer_with_more_images_and_on_a_smaller_gpu() -> None:
    spec = Conv2d(256, 14, 14, 256, 3, 3, padding=(1, 1, 1, 1))
    times = [predict_dense_microseconds(spec, images, "fp16") for images in (1, 8, 64, 512)]
    assert times == sorted(times)
    for precision in ("fp32", "tf32", "fp16"):
        a100, t4 = (device_named(name) for name in ("a100", "t4"))
        assert a100 is not None
        assert t4 is not None
        of_a100, of_t4 = (predict_dense_microseconds(spec, 64, precision, device=each) for each in (a100, t4))
        assert predict_dense_microseconds(spec, 64, precision) < of_a100 < of_t4
    rows = [predict_dense_microseconds(Linear(384, 1536), each, "tf32") for each in (8, 1568, 25088)]
    assert rows == sorted(rows)


def test_a_program_without_a_framework_refuses_a_network_with_a_layer_that_was_left_dense(tmp_path: Path) -> None:
    sparse, dense = pruned(8, 8, 3, 3, seed=1), values(8, 8, 3, 3)
    nodes = [conv("a", ("x", "sparse"), "h", pads=[1] * 4), conv("b", ("h", "dense"), pads=[1] * 4)]
    proto = model(nodes, [tensor("sparse", sparse), tensor("dense", dense)], inputs=[info("x", ("N", 8, 9, 9))])
    found = read_model(save(tmp_path, proto))
    with Farm.open(laptop_settings(tmp_path)) as farm:
        whole = farm.submit([found], BuildOptions(("sm_90",), leave_dense="never"), name="whole")
        partly = farm.submit([found], BuildOptions(("sm_90",), min_sparsity=0.5), name="partly")
    assert not [each for each in whole.warnings if "Conv" in each]
    assert [each for each in partly.warnings if "Conv" in each and "farm run" in each]
