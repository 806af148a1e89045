"""Sessions of measurements: on a device whose kernels are played, everything else is real."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.ir.layer_spec import Conv2d
from codegen.model_zoo import prune
from codegen.selection.choose import choose_tiling
from codegen.verification.reference import layer_output
from farm.bench.layers import benchmark
from farm.bench.layers import session as sessions
from farm.bench.layers.contenders import GENERATED, PEERS
from farm.bench.layers.results import Measurement, read_results
from farm.bench.layers.roof import Peaks
from farm.bench.layers.session import Rules, Session
from farm.bench.layers.torch_gpu import NoTorchError
from farm.cuda.device import DeviceFacts
from farm.cuda.measure.kernels import BuiltLayer, NotBuiltError
from farm.cuda.measure.layer_data import set_count
from farm.cuda.measure.workload import Case, CaseKey, Choice, model_cases, operator_cases, structured_cases
from farm.errors import UsageError
from farm.qualification.files import shipped_records
from farm.qualification.record import qualifications_of
from farm.testing import laptop_settings
from tests.samples import checkpoint, fixed_toolchain, layer

PEAKS = Peaks(1e12, 1e12)


class LaunchError(Exception):
    """An error of the driver, as PyCUDA has them: of no class of Python's."""


class PlayedDevice:
    """Memory by address, and kernels that are Python: `cubin` is the number of one in `kernels`."""

    def __init__(self, kernels: dict[bytes, Callable[[NDArray[Any]], NDArray[Any]]]) -> None:
        self.facts = DeviceFacts(
            "NVIDIA Played", "sm_90", 90, "13.0", 100, 1e9, 1e9, 1024, 1 << 20, 1 << 30, "0000:00:00.0"
        )
        self.kernels = kernels
        self.memory: dict[int, NDArray[Any]] = {}
        self.freed = 0
        self.failure = LaunchError

    def __enter__(self) -> PlayedDevice:
        return self

    def __exit__(self, *_: object) -> None: ...

    def new_stream(self) -> SimpleNamespace:
        return SimpleNamespace(handle=0)

    def allocate(self, size_bytes: int) -> Any:
        def free() -> None:
            self.freed += 1

        block = SimpleNamespace(free=free, size_bytes=size_bytes)
        return type("Memory", (), {"__int__": lambda _: 4096, "free": lambda _: block.free()})()

    def upload(self, address: int, values: NDArray[Any]) -> None:
        self.memory[address] = values.copy()

    def copy(self, source: int, target: int, size_bytes: int) -> None:
        assert self.memory[source].nbytes == size_bytes
        self.memory[target] = self.memory[source]

    def poison(self, address: int, size_bytes: int) -> None:
        self.memory.pop(address, None)

    def download(self, address: int, values: NDArray[Any]) -> None:
        values[...] = self.memory.get(address, np.nan)

    def load_layer(self, kernels: Sequence[tuple[bytes, Any]], stream: Any) -> Callable[..., None]:
        def run(source: int, target: int, batch: int, residual: int | None) -> None:
            for cubin, _ in kernels:
                self.memory[target] = self.kernels[cubin](self.memory[source])

        return run

    def microseconds(self, launch: Callable[[int], None], sets: int, stream: Any) -> float:
        for i in range(sets):
            launch(i)
        return 7.0


@dataclass
class PlayedPool:
    """Layers whose one kernel is named by the case, or that do not build."""

    fails: set[str] = field(default_factory=set)
    built: list[str] = field(default_factory=list)

    def __enter__(self) -> PlayedPool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, case: Case, accumulate: str) -> Future[BuiltLayer]:
        self.built.append(name_of(case).decode())
        future: Future[BuiltLayer] = Future()
        if case.key.operator in self.fails:
            future.set_exception(NotBuiltError("ptxas ran into its time limit of 600 s"))
        else:
            tiling = choose_tiling(case.spec, case.images, case.weights.nonzeros_per_output)
            future.set_result(BuiltLayer(tiling, ((name_of(case), None),), 6.0, {"registers": 32}))
        return future

    def begin(self, compile_peer: object) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(None)
        return future


def name_of(case: Case) -> bytes:
    return f"{case.key.operator} {case.key.batch} {case.key.sparsity}".encode()


