"""`farm plan`: predict what a compile would build, and how long it would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from cli.exit_codes import OK, USAGE
from cli.options.build import BuildRequest, build_options
from cli.options.output import AsJson, PriceText
from cli.output.console import print_json, print_warning, stdout
from cli.output.coverage import coverage_json, coverage_line, skipped_json, skipped_lines
from cli.output.format import archs_text, cost_json, cost_text, duration, size
from cli.output.layers import served_text, shape_of, trust_line
from cli.output.table import EXTRA, Column, fitted_table, without_columns
from farm.config.units import counted

if TYPE_CHECKING:
    from farm.config.price import Price
    from farm.reports.forecast import Forecast, LayerForecast, ModelForecast

COLUMNS = (
    Column("LAYER", least=14),
    Column("SHAPE", leaves=EXTRA),
    Column("SPARSITY", "right", leaves=1),
    Column("WEIGHTS", "right"),
    Column("MULT-ADDS", "right"),
    Column("ARCHS", least=7, cut_end=True),
    Column("BATCH", "right"),
    Column("CUBINS", "right"),
    Column("CODE", "right"),
    Column("PTXAS", "right"),
    Column("KERNEL", "right"),
)
OF_LAYER = 5
"""Number of columns, from the first, that all tilings of a layer share."""


@build_options(without={"name"})
def plan(request: BuildRequest, price: PriceText = None, as_json: AsJson = False) -> int:
    """Predict what a compile would build, find in the store and cost.

    Runs no tool and stores nothing.

    For each layer: its share of the model, cubins to build (`there`: all are in the store), code size of one
    architecture, CPU time of ptxas (`direct`: assembled without it; `patched`: into code of the same mask), and kernel
    time at --batch in a network, from its time when tuned, else by the cost model. Then skipped layers, coverage, code
    size and kernel time for each architecture's GPU, and the totals of all models, which share templates and cubins.
    With a price, also the cost of the CPU time, and what the store saves of it.

    Both cost models, of the kernels and of dense layers in PyTorch, are fitted to an H200. For other GPUs times are
    scaled by the figures of their data sheets. All count the compiled layers only.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings
    from farm.jobs.submission import empty_layers_warning, fixed_images_warning, joined_notes
    from farm.runtime.planner import refusal_of

    settings = load_settings(overrides={"price": price})
    with Farm.open(settings) as farm:
        checkpoints = request.read(farm)
        if not checkpoints:
            return USAGE
        found = farm.forecast(checkpoints, request.options)
    if warning := empty_layers_warning(build for model in found.models for build in model.job.builds):
        print_warning(warning)
    notes: list[tuple[str, str]] = []
    for checkpoint, model in zip(checkpoints, found.models, strict=True):
        refusal = refusal_of(checkpoint, {build.layer for build in model.job.builds})
        fixed = fixed_images_warning(checkpoint, request.options.batches)
        notes.extend((checkpoint.path, note) for note in filter(None, (*checkpoint.notes, fixed, refusal)))
    for warning in joined_notes(notes):
        print_warning(warning)
    if as_json:
        total = _total_json(found, settings.price)
        print_json({"models": [_model_json(model) for model in found.models], "total": total})
    else:
        _print(found, settings.price)
    return OK if len(checkpoints) == len(request.models) else USAGE


def _print(found: Forecast, price: Price | None) -> None:
    console = stdout()
    for model in found.models:
        console.print(Text(f"{model.job.name}  {', '.join(model.job.options.archs)}", style="bold"), soft_wrap=True)
        console.print(_table(model, console.width), soft_wrap=True)
        covered = [Text(coverage_line(model.coverage))]
        lines = skipped_lines(model.job.skipped, model.coverage) or covered
        for shown in (*lines, *map(Text, _predicted_lines(model))):
            console.print(shown, soft_wrap=True)
        console.print()
    for line in _totals(found, price):
        console.print(Text(line), soft_wrap=True)


