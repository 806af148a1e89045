"""The figures of BENCHMARKS.md that need no GPU.

    python -m tests.benchmarks [templates] [rewrite] [overhead] [cached] [startup] [resnet50] [largest] [ledger]
        [submission] [coordinator] [growth] [bulk] [outlook] [code_size] [tool_time]

Both sides of a comparison run in this one process group; quote ratios, the machine is rarely quiet.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import Conv2d
from codegen.model_zoo import TEN_OPERATORS, lenet5, operator_network, random_weights, resnet18, resnet50, write_network
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import make_template
from codegen.selection.choose import choose_parts, choose_tiling
from codegen.toolchain.ptxas import ptxas_options
from codegen.toolchain.tools import ToolLimits, find_toolchain
from farm.api import Farm
from farm.config.settings import Settings, load_settings
from farm.executors import open_executor
from farm.jobs.model import BuildOptions, Status
from farm.ledger import open_ledger
from farm.scheduler.coordinator import Coordinator
from farm.store import open_store
from tests.benchmarks import bulk, code_size, coordinator, direct, growth, ledger, outlook, submission, tool_time

LIMITS = ToolLimits()
SPARSITY = 0.9
ARCHS = ("sm_80", "sm_90", "sm_120")


def templates() -> None:
    """Each operator's template, rolled, cold: at most 5 s."""
    toolchain = find_toolchain()
    for name, spec in TEN_OPERATORS.items():
        tiling = choose_tiling(spec, 64, random_weights(spec, SPARSITY).nonzeros_per_output)
        start = time.perf_counter()
        make_template(spec, tiling, "compute_80", toolchain, LIMITS)
        print(f"  {name:<15}{time.perf_counter() - start:6.2f} s")


def rewriting() -> None:
    """resnet-conv2 at sparsity 0.9, template in memory: at most 50 ms."""
    spec = TEN_OPERATORS["resnet-conv2"]
    weights = random_weights(spec, SPARSITY)
    tiling = choose_tiling(spec, 64, weights.nonzeros_per_output)
    template = make_template(spec, tiling, "compute_80", find_toolchain(), LIMITS)
    times = []
    for _ in range(21):
        start = time.perf_counter()
        kernel = rewrite(template, weights)
        times.append(time.perf_counter() - start)
    assert kernel.fmas_kept == weights.nonzeros
    print(f"  median {statistics.median(times) * 1e3:.1f} ms of 21, {kernel.fmas_kept} of {spec.weights_count} kept")


def farm_variables(folder: Path) -> dict[str, str]:
    return {
        "FARM_STORE": f"file://{folder / 'store'}",
        "FARM_DATABASE_URL": f"sqlite:///{folder / 'farm.db'}",
        "FARM_JOBS": str(len(os.sched_getaffinity(0))),
    }


def settings_in(folder: Path) -> Settings:
    return load_settings(farm_variables(folder))


def overhead() -> None:
    """A ResNet-18 for three architectures against the same PTX through a bare parallel loop of ptxas: at most 1.10x."""
    toolchain = find_toolchain()
    with tempfile.TemporaryDirectory(prefix="sparse-farm-") as name:
        folder = Path(name)
        settings = settings_in(folder)
        store, ledger = open_store(settings), open_ledger(settings)
        farm = Farm(settings, store, ledger)
        models = []
        for seed in range(3):
            write_network(folder / f"resnet{seed}.onnx", resnet18(SPARSITY, seed, width=30))
            models.append(read_checkpoint(folder / f"resnet{seed}.onnx"))
        with open_executor(settings, store, toolchain) as executor:
            coordinator = Coordinator(ledger, store, executor, toolchain, settings)

            def compile_one(seed: int, archs: tuple[str, ...]) -> float:
                submission = farm.submit([models[seed]], BuildOptions(archs))
                start = time.perf_counter()
                (job,) = coordinator.run([submission.jobs[0].id])
                assert job.status is Status.SUCCEEDED, job.reason
                return time.perf_counter() - start

            compile_one(0, ("sm_86",))  # templates into the store, Ray up, workers warm
            ratios = []
            for seed in (1, 2):
                seconds = compile_one(seed, ARCHS)
                files = write_ptx(farm, folder / f"ptx{seed}")
                bare = bare_loop(str(toolchain.ptxas), files)
                ratios.append(seconds / bare)
                against = f"farm {seconds:.1f} s, bare ptxas {bare:.1f} s: {ratios[-1]:.3f}x"
                print(f"  {len(files)} kernels x {len(ARCHS)}: {against}")
        print(f"  median {statistics.median(ratios):.3f}x")
        ledger.close()


def write_ptx(farm: Farm, folder: Path) -> list[Path]:
    """The PTX files of the latest job, largest first, as the farm gave them to ptxas."""
    folder.mkdir()
    files = []
    toolchain = find_toolchain()
    for layer in read_checkpoint(farm.inspect("latest").job.model).layers:
        nonzeros = layer.weights.nonzeros_per_output
        tiling = choose_tiling(layer.spec, 64, nonzeros)
        template = make_template(layer.spec, tiling, "compute_80", toolchain, LIMITS)
        for part in choose_parts(layer.spec, tiling, nonzeros):
            path = folder / f"{len(files)}.ptx"
            path.write_bytes(rewrite(template, layer.weights, part).ptx)
            files.append(path)
    return sorted(files, key=lambda path: -path.stat().st_size)