def session_of(
    monkeypatch: pytest.MonkeyPatch, cases: Sequence[Case], wrong: float = 0.0, pool: PlayedPool | None = None
) -> tuple[Session, PlayedDevice]:
    """Without torch; every kernel computes its layer, and is `wrong` in one output."""

    def missing(handle: int) -> None:
        raise NoTorchError("torch is not installed here")

    def kernel(case: Case) -> Callable[[NDArray[Any]], NDArray[Any]]:
        def compute(x: NDArray[Any]) -> NDArray[Any]:
            output = layer_output(case.spec, case.weights, x).astype(np.float32)
            output[0, 0, 0, 0] += wrong
            return output

        return compute

    monkeypatch.setattr(sessions, "TorchGpu", missing)
    device = PlayedDevice({name_of(case): kernel(case) for case in cases})
    rules = Rules(tuple(PEERS), PEAKS)
    return Session(device, pool or PlayedPool(), rules), device


def small_cases(sparsities: tuple[float, ...] = (0.9,)) -> list[Case]:
    net = checkpoint(layer("conv1", spec=Conv2d(3, 6, 6, 4, 3, 3, padding=(1, 1, 1, 1)), sparsity=0.0))
    return list(model_cases(net, [], Choice((2, 1), sparsities)))


def test_without_torch_kernels_are_measured_and_every_peer_says_why_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = small_cases()
    session, device = session_of(monkeypatch, cases)
    for case, found in zip(cases, session.run(cases), strict=True):
        own, *peers = found
        assert (own.contender, own.microseconds, own.reason) == (GENERATED, 7.0, "")
        assert own.relative_error is not None
        assert own.relative_error < 1e-6
        assert own.roof_microseconds is not None
        assert own.facts["nonzeros"] == case.weights.nonzeros
        assert [(each.contender, each.microseconds) for each in peers] == [(name, None) for name in PEERS]
        assert {each.reason for each in peers} == {"torch is not installed here"}
    assert device.freed == len(cases)


def test_a_wrong_kernel_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = small_cases()
    session, _ = session_of(monkeypatch, cases, wrong=0.5)
    own = [found[0] for found in session.run(cases)]
    assert all(each.microseconds is None and each.reason.startswith("wrong: ") for each in own)


def test_a_kernel_that_does_not_run_is_a_row_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = small_cases()
    session, device = session_of(monkeypatch, [first, second])

    def fails(x: NDArray[Any]) -> NDArray[Any]:
        raise LaunchError("an illegal memory access")

    device.kernels[name_of(first)] = fails
    found = [each[0] for each in session.run([first, second])]
    assert [each.microseconds for each in found] == [None, 7.0]
    assert found[0].reason == "LaunchError: an illegal memory access"


def test_a_defect_of_ours_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = small_cases()
    session, device = session_of(monkeypatch, cases)
    device.kernels.clear()
    with pytest.raises(KeyError):
        list(session.run(cases))


def test_what_does_not_build_is_a_row_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = small_cases()
    second = replace(second, key=replace(second.key, operator="other"))
    session, _ = session_of(monkeypatch, [first, second], pool=PlayedPool(fails={"conv1"}))
    found: list[Measurement] = [each[0] for each in session.run([first, second])]
    assert [each.microseconds for each in found] == [None, 7.0]
    assert found[0].reason == "ptxas ran into its time limit of 600 s"


def test_a_sweep_keeps_its_data_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = small_cases((0.5, 0.7, 0.9))
    session, device = session_of(monkeypatch, cases)
    assert len(list(session.run(cases))) == 6
    assert device.freed == 2


