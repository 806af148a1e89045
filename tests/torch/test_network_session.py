"""Whole networks measured on a GPU that is played: what is checked, in which order, and what goes wrong."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import current_thread

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint
from codegen.model_zoo import lenet5, write_network
from farm.bench.layers.contenders import GENERATED
from farm.bench.layers.results import Measurement, read_results
from farm.bench.networks import benchmark
from farm.bench.networks.benchmark import NetworkPlan, benchmark_networks
from farm.bench.networks.cases import NetworkCase, NetworkModel, bundles_for, input_shapes, sent_cases
from farm.bench.networks.session import OVER, LoadedNetwork, NetworkRules, NetworkSession, layer_kernels
from farm.bench.networks.torch_timing import Timing
from farm.bundle.reader import Bundle
from farm.errors import NothingToCompileError, UsageError
from farm.store import open_store
from farm.testing import laptop_settings
from tests.torch.bundles import whole_bundle
from tests.torch.played_gpu import DENSE_LATENCY, OWN_LATENCY, PlayedGpu

EAGER = ["eager-fp32", "eager-tf32", "eager-fp16"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    write_network(tmp_path / "lenet5.onnx", lenet5(0.9, 0))
    return read_checkpoint(tmp_path / "lenet5.onnx")


IN_PARTS = 256
"""A batch that LeNet-5's fc1 has two launches for."""


def loaded(folder: Path, checkpoint: Checkpoint, batch: int = 8, compiled_for: int | None = None) -> LoadedNetwork:
    model = NetworkModel("lenet5", folder / "lenet5.onnx", checkpoint)
    path = whole_bundle(folder / f"lenet5-b{batch}.farm", checkpoint, compiled_for or batch)
    return LoadedNetwork(model.key(batch), checkpoint, Bundle(path))


