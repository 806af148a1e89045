"""Times of kernels in a network: a tuning record's time counts before a prediction, on GPUs of its architecture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codegen.ir.layer_spec import Conv2d
from codegen.kernels import tiled
from codegen.selection.choose import choose_tiling
from codegen.selection.cost_model import (
    GAP_MICROSECONDS,
    MEASURED_IN_NETWORK,
    network_microseconds,
    predict_microseconds,
)
from codegen.target.device_model import DeviceModel, device_named
from farm.jobs.kernel_times import kernel_microseconds
from farm.jobs.model import BuildOptions, NewJob, TilingChoice
from farm.jobs.submission import new_job
from farm.tuning.book import TuningBook, key_of
from farm.tuning.record import TuningRecord
from tests.samples import checkpoint, layer
from tests.tuning_samples import record

SPEC = Conv2d(64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1))
SPARSE = layer("sparse", spec=SPEC, sparsity=0.95)
NONZEROS = SPARSE.weights.nonzeros_per_output
TILING = choose_tiling(SPEC, 64, NONZEROS, clusters=True)
DENSITY = int(NONZEROS.sum()) / SPEC.weights_count
OPTIONS = BuildOptions(("sm_90",), allow_tf32=True)


def gpu(name: str) -> DeviceModel:
    found = device_named(name)
    assert found is not None
    return found


def time_on(device: str, *choices: TilingChoice, images: int = 64) -> float:
    return kernel_microseconds(SPEC, TILING, images, DENSITY, gpu(device), choices)


def predicted(device: str, images: int = 64) -> float:
    return network_microseconds(tiled(SPEC, TILING), images, DENSITY, gpu(device))


def in_network(measured: float) -> float:
    return MEASURED_IN_NETWORK["float32"] * measured + GAP_MICROSECONDS


def test_a_measured_time_counts_on_the_gpu_where_it_was_taken_and_the_way_to_the_next_layer_beside_it() -> None:
    measured = TilingChoice("sm_90", "NVIDIA H200", measured=((8, 2.0), (64, 7.5)))
    assert time_on("h200", measured) == in_network(7.5)
    assert time_on("h200", TilingChoice("sm_80"), measured, images=8) == in_network(2.0)


def test_on_another_gpu_of_the_architecture_it_is_longer_as_predicted() -> None:
    measured = TilingChoice("sm_90", "NVIDIA H200", measured=((64, 7.5),))
    there, here = (
        predict_microseconds(tiled(SPEC, TILING), 64, DENSITY, device=gpu(each)) for each in ("h100", "h200")
    )
    assert there > here
    assert time_on("h100", measured) == pytest.approx(in_network(7.5 * there / here))


def test_for_other_images_of_its_band_it_changes_as_predicted() -> None:
    measured = TilingChoice("sm_90", "NVIDIA H200", measured=((8, 2.0), (64, 7.5)))
    at_56, at_64 = (predict_microseconds(tiled(SPEC, TILING), images, DENSITY) for images in (56, 64))
    assert at_56 < at_64
    assert time_on("h200", measured, images=56) == pytest.approx(in_network(7.5 * at_56 / at_64))


@pytest.mark.parametrize(
    "choice",
    [
        TilingChoice("sm_90"),
        TilingChoice("sm_90", "NVIDIA H200"),
        TilingChoice("sm_90", "NVIDIA H200", measured=((32, 7.5),)),
        TilingChoice("sm_90", "NVIDIA Made-Up", measured=((64, 7.5),)),
        TilingChoice("sm_80", "NVIDIA A100", measured=((64, 7.5),)),
    ],
    ids=str,
)
def test_without_a_time_of_this_case_it_is_predicted(choice: TilingChoice) -> None:
    assert time_on("h200", choice) == predicted("h200")


def cold(microseconds: float, batch: int = 64, gpu: str = "NVIDIA H200") -> TuningRecord:
    found = record(TILING, SPARSE, gpu=gpu, batch=batch)
    return replace(found, cold_microseconds=microseconds, model_cold_microseconds=microseconds)


def submitted(*records: TuningRecord, options: BuildOptions = OPTIONS) -> NewJob:
    other = layer("other", spec=replace(SPEC, channels=256, output_channels=256), sparsity=0.99)
    book = TuningBook.of(records)
    return new_job(checkpoint(SPARSE, other), options, namespace="test", name="net", store=None, book=book)


def times(*records: TuningRecord, batches: tuple[int, ...]) -> list[tuple[tuple[int, float], ...]]:
    """The measured times of the first layer's builds."""
    job = submitted(*records, options=BuildOptions(("sm_90",), batches, leave_dense="never"))
    return [choice.measured for build in job.builds if build.layer == "sparse" for choice in build.choices]


def test_a_measured_time_decides_what_is_left_dense() -> None:
    assert not submitted(cold(5.0)).skipped
    [left] = submitted(cold(900.0)).skipped
    assert (left.name, left.kind) == ("sparse", "left dense")
    assert f"{in_network(900.0):.1f} us compiled" in left.reason


def test_each_batch_size_has_the_time_that_was_measured_for_it() -> None:
    assert times(cold(3.0, 16), cold(9.0), batches=(16, 50, 64)) == [((16, 3.0), (64, 9.0))]


def test_times_of_two_gpus_are_not_mixed() -> None:
    assert times(cold(3.0, 16, "NVIDIA GH200 480GB"), cold(9.0), batches=(16, 64)) == [((16, 3.0),)]


def test_a_warm_time_is_no_time_in_a_network() -> None:
    assert times(record(TILING, SPARSE, gpu="NVIDIA H200"), batches=(64,)) == [()]


def test_a_record_of_another_density_or_accumulator_is_no_measurement() -> None:
    denser = layer("denser", spec=SPEC, sparsity=0.92).weights.nonzeros_per_output
    [(tiling, choice)] = TuningBook.of([cold(5.0)]).tilings(SPEC, 64, denser, OPTIONS)
    assert (tiling, choice) == (TILING, TilingChoice("sm_90", "NVIDIA H200"))
    halves = replace(SPEC, channels=256, data_type="float16")
    many = np.full(64, 300)
    key = key_of("sm_90", halves, 64, many, "float32", 3)
    slow = replace(cold(5.0), key=key, tiling=choose_tiling(halves, 64, many, clusters=True))
    for accumulate, measured in (("float32", ((64, 5.0),)), ("float16", ())):
        [(_, choice)] = TuningBook.of([slow]).tilings(halves, 64, many, replace(OPTIONS, accumulate=accumulate))
        assert (choice.gpu, choice.measured) == ("NVIDIA H200", measured)