def test_an_interrupted_run_is_gone_on_with_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cases = small_cases((0.5, 0.9))
    _, device = session_of(monkeypatch, cases)
    pool = PlayedPool()
    monkeypatch.setattr(benchmark, "Device", lambda: device)
    monkeypatch.setattr(benchmark, "KernelPool", lambda *_, **__: pool)
    monkeypatch.setattr(benchmark, "find_toolchain", lambda *_: None)
    monkeypatch.setattr(benchmark, "known_toolchain", lambda *_: fixed_toolchain())
    plan = benchmark.Plan(file=tmp_path / "r.json", resume=True)
    told: list[tuple[int, int]] = []

    def tell(case: CaseKey, found: Sequence[Measurement], done: int, total: int) -> None:
        told.append((done, total))
        if told == [(1, 4)]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        benchmark.benchmark(laptop_settings(tmp_path), cases, plan, tell)
    assert {each.case for each in read_results(tmp_path / "r.json").measurements} == {cases[0].key}
    pool.built.clear()
    results = benchmark.benchmark(laptop_settings(tmp_path), cases, plan, tell)
    assert pool.built == [name_of(case).decode() for case in cases[1:]]
    assert told[1:] == [(2, 4), (3, 4), (4, 4)]
    assert read_results(tmp_path / "r.json") == results
    assert list(results.of(GENERATED)) == [case.key for case in cases]
    assert results.environment["gpu"] == "NVIDIA Played"
    assert results.environment["peaks"]["flops"] == 2 * 128 * 100 * 1e9


@pytest.mark.usefixtures("shipped_qualifications")
def test_kernels_are_measured_as_farm_compile_makes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cases = small_cases()
    _, device = session_of(monkeypatch, cases)
    asked: list[dict[str, Any]] = []

    def pool(*_: object, **options: Any) -> PlayedPool:
        asked.append(options)
        return PlayedPool()

    monkeypatch.setattr(benchmark, "Device", lambda: device)
    monkeypatch.setattr(benchmark, "KernelPool", pool)
    monkeypatch.setattr(benchmark, "find_toolchain", lambda *_: None)
    monkeypatch.setattr(benchmark, "known_toolchain", lambda *_: fixed_toolchain())
    for plan in (benchmark.Plan(), benchmark.Plan(assembler="ptxas")):
        results = benchmark.benchmark(laptop_settings(tmp_path), cases, plan, lambda *_: None)
        assert results.options["assembler"] == plan.assembler
    assert [each["assembler"] for each in asked] == ["auto", "ptxas"]
    assert asked[0]["qualifications"] == qualifications_of(shipped_records())


def test_sets_of_data_outgrow_the_l2_cache() -> None:
    assert set_count(10 << 20, 50 << 20) == 20
    assert set_count(1 << 30, 50 << 20) == 2
    assert set_count(64, 50 << 20) == 4096


def test_a_model_is_pruned_further_but_never_filled_up() -> None:
    net = checkpoint(layer("conv1", sparsity=0.5))
    (own,) = model_cases(net, ["conv1"], Choice((1,)))
    assert own.key.sparsity == pytest.approx(0.5, abs=0.01)
    (pruned,) = model_cases(net, [], Choice((1,), (0.9,)))
    assert pruned.weights.sparsity == pytest.approx(0.9, abs=0.01)
    with pytest.raises(UsageError, match=r"has sparsity \S+ already"):
        list(model_cases(net, [], Choice((1,), (0.1,))))
    with pytest.raises(UsageError, match="no such layer: conv7"):
        list(model_cases(net, ["conv7"], Choice()))


def test_the_same_operator_has_the_same_weights_pruned_further_along_a_sweep() -> None:
    low, high = operator_cases(["lenet-conv1"], Choice((1,), (0.5, 0.9)))
    np.testing.assert_array_equal(high.weights.kernel, prune(low.weights.kernel, 0.9))
    (half,) = operator_cases(["lenet-conv1"], Choice((1,), (0.5,), ("float16",)))
    np.testing.assert_array_equal(half.weights.kernel, low.weights.kernel.astype(np.float16))
    with pytest.raises(UsageError, match="no such operator: lenet"):
        list(operator_cases(["lenet"], Choice()))


def test_structured_pruning_halves_channels_kernels_or_both() -> None:
    cases = {case.key.operator: case.spec for case in structured_cases(["vgg-conv2", "lenet-conv1"], [1])}
    assert {name: (spec.channels, spec.output_channels) for name, spec in cases.items()} == {
        "vgg-conv2, PC": (32, 64),
        "vgg-conv2, PF": (64, 32),
        "vgg-conv2, Both": (32, 32),
        "lenet-conv1, PC": (1, 20),
        "lenet-conv1, PF": (1, 10),
        "lenet-conv1, Both": (1, 10),
    }
    assert all(math.prod(case.spec.weights_shape) == case.weights.nonzeros for case in structured_cases([], [1]))