def test_ours_and_the_dense_networks_are_checked_against_float64_and_timed(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    case = loaded(tmp_path, checkpoint, compiled_for=IN_PARTS)
    own, *dense = NetworkSession(PlayedGpu(checkpoint), NetworkRules(("eager",))).run([case])
    assert (own.contender, own.microseconds, own.reason) == (GENERATED, OWN_LATENCY, "")
    assert own.relative_error is not None
    assert 0 < own.relative_error < 1e-5
    assert own.facts["top1"] == 1.0
    assert own.facts["images_per_second"] == 8 / (OWN_LATENCY / 2) * 1e6
    assert (own.facts["layers"], own.facts["launches"]) == (4, 5)
    assert [each.contender for each in dense] == EAGER
    assert {each.microseconds for each in dense} == {DENSE_LATENCY}
    errors = {each.contender: each.relative_error or 0 for each in dense}
    assert errors["eager-fp32"] < 1e-5 < errors["eager-fp16"] < 1e-2


def test_the_time_of_a_replay_is_divided_by_kind_and_by_layer(tmp_path: Path, checkpoint: Checkpoint) -> None:
    case = loaded(tmp_path, checkpoint, compiled_for=IN_PARTS)
    [own] = NetworkSession(PlayedGpu(checkpoint), NetworkRules(())).run([case])
    found = own.facts["breakdown"]
    assert found["total_microseconds"] == 56
    assert [found[kind] for kind in ("compiled", "rest", "gaps")] == [round(part / 56, 4) for part in (42, 6, 8)]
    assert found["layer_microseconds"] == {"conv1": 10, "conv2": 10, "fc1": 12, "fc2": 10}


def test_wrong_numbers_have_no_time(tmp_path: Path, checkpoint: Checkpoint) -> None:
    [own] = NetworkSession(PlayedGpu(checkpoint, wrong=0.1), NetworkRules(())).run([loaded(tmp_path, checkpoint)])
    assert own.microseconds is None
    assert own.reason.startswith("wrong: relative error ")
    assert own.reason.endswith(", 1e-04 is allowed")


def test_what_torch_has_to_compile_comes_last(tmp_path: Path, checkpoint: Checkpoint) -> None:
    gpu = PlayedGpu(checkpoint)
    cases = [loaded(tmp_path, checkpoint, batch) for batch in (1, 8)]
    rules = NetworkRules(("eager", "compile"), ("fp16",))
    found = [(each.case.batch, each.contender) for each in NetworkSession(gpu, rules).run(cases)]
    assert found == [
        (1, GENERATED),
        (1, "eager-fp16"),
        (8, GENERATED),
        (8, "eager-fp16"),
        (1, "compile-fp16"),
        (8, "compile-fp16"),
    ]
    half = "torch.float16"
    twice = [half, half]  # with the algorithms that cuDNN predicts, and with those it finds
    assert gpu.begun == ["ours", *twice, "ours", *twice, "default", *twice, "default", *twice]


@pytest.mark.parametrize("mode", ["eager", "compile"])
def test_of_the_layouts_of_a_dense_network_the_faster_counts(
    mode: str, tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = PlayedGpu(checkpoint)
    times = iter([OWN_LATENCY, DENSE_LATENCY, DENSE_LATENCY, DENSE_LATENCY / 2, DENSE_LATENCY])
    monkeypatch.setattr(gpu, "time", lambda *_: Timing(found := next(times), found, 40.0))
    _, dense = NetworkSession(gpu, NetworkRules((mode,), ("tf32",))).run([loaded(tmp_path, checkpoint)])
    assert (dense.contender, dense.microseconds, dense.note) == (f"{mode}-tf32", DENSE_LATENCY / 2, "channels last")


@pytest.mark.parametrize("searched", [False, True])
def test_of_the_ways_to_choose_algorithms_the_faster_counts(
    searched: bool, tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, threads = PlayedGpu(checkpoint), []

    def time(*_: object) -> Timing:
        threads.append(current_thread())
        found = DENSE_LATENCY / 2 if torch.backends.cudnn.benchmark == searched else DENSE_LATENCY
        return Timing(found, found, 40.0)

    monkeypatch.setattr(gpu, "time", time)
    _, dense = NetworkSession(gpu, NetworkRules(("eager",), ("fp16",))).run([loaded(tmp_path, checkpoint)])
    assert dense.microseconds == DENSE_LATENCY / 2
    assert dense.note == "channels last" + ", algorithms searched" * searched
    assert len(set(threads)) == len(threads) == 3  # PyTorch keeps an algorithm for each thread


def test_max_autotune_compiles_ahead_within_a_limit(tmp_path: Path, checkpoint: Checkpoint) -> None:
    gpu = PlayedGpu(checkpoint)
    rules = NetworkRules(("max-autotune",), compile_seconds=30)
    case = loaded(tmp_path, checkpoint)
    _, *dense = NetworkSession(gpu, rules).run([case])
    assert [(each.contender, each.note) for each in dense] == [
        ("max-autotune-tf32", "channels last"),
        ("max-autotune-fp16", "channels last"),
    ]
    assert [each for each in gpu.begun if "within" in each] == [
        f"max-autotune-no-cudagraphs {precision} channels last within 30 s" for precision in ("tf32", "fp16")
    ]
    gpu.unfinished = "not finished in 30 s"
    _, *dense = NetworkSession(gpu, rules).run([case])
    assert [(each.microseconds, each.reason) for each in dense] == [(None, "not finished in 30 s")] * 2


def ticking(step: float) -> Callable[[], float]:
    now = iter(range(10**6))
    return lambda: next(now) * step


def test_nothing_is_begun_after_the_time_is_over(tmp_path: Path, checkpoint: Checkpoint) -> None:
    rules = NetworkRules(("eager",), seconds=3)
    found = list(NetworkSession(PlayedGpu(checkpoint), rules, ticking(1)).run([loaded(tmp_path, checkpoint)]))
    assert [each.reason for each in found] == ["", OVER, OVER, OVER]


def test_a_contender_that_fails_does_not_end_the_others(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such algorithm\nat line 3")

    gpu = PlayedGpu(checkpoint)
    monkeypatch.setattr(gpu, "load", fails)
    own, *dense = NetworkSession(gpu, NetworkRules(("eager",))).run([loaded(tmp_path, checkpoint)])
    assert (own.microseconds, own.reason) == (None, "no such algorithm")
    assert [each.contender for each in dense if each.microseconds] == EAGER


@pytest.mark.parametrize("step", ["load", "trace"])
def test_a_defect_of_ours_is_no_measurement(
    step: str, tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise AttributeError("no such attribute")

    gpu = PlayedGpu(checkpoint)
    monkeypatch.setattr(gpu, step, fails)
    with pytest.raises(AttributeError):
        list(NetworkSession(gpu, NetworkRules(("eager",))).run([loaded(tmp_path, checkpoint)]))


def test_a_profiler_that_does_not_work_costs_the_breakdown_only(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUPTI_ERROR_NOT_INITIALIZED")

    gpu = PlayedGpu(checkpoint)
    monkeypatch.setattr(gpu, "trace", fails)
    [own] = NetworkSession(gpu, NetworkRules(())).run([loaded(tmp_path, checkpoint)])
    assert own.microseconds == OWN_LATENCY
    assert own.facts["no_breakdown"] == "CUPTI_ERROR_NOT_INITIALIZED"


def played(monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint) -> PlayedGpu:
    gpu = PlayedGpu(checkpoint)
    monkeypatch.setattr(benchmark, "_network_gpu", lambda: gpu)
    return gpu


def compiled_here(folder: Path, model: NetworkModel, batch: int, arch: str) -> tuple[Path, float]:
    return whole_bundle(folder / f"made-{batch}.farm", model.checkpoint, batch, arch), 12.5


def test_what_is_given_is_measured_and_the_rest_compiled_for_the_gpu_that_is_there(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch, checkpoint)
    model = NetworkModel("lenet5", tmp_path / "lenet5.onnx", checkpoint)
    given = {model.key(1): whole_bundle(tmp_path / "given.farm", checkpoint, 1)}
    plan = NetworkPlan((model,), (1, 8), given, NetworkRules(("eager",)), tmp_path / "r.json")
    told: list[Measurement] = []

    def tell(measurement: Measurement) -> None:
        told.append(measurement)
        assert read_results(tmp_path / "r.json").measurements == tuple(told)  # a run that is cut off loses nothing

    compiled = partial(compiled_here, tmp_path)
    results = benchmark_networks(laptop_settings(tmp_path), plan, compiled, tell, local=True)
    assert results.of_networks
    assert results.environment["gpu"] == "NVIDIA Played"
    own = results.of(GENERATED)
    assert {case.batch: each.facts["compile_seconds"] for case, each in own.items()} == {1: None, 8: 12.5}


def test_a_network_that_is_better_left_dense_has_no_time_and_ends_no_others(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(model: NetworkModel, batch: int, arch: str) -> tuple[Path, float]:
        if batch == 8:
            raise NothingToCompileError("the network is as fast dense")
        return compiled_here(tmp_path, model, batch, arch)

    played(monkeypatch, checkpoint)
    model = NetworkModel("lenet5", tmp_path / "lenet5.onnx", checkpoint)
    plan = NetworkPlan((model,), (8, 1), rules=NetworkRules(()))
    found = benchmark_networks(laptop_settings(tmp_path), plan, compiled, lambda _: None, local=True).measurements
    assert [(each.case.batch, each.microseconds, each.reason) for each in found] == [
        (8, None, "the network is as fast dense"),
        (1, OWN_LATENCY, ""),
    ]


def test_a_bundle_that_runs_on_no_such_gpu_is_refused_before_anything_is_measured(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = played(monkeypatch, checkpoint)
    model = NetworkModel("lenet5", tmp_path / "lenet5.onnx", checkpoint)
    given = {model.key(8): whole_bundle(tmp_path / "given.farm", checkpoint, arch="sm_120")}
    plan = NetworkPlan((model,), (8,), given)
    with pytest.raises(UsageError, match=r"has sm_120 and the GPU is of sm_90, .*: compile the model with --arch"):
        benchmark_networks(
            laptop_settings(tmp_path), plan, partial(compiled_here, tmp_path), lambda _: None, local=True
        )
    assert not gpu.begun


def test_a_bundle_goes_with_the_model_whose_weights_it_has(tmp_path: Path, checkpoint: Checkpoint) -> None:
    write_network(tmp_path / "other.onnx", lenet5(0.9, 1))
    other = NetworkModel("other", tmp_path / "other.onnx", read_checkpoint(tmp_path / "other.onnx"))
    model = NetworkModel("lenet5", tmp_path / "lenet5.onnx", checkpoint)
    path = whole_bundle(tmp_path / "net.farm", checkpoint, 8)
    assert bundles_for([other, model], (8, 1), []) == {}
    assert bundles_for([other, model], (8,), [path]) == {model.key(8): path}
    with pytest.raises(UsageError, match=r"net\.farm is of none of the models \(other: its layer conv1 has other weig"):
        bundles_for([other], (8,), [path])
    with pytest.raises(UsageError, match="of lenet5 there are bundles for batch 8 and none for 1: say --batch 8, or"):
        bundles_for([model], (8, 1), [path])
    with pytest.raises(UsageError, match="both of lenet5 at batch 8"):
        bundles_for([model], (8,), [path, path])


def test_a_bundle_for_several_batch_sizes_has_a_case_for_each(tmp_path: Path, checkpoint: Checkpoint) -> None:
    model = NetworkModel("lenet5", tmp_path / "lenet5.onnx", checkpoint)
    path = whole_bundle(tmp_path / "net.farm", checkpoint, (1, 8, 64))
    assert bundles_for([model], (8, 64), [path]) == {model.key(8): path, model.key(64): path}
    kernels = {images: layer_kernels(Bundle(path), "sm_90", images) for images in (1, 2, 8, 64)}
    assert kernels[1] == kernels[2]
    assert kernels[8][2].kernels != kernels[64][2].kernels  # fc1 has a weight table for few images


def test_a_model_for_one_batch_size_only_says_so(tmp_path: Path, checkpoint: Checkpoint) -> None:
    proto = lenet5(0.9, 0)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    write_network(tmp_path / "fixed.onnx", proto)
    fixed = read_checkpoint(tmp_path / "fixed.onnx")
    case = replace(loaded(tmp_path, checkpoint), checkpoint=fixed)
    [own] = NetworkSession(PlayedGpu(fixed), NetworkRules(())).run([case])
    assert own.reason == "the model's input input is for 4 images only: say --batch 4"


def test_models_and_bundles_travel_through_the_store(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch, checkpoint)
    settings = laptop_settings(tmp_path)
    store = open_store(settings)
    model = NetworkModel("lenet5", tmp_path / "lenet5.onnx", checkpoint)
    path = whole_bundle(tmp_path / "net.farm", checkpoint, 8)
    case = NetworkCase(model.key(8), model.path, path, checkpoint=checkpoint)
    [sent] = pickle.loads(pickle.dumps(sent_cases([case], store)))
    model.path.unlink()
    path.unlink()
    [own] = benchmark.network_work(settings, [sent], NetworkRules(()))
    assert own.microseconds == OWN_LATENCY
    folder = whole_bundle(tmp_path / "folder", checkpoint, 8)
    with pytest.raises(UsageError, match=r"folder is a folder, and the GPU is of another machine: .* one file\.farm"):
        sent_cases([replace(case, model="0" * 64, bundle=folder)], store)


@pytest.mark.parametrize(("images", "shown"), [(None, "x:N,3,1"), (2, "x:2,3,1")])
def test_the_shape_to_give_keeps_what_the_file_fixes(images: int | None, shown: str) -> None:
    with pytest.raises(UsageError, match=f"say --input-shape {shown}$"):
        input_shapes([Tensor("x", "float32", (images, 3, None))], 2)