def _table(model: ModelForecast, width: int) -> Group:
    """One line per layer, or per tiling where its architectures have several."""
    rows: list[list[str]] = []
    position = -1
    for layer in model.layers:
        cells = _cells(layer, model)
        if layer.build.position == position:
            cells[:OF_LAYER] = [""] * OF_LAYER
        position = layer.build.position
        rows.append(cells)
    same = set()
    if all(layer.archs == model.job.options.archs for layer in model.layers):
        same.add("ARCHS")
    if not any(layer.build.own_batches(arch) for layer in model.layers for arch in layer.archs):
        same.add("BATCH")
    return fitted_table(*without_columns(same, COLUMNS, rows), width)


def _cells(layer: LayerForecast, model: ModelForecast) -> list[str]:
    from farm.reports.coverage import multiply_adds_of

    build, coverage = layer.build, model.coverage
    missing = layer.cubins - layer.cubins_there
    return [
        build.layer,
        shape_of(build),
        f"{1 - build.nonzeros / build.spec.weights_count:.1%}",
        f"{coverage.share_of_weights(build.spec.weights_count):.1%}",
        f"{coverage.share_of_multiply_adds(multiply_adds_of(build)):.1%}",
        archs_text(layer.archs),
        served_text(build, model.job.options),
        f"{missing} new" if missing else "there",
        size(layer.code_bytes),
        _ptxas_text(layer) if missing else "-",
        _kernel_text([time for times in layer.kernel_microseconds.values() for time in times.values()]),
    ]


def _ptxas_text(layer: LayerForecast) -> str:
    """The time of ptxas for a layer's missing cubins, or how they are made without it."""
    if layer.ptxas_seconds:
        return duration(layer.ptxas_seconds)
    return "patched" if layer.cubins_patched else "direct"


def _kernel_text(times: Sequence[float]) -> str:
    """The time of a layer's kernels, or the range of its times on several GPUs or at several batch sizes."""
    least, most = (f"{time:,.1f}" for time in (min(times), max(times)))
    return f"{least} us" if least == most else f"{least}-{most} us"


def _predicted_lines(model: ModelForecast) -> Iterator[str]:
    """Code size and kernel time of all layers, one line for each architecture's GPU."""
    from codegen.target.device_model import REFERENCE

    options = model.job.options
    for arch in options.archs:
        device = options.device(arch)
        gpu = f"{device.name} ({arch})" if device.name in options.gpus else f"{device.name} ({arch}'s typical GPU)"
        scaled = "" if device == REFERENCE else f", scaled from {REFERENCE.name} by data sheet"
        times = {batch: f"{model.kernel_microseconds(arch, batch):,.0f} us" for batch in options.batches}
        kernels = ", ".join(f"{time} at batch {batch}" for batch, time in times.items())
        yield f"predicted for {gpu}{scaled}: {size(model.code_bytes(arch))} of code, kernels {kernels}"
        for batch in options.batches:
            where = f" at batch {batch}" if len(options.batches) > 1 else ""
            yield f"  the same layers dense in PyTorch{where}: {_dense_text(model, arch, batch)}"
    for each in model.shared_costs:
        slower = each.microseconds / each.own_microseconds
        yield (
            f"predicted for {each.device.name} ({each.device.arch}) with the cubins of {each.arch}: kernels "
            f"{each.microseconds:,.0f} us at batch {each.batch}, {slower:.2f} times those of its own"
        )


def _dense_text(model: ModelForecast, arch: str, batch: int) -> str:
    """The predicted time of the dense layers, and how many times as long that is, for each precision."""
    compiled = model.kernel_microseconds(arch, batch)
    return ", ".join(
        f"{precision.upper()} {time:,.0f} us ({time / compiled:.2f}x)"
        for precision, time in model.dense_microseconds(arch, batch).items()
    )