def bare_loop(ptxas: str, files: list[Path]) -> float:
    """Seconds of ptxas alone for equal PTX, options and numbers of processes."""

    def one(work: tuple[Path, str]) -> None:
        path, arch = work
        out = path.with_suffix(f".{arch}.cubin")
        argv = [ptxas, f"-arch={arch}", *ptxas_options(3), "-v", "-o", str(out), str(path)]
        subprocess.run(argv, check=True, capture_output=True)

    start = time.perf_counter()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(one, [(path, arch) for path in files for arch in ARCHS]))
    return time.perf_counter() - start


def farm_command(folder: Path, *arguments: str) -> float:
    """Wall time of one call of the command."""
    start = time.perf_counter()
    argv = [sys.executable, "-m", "cli.main", *arguments]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, **farm_variables(folder)})
    return time.perf_counter() - start


def cached() -> None:
    """A repeated job: no nvcc, no ptxas, under 2 s."""
    with tempfile.TemporaryDirectory(prefix="sparse-farm-") as name:
        folder = Path(name)
        write_network(folder / "lenet5.onnx", lenet5(SPARSITY, seed=0))
        arguments = ("compile", str(folder / "lenet5.onnx"), "--arch", ",".join(ARCHS))
        first = farm_command(folder, *arguments)
        again = statistics.median(farm_command(folder, *arguments) for _ in range(5))
        print(f"  first {first:.1f} s, again {again:.2f} s (median of 5)")


def startup() -> None:
    """farm --help under 0.4 s, farm status under 0.6 s."""
    with tempfile.TemporaryDirectory(prefix="sparse-farm-") as name:
        farm_command(Path(name), "status")
        for arguments in (("--help",), ("status",)):
            times = [farm_command(Path(name), *arguments) for _ in range(9)]
            print(f"  farm {arguments[0]:<8} median {statistics.median(times):.2f} s, least {min(times):.2f} s")


def whole_network() -> None:
    """ResNet-50 for sm_90, cold: all 54 layers, at most 25 templates, under 60 s in nvcc."""
    with tempfile.TemporaryDirectory(prefix="sparse-farm-") as name:
        folder = Path(name)
        write_network(folder / "resnet50.onnx", resnet50(SPARSITY, seed=0))
        model = read_checkpoint(folder / "resnet50.onnx")
        settings = settings_in(folder)
        store, ledger, toolchain = open_store(settings), open_ledger(settings), find_toolchain()
        farm = Farm(settings, store, ledger)
        with open_executor(settings, store, toolchain) as executor:
            start = time.perf_counter()
            submission = farm.submit([model], BuildOptions(("sm_90",)))
            (job,) = Coordinator(ledger, store, executor, toolchain, settings).run([submission.jobs[0].id])
            seconds = time.perf_counter() - start
        assert job.status is Status.SUCCEEDED, job.reason
        results = farm.inspect(job.id).results
        templates = {result.template_key: 0.0 for result in results}
        for result in results:
            templates[result.template_key] = max(templates[result.template_key], result.template_seconds)
        print(f"  {len(model.layers)} layers compiled, {len(model.skipped)} skipped: {seconds:.0f} s")
        print(f"  {len(templates)} templates, nvcc {sum(templates.values()):.1f} s in all")
        ptxas = [result.ptxas_seconds for result in results]
        print(f"  {len(results)} kernels, ptxas {sum(ptxas):.0f} s in all, the longest {max(ptxas):.1f} s")
        print(f"  {sum(result.cubin_bytes for result in results) / 1e6:.1f} MB of cubins")
        ledger.close()


def largest_layer() -> None:
    """512x512x3x3 at 7x7 for sm_90 in one process: under 2 GB, each ptxas under 20 s."""
    with tempfile.TemporaryDirectory(prefix="sparse-farm-") as name:
        folder = Path(name)
        write_network(
            folder / "largest.onnx", operator_network(Conv2d(512, 7, 7, 512, 3, 3, padding=(1, 1, 1, 1)), SPARSITY, 0)
        )
        argv = (sys.executable, "-m", "cli.main", "compile", str(folder / "largest.onnx"), "--arch", "sm_90")
        environment = {**os.environ, **farm_variables(folder), "FARM_EXECUTOR": "inline"}
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
        # The peak of the process itself or, if that is more, of the largest tool it ran.
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0, status
        settings = settings_in(folder)
        ledger = open_ledger(settings)
        results = Farm(settings, open_store(settings), ledger).inspect("latest").results
        ptxas = [result.ptxas_seconds for result in results]
        print(f"  {len(ptxas)} parts, ptxas {sum(ptxas):.0f} s in all, the longest {max(ptxas):.1f} s")
        print(f"  the largest process took {usage.ru_maxrss * 1024 / 1e6:.0f} MB")
        ledger.close()


BENCHMARKS: dict[str, Callable[[], None]] = {
    "templates": templates,
    "rewrite": rewriting,
    "overhead": overhead,
    "cached": cached,
    "startup": startup,
    "resnet50": whole_network,
    "largest": largest_layer,
    "ledger": ledger.ledger,
    "submission": submission.submission,
    "coordinator": coordinator.coordinator,
    "growth": growth.growth,
    "bulk": bulk.bulk,
    "outlook": outlook.outlook,
    "code_size": code_size.code_size,
    "tool_time": tool_time.tool_time,
    "direct_layers": direct.direct_layers,
    "direct_sweep": direct.direct_sweep,
    "direct_network": direct.direct_network,
}


def main(names: list[str]) -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine}")
    for name in names or BENCHMARKS:
        print(f"{name}: {BENCHMARKS[name].__doc__}")
        BENCHMARKS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
