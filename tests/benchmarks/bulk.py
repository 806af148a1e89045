"""A pruning sweep through the farm, against nvcc in a loop."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint
from codegen.toolchain.tools import find_toolchain
from farm.api import Farm
from farm.config.settings import Settings, load_settings
from farm.jobs.model import Build, BuildOptions, BuildResult, Outcome, Status, count_cubins
from tests.benchmarks import sweep
from tests.benchmarks.counted_tools import CountedTools
from tests.benchmarks.ledger import folder
from tests.benchmarks.nvcc_loop import LIMIT_SECONDS, LoopTime, Pair, time_loop
from tests.benchmarks.sparse_source import FORMS

ARCHS = ("sm_80", "sm_86", "sm_90", "sm_120")
OPTIONS = BuildOptions(ARCHS)
OF_EACH = 2
"""Steps and architectures of each kernel that nvcc compiles, in each form, of 40."""


def bulk() -> None:
    """30 checkpoints of a sweep x 4 architectures, cold, on Ray: a third of nvcc's time; 1.10x of the tools' own."""
    cores = len(os.sched_getaffinity(0))
    with folder() as path:
        tools = CountedTools.install(path / "tools")
        paths = {name: sweep.write_sweep(path, name, sweep.STEPS + 1) for name in sweep.NETWORKS}
        first = [read_checkpoint(each) for steps in paths.values() for each in steps[: sweep.STEPS]]
        with Farm.open(settings_in(path, tools, cores)) as farm:
            seconds = compile_cold(farm, tools, first, cores)
            pairs = pairs_of(farm, first)
            next_steps = {name: read_checkpoint(steps[sweep.STEPS]) for name, steps in paths.items()}
            last = {name: read_checkpoint(steps[sweep.STEPS - 1]) for name, steps in paths.items()}
            for name, checkpoint in next_steps.items():
                compile_again(farm, tools, [*first, checkpoint], last[name])
                first.append(checkpoint)
    toolchain = find_toolchain()
    loops = {form: time_loop(pairs, form, toolchain, of_each=OF_EACH, cores=cores) for form in FORMS}
    for form, loop in loops.items():
        print(f"  nvcc, {form}: {described(loop)}")
        print(f"  nvcc, {form}: {loop.seconds / seconds:.1f}x the farm's time")
    fastest = min(loops, key=lambda form: loops[form].seconds)
    ratio, distinct = loops[fastest].seconds / seconds, loops[fastest].distinct_seconds / seconds
    print(f"  the faster one, {fastest}: {ratio:.1f}x; were unchanged layers left out of the loop: {distinct:.1f}x")


def described(loop: LoopTime) -> str:
    limit = f"{loop.cut_short} of them ended at {LIMIT_SECONDS:.0f} s, and counted so"
    return f"{loop.seconds:.0f} s +- {loop.error_seconds:.0f} (standard error), by {loop.sample} pairs, {limit}"


def settings_in(path: Path, tools: CountedTools, cores: int) -> Settings:
    settings = load_settings(
        {
            "FARM_STORE": f"file://{path / 'store'}",
            "FARM_DATABASE_URL": f"sqlite:///{path / 'farm.db'}",
            "FARM_EXECUTOR": "ray",
            "FARM_JOBS": str(cores),
        }
    )
    return replace(settings, nvcc=tools.nvcc, ptxas=tools.ptxas)


def compile_cold(farm: Farm, tools: CountedTools, checkpoints: Sequence[Checkpoint], cores: int) -> float:
    """Compiles the sweep with nothing in the store, Ray's start included; gives the seconds."""
    start = time.perf_counter()
    jobs = farm.compile(checkpoints, OPTIONS)
    seconds = time.perf_counter() - start
    assert all(job.status is Status.SUCCEEDED for job in jobs), [job.reason for job in jobs if job.reason]
    results = [result for job in jobs for result in farm.inspect(job.id).results]
    templates = {result.template_key: 0.0 for result in results}
    for result in results:
        templates[result.template_key] = max(templates[result.template_key], result.template_seconds)
    cubins = {result.cubin_key: result.ptxas_seconds for result in results}
    nvcc_runs, ptxas_runs = tools.runs(tools.nvcc), tools.runs(tools.ptxas)
    print(f"  {len(jobs)} checkpoints, {len(results)} cubins, {len(cubins)} distinct: {seconds:.0f} s on {cores} cores")
    print(f"  nvcc runs / distinct templates: {nvcc_runs} / {len(templates)}")
    print(f"  ptxas runs / distinct cubins: {ptxas_runs} / {len(cubins)}")
    assert nvcc_runs == len(templates)
    assert ptxas_runs == len(cubins)
    busy = sum(templates.values()) + sum(cubins.values())
    print(f"  nvcc {sum(templates.values()):.0f} s and ptxas {sum(cubins.values()):.0f} s", end="")
    print(f" on {cores} cores: {busy / cores:.0f} s; the farm took {seconds * cores / busy:.3f}x that")
    return seconds


def compile_again(farm: Farm, tools: CountedTools, checkpoints: Sequence[Checkpoint], before: Checkpoint) -> None:
    """Compiles a sweep again whose last checkpoint is new and the next after `before`: only what changed is built."""
    ptxas_runs = tools.runs(tools.ptxas)
    start = time.perf_counter()
    jobs = farm.compile(checkpoints, OPTIONS)
    seconds = time.perf_counter() - start
    assert all(job.status is Status.SUCCEEDED for job in jobs), [job.reason for job in jobs if job.reason]
    known = {layer.weights.digest for layer in before.layers}
    changed = {layer.name for layer in checkpoints[-1].layers if layer.weights.digest not in known}
    detail = farm.inspect(jobs[-1].id)
    expected = count_cubins([build for build in detail.builds if build.layer in changed], OPTIONS)
    built = built_of(farm, [job.id for job in jobs])
    ptxas_runs = tools.runs(tools.ptxas) - ptxas_runs
    layers = f"{len(changed)} of its {len(checkpoints[-1].layers)} layers"
    print(f"  again with a new {checkpoints[-1].name}, {layers} changed: {len(built)} cubins built", end="")
    print(f", {expected} of the changed layers, {ptxas_runs} ptxas runs: {seconds:.1f} s")
    assert len(built) == ptxas_runs == expected, (len(built), ptxas_runs, expected)
    assert {names(detail.builds)[each.build] for each in built} == changed


def built_of(farm: Farm, job_ids: Sequence[str]) -> list[BuildResult]:
    """The results that were no hits."""
    results = (result for job_id in job_ids for result in farm.inspect(job_id).results)
    return [result for result in results if result.outcome is not Outcome.HIT]


def names(builds: Sequence[Build]) -> dict[int, str]:
    return {build.id: build.layer for build in builds}


def pairs_of(farm: Farm, checkpoints: Sequence[Checkpoint]) -> list[Pair]:
    """Every distinct kernel and architecture, with the tilings and parts that the farm has chosen."""
    details = {detail.job.model: detail for detail in (farm.inspect(job.id) for job in farm.jobs())}
    pairs: dict[str, Pair] = {}
    times: Counter[str] = Counter()
    for checkpoint in checkpoints:
        detail = details[checkpoint.path]
        layers = {layer.name: layer for layer in checkpoint.layers}
        for build in detail.builds:
            for result in detail.results_of(build):
                times[result.cubin_key] += 1
                pair = Pair(layers[build.layer], build.tiling, build.parts_of(result.arch)[result.part], result.arch, 0)
                pairs.setdefault(result.cubin_key, pair)
    return [replace(pair, times=times[key]) for key, pair in pairs.items()]