def _totals(found: Forecast, price: Price | None) -> list[str]:
    nvcc = (
        "not predicted for templates of the full form" if found.nvcc_seconds is None else duration(found.nvcc_seconds)
    )
    skeletons = f", ptxas for skeletons {duration(found.skeleton_seconds)}" if found.skeleton_seconds else ""
    direct = f"{skeletons}, assembler {duration(found.assembler_seconds)}" if found.assembler_seconds else ""
    patched = f", {found.cubins_patched} patched into code of the same mask" if found.cubins_patched else ""
    tools = f"nvcc {nvcc}, ptxas {duration(found.ptxas_seconds)}{direct}"
    cost = f", which costs {price.text(found.total_seconds)}" if price else ""
    in_store = [f"saved by the store: {cost_text(found.saved_seconds, price)}"] if price and found.saved_seconds else []
    if not found.cubins_to_make:
        there = "the cubin is" if found.cubins_there == 1 else f"all {found.cubins_there:,} cubins are"
        return [f"nothing to compile: {there} in the store", *in_store]
    templates, cubins = counted(found.templates_to_make, "template"), counted(found.cubins_to_make, "cubin")
    savings = [trust_line(found.trust_savings)] if found.trust_savings else []
    return [
        f"to make: {templates} ({found.templates_there} more in the store), {cubins} ({found.cubins_there} more in the "
        f"store{patched}), {size(found.code_bytes)} of code in all",
        f"predicted CPU time: {duration(found.total_seconds)} ({tools}){cost}",
        *in_store,
        *savings,
    ]


def _model_json(model: ModelForecast) -> dict[str, Any]:
    from farm.reports.coverage import multiply_adds_of

    job, coverage = model.job, model.coverage
    return {
        "name": job.name,
        "model": job.model,
        "archs": list(job.options.archs),
        "gpus": {arch: job.options.device(arch).name for arch in job.options.archs},
        "batches": list(job.options.batches),
        "shared": [
            {
                "arch": each.arch,
                "gpu": each.device.name,
                "batch": each.batch,
                "predicted_kernel_microseconds": each.microseconds,
                "predicted_kernel_microseconds_of_own_cubins": each.own_microseconds,
            }
            for each in model.shared_costs
        ],
        "coverage": coverage_json(coverage),
        "layers": [
            {
                "name": layer.build.layer,
                "spec": layer.build.spec.to_json(),
                "archs": list(layer.archs),
                "batches": {arch: list(times) for arch, times in layer.kernel_microseconds.items()},
                "tiling": layer.build.tiling.to_json(),
                "parts": max(len(layer.build.parts_of(arch)) for arch in layer.archs),
                "weights": layer.build.spec.weights_count,
                "nonzeros": layer.build.nonzeros,
                "multiply_adds": multiply_adds_of(layer.build),
                "share_of_weights": coverage.share_of_weights(layer.build.spec.weights_count),
                "share_of_multiply_adds": coverage.share_of_multiply_adds(multiply_adds_of(layer.build)),
                "template_in_store": layer.template_there,
                "cubins": layer.cubins,
                "cubins_in_store": layer.cubins_there,
                "cubins_to_patch": layer.cubins_patched,
                "predicted_code_bytes": layer.code_bytes,
                "predicted_ptxas_seconds": layer.ptxas_seconds,
                "predicted_skeleton_seconds": layer.skeleton_seconds,
                "predicted_assembler_seconds": layer.assembler_seconds,
                "predicted_kernel_microseconds": layer.kernel_microseconds,
                "predicted_dense_microseconds": layer.dense_microseconds,
            }
            for layer in model.layers
        ],
        "skipped": [skipped_json(layer) for layer in job.skipped],
    }


def _total_json(found: Forecast, price: Price | None) -> dict[str, Any]:
    return {
        "templates_to_make": found.templates_to_make,
        "templates_in_store": found.templates_there,
        "cubins_to_make": found.cubins_to_make,
        "cubins_in_store": found.cubins_there,
        "cubins_to_patch": found.cubins_patched,
        "predicted_code_bytes": found.code_bytes,
        "predicted_nvcc_seconds": found.nvcc_seconds,
        "predicted_ptxas_seconds": found.ptxas_seconds,
        "predicted_skeleton_seconds": found.skeleton_seconds,
        "predicted_assembler_seconds": found.assembler_seconds,
        "predicted_saved_seconds": found.saved_seconds,
        "predicted_cost": cost_json(found.total_seconds, found.saved_seconds, price),
        "predicted_seconds_with_trust_checked": {each.arch: each.checked_seconds for each in found.trust_savings},
    }
