"""Device models: a GPU's figures by its name, and predictions and tilings for that GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codegen.errors import ArchError
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from codegen.ir.tiling import Tiling
from codegen.kernels import launch_of, lower, tiled
from codegen.selection.candidates import candidates
from codegen.selection.choose import choose_tiling, misfit_of, ranked_tilings
from codegen.selection.coefficients import OF_CONVOLUTIONS, OF_FLOAT16, OF_FLOAT32
from codegen.selection.cost_model import pool_microseconds, predict_microseconds
from codegen.selection.costs.occupancy import clusters_at_once, multiprocessors_for, resident_blocks
from codegen.selection.costs.scaling import clocks_per_microsecond, multiply_add_slots, scaled_cluster, scaled_stream
from codegen.selection.ranking import ABOUT_EQUAL
from codegen.target.arch import check_gpus, has_clusters
from codegen.target.device_model import DEVICES, REFERENCE, DeviceModel, device_for, device_named, typical_device
from farm.jobs.model import BuildOptions
from farm.tuning.book import NO_RECORDS

MIDDLE = Conv2d(64, 28, 28, 64, 3, 3, padding=(1, 1, 1, 1))
DEEP = Conv2d(512, 7, 7, 2048, 1, 1)
TABLE_LAYER = Linear(4096, 4096)


def tenth(spec: LayerSpec) -> np.ndarray:
    per_output = spec.weights_count // spec.output_shape[0]
    return np.full(spec.output_shape[0], max(1, per_output // 10))


def gpu(name: str) -> DeviceModel:
    device = device_named(name)
    assert device is not None
    return device


def microseconds_on(device: DeviceModel, spec: LayerSpec, tiling: Tiling, batch: int = 64) -> float:
    return predict_microseconds(tiled(spec, tiling), batch, 0.1, device=device)


@pytest.mark.parametrize(
    ("name", "model", "multiprocessors"),
    [
        ("rtx4090", "RTX 4090", 128),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 128),
        ("Tesla T4", "T4", 40),
        ("h100", "H100", 132),
        ("NVIDIA H100 80GB HBM3", "H100", 132),
        ("NVIDIA H100 PCIe", "H100 PCIe", 114),
        ("NVIDIA A100-SXM4-80GB", "A100", 108),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB", 108),
        ("NVIDIA GB10", "GB10", 48),
        ("orin", "Jetson AGX Orin", 16),
        ("NVIDIA Jetson Orin Nano", "Jetson Orin Nano", 8),
        ("NVIDIA Thor", "Jetson AGX Thor", 20),
        ("thor", "Jetson AGX Thor", 20),
        ("T4000", "Jetson T4000", 12),
    ],
)
def test_a_gpus_figures_are_found_by_its_name_in_any_spelling(name: str, model: str, multiprocessors: int) -> None:
    device = gpu(name)
    assert (device.name, device.multiprocessors) == (model, multiprocessors)


@pytest.mark.parametrize("name", ["", "nvidia", "V100", "sm_90", "90"])
def test_a_name_outside_the_table_has_no_figures(name: str) -> None:
    assert device_named(name) is None


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_75", "T4"),
        ("sm_80", "A100"),
        ("sm_88", "Jetson AGX Orin"),
        ("sm_90", "H200"),
        ("sm_90a", "H200"),
        ("sm_100f", "B200"),
        ("sm_120", "RTX 5090"),
        ("sm_121", "GB10"),
    ],
)
def test_an_architecture_has_a_typical_gpu(arch: str, name: str) -> None:
    assert typical_device(arch).name == name


def test_the_first_named_gpu_of_an_architecture_stands_for_it() -> None:
    assert device_for("sm_80", ["rtx4090", "A30", "A100"]).name == "A30"
    assert device_for("sm_90a", ["h100"]).name == "H100"
    assert device_for("sm_75", ["rtx4090", "no such GPU"]).name == "T4"


def test_the_figures_of_every_gpu_are_plausible() -> None:
    for device in (each for of_arch in DEVICES.values() for each in of_arch):
        assert 8 <= device.multiprocessors <= 200, device
        assert 1000 <= device.clock_mhz <= 2700, device
        assert 4 <= device.dram_gigabytes_per_second / device.multiprocessors <= 60, device
        assert device.l2_gigabytes_per_second > device.dram_gigabytes_per_second, device
        limits = device.multiprocessor
        assert 48 * 1024 <= limits.block_shared_bytes <= limits.shared_bytes, device


def test_the_fitted_coefficients_are_the_h200s_as_they_are() -> None:
    for of in (OF_FLOAT32, OF_FLOAT16):
        assert scaled_stream(of, REFERENCE) == of
    assert scaled_cluster(OF_CONVOLUTIONS, REFERENCE) == OF_CONVOLUTIONS
    assert clocks_per_microsecond(REFERENCE) == 1755.0
    assert [clusters_at_once(REFERENCE, cluster) for cluster in (1, 2, 4, 8, 16)] == [132, 66, 30, 15, 8]
    assert {multiply_add_slots(REFERENCE, each) for each in ("float32", "float16", "bfloat16")} == {1.0}


def test_fewer_blocks_are_resident_where_a_multiprocessor_has_less() -> None:
    assert resident_blocks(REFERENCE, 8, 32, 48 * 1024) == 4
    assert resident_blocks(gpu("RTX 4090"), 8, 32, 48 * 1024) == 2
    assert resident_blocks(gpu("T4"), 8, 32, 48 * 1024) == 1
    assert resident_blocks(gpu("T4"), 8, 32, 0) == 4  # of 32 warps
    assert multiprocessors_for(gpu("RTX 5050"), 8) == 16  # of 20: a cluster stays within a GPC


def test_a_layer_takes_longer_on_a_gpu_that_has_less_of_what_it_needs() -> None:
    tiling = choose_tiling(MIDDLE, 64, tenth(MIDDLE))
    reference = microseconds_on(REFERENCE, MIDDLE, tiling)
    assert microseconds_on(replace(REFERENCE, clock_mhz=990), MIDDLE, tiling) > 1.5 * reference
    assert microseconds_on(replace(REFERENCE, multiprocessors=66), MIDDLE, tiling) > 1.5 * reference
    lanes = replace(REFERENCE.multiprocessor, float32_lanes=32)
    assert microseconds_on(replace(REFERENCE, multiprocessor=lanes), MIDDLE, tiling) > 1.5 * reference
    slow = replace(REFERENCE, dram_gigabytes_per_second=480)
    assert microseconds_on(slow, MIDDLE, tiling) > 1.1 * reference
    assert pool_microseconds(MIDDLE, 64, slow) > 5 * pool_microseconds(MIDDLE, 64)


def test_rows_of_a_weight_table_come_at_the_speed_of_the_memory() -> None:
    tiling = next(candidates(lower(TABLE_LAYER), "tables"))
    once, slower = (
        microseconds_on(replace(REFERENCE, dram_gigabytes_per_second=rate), TABLE_LAYER, tiling, 1)
        for rate in (4800, 480)
    )
    assert slower > once + 0.9 * 9 * 4 * 0.1 * TABLE_LAYER.weights_count / 4.2e6


@pytest.mark.parametrize(("spec", "batch"), [(MIDDLE, 64), (DEEP, 1), (Linear(1024, 1000), 16)])
@pytest.mark.parametrize("name", ["T4", "A100", "RTX 5090"])
def test_the_first_tiling_is_about_the_fastest_on_that_gpu(name: str, spec: LayerSpec, batch: int) -> None:
    device = gpu(name)
    ranked = ranked_tilings(spec, batch, tenth(spec), clusters=has_clusters(device.arch), device=device)
    times = [microseconds_on(device, spec, each, batch) for each in ranked if not each.reads_table]
    assert microseconds_on(device, spec, ranked[0], batch) <= ABOUT_EQUAL * min(times)


def test_the_h200s_choice_stays_where_it_is_about_as_fast() -> None:
    device, nonzeros = gpu("A100"), tenth(MIDDLE)
    ranked, of_h200 = (ranked_tilings(MIDDLE, 64, nonzeros, device=each) for each in (device, REFERENCE))
    times = {each: microseconds_on(device, MIDDLE, each) for each in ranked}
    equal = [each for each in of_h200 if times[each] <= ABOUT_EQUAL * min(times.values())]
    assert list(ranked[: len(equal)]) == equal
    assert [times[each] for each in ranked[len(equal) :]] == sorted(times.values())[len(equal) :]


@pytest.mark.parametrize(("spec", "batch"), [(DEEP, 1), (Linear(1536, 384), 1568)], ids=["clusters", "large blocks"])
def test_no_block_gets_more_shared_memory_than_the_gpu_has(spec: LayerSpec, batch: int) -> None:
    most = {}
    for name in ("H200", "RTX 5090"):
        ranked = ranked_tilings(spec, batch, tenth(spec), clusters=True, device=gpu(name))
        most[name] = max(launch_of(spec, each).shared_bytes for each in ranked)
    assert most["RTX 5090"] <= 99 * 1024 < most["H200"]


def test_a_measured_tiling_with_more_shared_memory_than_the_gpu_has_does_not_fit() -> None:
    large = max(
        (each for each in ranked_tilings(DEEP, 1, tenth(DEEP), clusters=True) if each.reads_table),
        key=lambda each: launch_of(DEEP, each).shared_bytes,
    )
    assert misfit_of(DEEP, large, tenth(DEEP)) == ""
    assert "shared memory" in misfit_of(DEEP, large, tenth(DEEP), gpu("RTX 5090"))


def test_each_architecture_of_a_job_gets_the_tiling_of_its_own_gpu() -> None:
    options = BuildOptions(("sm_75", "sm_90"), tuning=False)
    nonzeros = tenth(MIDDLE)
    [(turing, _), (hopper, _)] = NO_RECORDS.tilings(MIDDLE, 64, nonzeros, options)
    assert turing == choose_tiling(MIDDLE, 64, nonzeros, device=gpu("T4"))
    assert hopper == choose_tiling(MIDDLE, 64, nonzeros, clusters=True)
    assert turing != choose_tiling(MIDDLE, 64, nonzeros)


def test_build_options_keep_their_gpus() -> None:
    options = BuildOptions(("sm_80", "sm_89"), gpus=("A30",))
    assert BuildOptions.from_json(options.to_json()) == options
    assert [options.device(arch).name for arch in options.archs] == ["A30", "RTX 4090"]


def test_gpus_are_given_by_any_spelling_of_their_names() -> None:
    assert check_gpus(["rtx-4090", "NVIDIA A100-SXM4-40GB"], ["sm_80", "sm_89"]) == ("RTX 4090", "A100 40GB")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["h1000"], r"unknown GPU 'h1000' \(nearest: H100"),
        (["V100"], "unknown GPU 'V100'"),
        (["rtx4090"], "RTX 4090 has another architecture: add --arch sm_89"),
        (["a100", "a30"], "A100 and A30 are both sm_80: name one"),
    ],
)
def test_a_gpu_that_the_job_cannot_be_for_is_an_error_with_a_way_out(names: list[str], message: str) -> None:
    with pytest.raises(ArchError, match=message):
        check_gpus(names, ["sm_80"])
