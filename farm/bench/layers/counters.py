"""Hardware counters of kernels, read by ncu."""

from __future__ import annotations

import csv
import io
import shutil
import statistics
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from codegen.errors import ToolchainError, ToolError
from codegen.toolchain.tools import ToolLimits, run_tool
from farm.bench.layers.contenders import GENERATED
from farm.config.settings import Settings
from farm.executors import open_gpu

DRAM = "dram__bytes.sum.per_second"
GLOBAL_LOADS = "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second"
FETCH_STALLS = "smsp__warp_issue_stalled_no_instruction_per_warp_active.pct"
DURATION = "gpu__time_duration.sum"
METRICS = (DRAM, GLOBAL_LOADS, FETCH_STALLS, DURATION)
LIMITS = ToolLimits(seconds=600, memory_bytes=2**50)
"""Limits of ncu; a GPU process reserves far more addresses than memory."""
BOUNDARY = "im2col"
"""The kernel that precedes those of cuSPARSE."""

_UNITS = {"byte/second": 1.0, "Kbyte/second": 1e3, "Mbyte/second": 1e6, "Gbyte/second": 1e9, "Tbyte/second": 1e12}
_UNITS |= {"byte/s": 1.0, "Kbyte/s": 1e3, "Mbyte/s": 1e6, "Gbyte/s": 1e9, "Tbyte/s": 1e12}
_UNITS |= {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "%": 1.0}


class NoCountersError(Exception):
    """No counters are available, with the reason."""


@dataclass(frozen=True)
class KernelCounters:
    """Metrics of one launch by name, in bytes per second, nanoseconds and percent."""

    kernel: str
    metrics: Mapping[str, float]


def profile(operators: Sequence[str], batch: int, sparsity: float) -> dict[str, dict[str, dict[str, float]]]:
    """Metrics by operator and contender (generated, cudnn-fp32, cusparse), averaged over time.

    Runs `python -m farm.bench.layers.profiled` under ncu. Raises NoCountersError.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise NoCountersError("ncu is not on the path: install Nsight Compute")
    # -P: the current folder must not shadow modules.
    child = [sys.executable, "-P", "-m", "farm.bench.layers.profiled", str(batch), f"{sparsity:g}", *operators]
    command = [ncu, "--csv", "--profile-from-start", "off", "--metrics", ",".join(METRICS), *child]
    try:
        text = run_tool(command, limits=LIMITS).stdout
    except ToolError as error:
        raise NoCountersError(_why(error.stderr) or str(error)) from None
    except ToolchainError as error:
        raise NoCountersError(str(error)) from None
    if "ERR_NVGPUCTRPERM" in text:
        raise NoCountersError("ncu may not read the GPU's counters here (ERR_NVGPUCTRPERM): ask for that permission")
    kernels = read_csv(text)
    if not kernels:
        raise NoCountersError(_why(text) or "ncu saw no kernel")
    return by_contender(kernels, operators)


def read_counters(
    settings: Settings, operators: Sequence[str], batch: int, sparsity: float, *, local: bool = False
) -> dict[str, dict[str, dict[str, float]]] | str:
    """Metrics read on a GPU of the cluster or, with `local`, of this machine; or the reason why there are none."""
    with open_gpu(settings, local=local) as gpu:
        [found] = gpu.run(partial(counters_work, operators=operators, batch=batch, sparsity=sparsity))
    return found


def counters_work(
    _settings: Settings, operators: Sequence[str], batch: int, sparsity: float
) -> Generator[dict[str, dict[str, dict[str, float]]] | str, None, None]:
    """Yields the metrics of `profile`, or the reason why there are none."""
    try:
        yield profile(operators, batch, sparsity)
    except NoCountersError as error:
        yield f"no counters: {error}"


def _why(text: str) -> str:
    lines = [line for line in text.splitlines() if "ERROR" in line or "Error" in line]
    return f"ncu: {lines[0].removeprefix('==ERROR==').strip()[:200]}" if lines else ""


def read_csv(text: str) -> list[KernelCounters]:
    """Parses the output of ncu --csv, one line per metric; lines before the table are skipped."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    launches: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        _, metrics = launches.setdefault(row["ID"], (row["Kernel Name"], {}))
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue  # n/a: this GPU has no such counter
        metrics[row["Metric Name"]] = value * _UNITS.get(row["Metric Unit"], 1.0)
    return [KernelCounters(name, metrics) for name, metrics in launches.values()]


def by_contender(kernels: Sequence[KernelCounters], operators: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Splits the launches of `profiled` per operator: the generated kernels, then cuDNN's, im2col, cuSPARSE's.

    Generated kernels are those with the first launch's name.
    """
    own = kernels[0].kernel
    groups: list[dict[str, list[KernelCounters]]] = []
    contender = ""
    for each in kernels:
        if each.kernel == own:
            if contender != GENERATED:
                groups.append({})
            contender = GENERATED
        elif each.kernel == BOUNDARY:
            contender = "cusparse"
        elif contender == GENERATED:
            contender = "cudnn-fp32"
        groups[-1].setdefault(contender, []).append(each)
    if len(groups) != len(operators):
        raise NoCountersError(f"ncu saw the kernels of {len(groups)} operators instead of {len(operators)}")
    return {
        name: {contender: _averaged(launches) for contender, launches in group.items()}
        for name, group in zip(operators, groups, strict=True)
    }


def _averaged(launches: Sequence[KernelCounters]) -> dict[str, float]:
    """Average of each metric over its launches, weighted by duration."""
    averages = {}
    for metric in METRICS[:-1]:
        having = [each for each in launches if metric in each.metrics]
        if having:
            weights = [each.metrics.get(DURATION, 1.0) for each in having]
            averages[metric] = statistics.fmean([each.metrics[metric] for each in having], weights)
    return averages
