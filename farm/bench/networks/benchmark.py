"""One run of `farm bench network`: compiles networks for the GPU and measures them on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint
from codegen.toolchain.temp_folders import TempFolder
from farm.bench.environment import network_environment
from farm.bench.layers.contenders import GENERATED
from farm.bench.layers.results import NETWORKS_KIND, Measurement, Results, write_results
from farm.bench.networks.cases import NetworkCase, NetworkModel, Source, check_arch, received, sent_cases
from farm.bench.networks.session import LoadedNetwork, NetworkRules, NetworkSession
from farm.bundle.reader import Bundle
from farm.config.settings import Settings, compilations_folder
from farm.cuda.measure.workload import CaseKey
from farm.errors import NothingToCompileError, UsageError
from farm.executors import open_gpu
from farm.executors.contract import Notice, no_notice
from farm.extras import way_out
from farm.store import open_store

Compile = Callable[[NetworkModel, int, str], tuple[Path, float]]
"""Compiles a model for a batch and an architecture; returns its bundle and the seconds taken."""
Told = Callable[[Measurement], None]


@dataclass(frozen=True)
class NetworkPlan:
    """Settings of a network benchmark."""

    models: tuple[NetworkModel, ...]
    batches: tuple[int, ...]
    bundles: Mapping[CaseKey, Path] = field(default_factory=dict)
    """Existing bundles; others are compiled."""
    rules: NetworkRules = field(default_factory=NetworkRules)
    file: Path | None = None
    """File rewritten with each result."""

    def to_json(self) -> dict[str, Any]:
        """Options that affect the measurements."""
        rules = self.rules
        return {
            "kind": NETWORKS_KIND,
            "modes": list(rules.modes),
            "precisions": list(rules.precisions),
            "seed": rules.seed,
            "seconds": rules.seconds,
        }


def benchmark_networks(
    settings: Settings, plan: NetworkPlan, compiled: Compile, tell: Told, *, local: bool, notice: Notice = no_notice
) -> Results:
    """Measures all models at all batches on a GPU of the cluster or, with `local`, of this machine.

    A contender that cannot run yields a measurement with a reason. Raises DeviceError and NoWorkerError without a
    GPU, UsageError without torch there or for a bundle without code for that GPU.
    """
    with open_gpu(settings, local=local, notice=notice) as gpu:
        [environment] = gpu.run(environment_work)
        results = Results(environment, plan.to_json())
        if plan.file:
            write_results(plan.file, results)  # before minutes are spent: writing may fail
        cases, refused = [], []
        for model, batch in _wanted(plan):
            try:
                cases.append(_case(plan, model, batch, environment["device"]["arch"], compiled))
            except NothingToCompileError as error:
                refused.append(Measurement(model.key(batch), GENERATED, None, str(error)))
        sent = sent_cases(cases, open_store(settings)) if gpu.is_remote else cases
        for measurement in chain(refused, gpu.run(partial(network_work, cases=sent, rules=plan.rules))):
            results = replace(results, measurements=(*results.measurements, measurement))
            if plan.file:
                write_results(plan.file, results)
            tell(measurement)
    return results


def _wanted(plan: NetworkPlan) -> list[tuple[NetworkModel, int]]:
    return [(model, batch) for model in plan.models for batch in plan.batches]


def _case(plan: NetworkPlan, model: NetworkModel, batch: int, arch: str, compiled: Compile) -> NetworkCase:
    key = model.key(batch)
    path, seconds = plan.bundles.get(key), None
    if path is None:
        path, seconds = compiled(model, batch, arch)
    check_arch(Bundle(path), arch)
    return NetworkCase(key, model.path, path, dict(model.shapes), dict(model.values), seconds, model.checkpoint)


def environment_work(_settings: Settings) -> Generator[dict[str, Any], None, None]:
    """Yields the environment. Raises DeviceError, and UsageError without torch."""
    yield network_environment(*_gpu_facts())


def network_work(
    settings: Settings, cases: Sequence[NetworkCase], rules: NetworkRules
) -> Generator[Measurement, None, None]:
    """Yields each contender's measurement. Raises DeviceError, and UsageError without torch."""
    gpu = _network_gpu()
    store = open_store(settings)
    with TempFolder("networks") as folder, gpu.compilations_kept(compilations_folder()):
        read: dict[Source, Checkpoint] = {case.model: case.checkpoint for case in cases if case.checkpoint}
        loaded: list[LoadedNetwork] = []
        for i, case in enumerate(cases):
            if case.model not in read:
                model = received(case.model, f"{case.key.operator}.onnx", folder, store)
                read[case.model] = read_checkpoint(model, case.shapes, case.values)
            bundle = Bundle(received(case.bundle, f"{i}.farm", folder, store))
            loaded.append(LoadedNetwork(case.key, read[case.model], bundle, case.compile_seconds))
        yield from NetworkSession(gpu, rules).run(loaded)


def _gpu_facts() -> tuple[dict[str, Any], dict[str, str]]:
    gpu = _network_gpu()
    return gpu.facts(), gpu.versions()


def _network_gpu() -> Any:
    try:
        from farm.bench.networks.torch_timing import NetworkGpu
    except ImportError as error:
        raise UsageError(
            f"whole networks are measured in PyTorch: PyTorch is missing here ({error}): {way_out('torch')}"
        ) from None
    return NetworkGpu()
