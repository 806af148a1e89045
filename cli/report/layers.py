"""The layers of a report, each on a card: its zeros, instructions, time and cubins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from cli.output.layers import shape_of
from cli.output.render import counted, microseconds, percent, ptxas_time, size
from cli.report.figures import bar, zeros_picture
from cli.report.html import Markup, element, name_of, section
from codegen.ir.layer_spec import Linear
from farm.jobs.model import BuildResult, Outcome

if TYPE_CHECKING:
    from farm.reports.job_report import JobReport, KernelTime, LayerReport

OUTCOMES = {Outcome.HIT: "cached", Outcome.BUILT: "built"}


def layer_id(layer: LayerReport) -> str:
    """Of its card."""
    return f"layer-{layer.build.position}"


def layer_cards(report: JobReport) -> Markup:
    """The section with a card for each layer, in graph order."""
    note = (
        "The picture is the layer's weights: an output channel is a row, what it reads goes from left to right, "
        "blue is not zero. Large layers are averaged over neighbours."
    )
    return section("Layers", element("p", note, class_="quiet"), *(_layer(report, layer) for layer in report.layers))


def _layer(report: JobReport, layer: LayerReport) -> Markup:
    build = layer.build
    folded = f"also computes {', '.join(build.folded)}" if build.folded else None
    return element(
        "article",
        element("h3", name_of(build.layer), element("span", f" {shape_of(build)}", class_="shape")),
        element("p", folded, class_="quiet folded") if folded else None,
        element("div", _picture(layer), _facts(report, layer), _cubins(report, layer), class_="columns"),
        id=layer_id(layer),
        class_="layer",
    )


def _picture(layer: LayerReport) -> Markup:
    zeros = layer.zeros
    if zeros is None:
        return element("p", "The store no longer has its weights.", class_="quiet zeros")
    rows, columns = zeros.densities.shape
    if zeros.is_exact:
        words = f"{zeros.kernels} x {zeros.inputs} weights"
    else:
        densest = percent(float(zeros.densities.max(initial=0.0)))
        words = (
            f"{zeros.kernels:,} x {zeros.inputs:,} weights in {rows} x {columns} cells; the darkest: {densest} non-zero"
        )
    empty = []
    channel = "" if isinstance(layer.build.spec, Linear) else " channel"
    if zeros.empty_kernels:
        empty.append(f"{counted(zeros.empty_kernels, f'output{channel}')} without a weight")
    if zeros.empty_inputs:
        empty.append(f"{counted(zeros.empty_inputs, f'input{channel}')} never read")
    caption = element("figcaption", "; ".join([words, *empty]))
    return element("figure", zeros_picture(layer.build.layer, zeros, words=words), caption)


def _facts(report: JobReport, layer: LayerReport) -> Markup:
    build = layer.build
    weights = build.spec.weights_count
    sparsity = percent(1 - build.nonzeros / weights)
    facts: list[Fact] = [
        ("Sparsity", sparsity, f"{build.nonzeros:,} of {weights:,} weights left", build.nonzeros / weights),
        *_instructions(report, layer),
        *_kernel_times(report, layer),
    ]
    items = (
        element(
            "div",
            element("dt", what),
            element("dd", element("b", value), f" {more}", bar(more, ("kept", share))),
        )
        for what, value, more, share in facts
    )
    return element("dl", *items, class_="facts")


Fact = tuple[str, str, str, float]
"""What, the figure, more words, and how much of its whole that is."""


def _instructions(report: JobReport, layer: LayerReport) -> list[Fact]:
    """Multiply-adds in the code, once for architectures that have as many."""
    groups: dict[tuple[int, int], list[str]] = {}
    for arch in report.detail.job.options.archs:
        results = [result for result in layer.for_arch(arch).results_for(arch) if result.cubin]
        count = sum(each.fmas_kept for each in results), sum(each.fmas_deleted for each in results)
        if sum(count):
            groups.setdefault(count, []).append(arch)
    return [
        (
            _named("Multiply-adds", archs, groups),
            f"{kept:,}",
            f"in the code, {deleted:,} deleted",
            kept / (kept + deleted),
        )
        for (kept, deleted), archs in groups.items()
    ]


def _kernel_times(report: JobReport, layer: LayerReport) -> list[Fact]:
    groups: dict[KernelTime, list[str]] = {}
    for arch in report.detail.job.options.archs:
        groups.setdefault(layer.for_arch(arch).time, []).append(arch)
    facts: list[Fact] = []
    for time, archs in groups.items():
        share = time.microseconds / (report.total_microseconds(archs[0]) or 1.0)
        how = f"measured on {time.gpu}" if time.measured else "predicted"
        words = f"{percent(share)} of the network, {how}"
        facts.append((_named("Time", archs, groups), microseconds(time.microseconds), words, share))
    return facts


def _named(what: str, archs: Sequence[str], groups: Collection[object]) -> str:
    """With the architectures it is for, where others have something else."""
    return f"{what}, {', '.join(archs)}" if len(groups) > 1 else what


def _cubins(report: JobReport, layer: LayerReport) -> Markup:
    heads = ("", "code", "registers", "ptxas", "cubin")
    head = element("tr", *(element("th", text, scope="col") for text in heads))
    rows = []
    for arch in report.detail.job.options.archs:
        variant = layer.for_arch(arch)
        results = variant.results_for(arch)
        there = [result for result in results if result.cubin]
        spilled = sum(result.spill_bytes for result in there)
        registers = str(max(result.registers for result in there)) if there else "-"
        rows.append(
            element(
                "tr",
                element("th", arch, scope="row"),
                element("td", size(sum(result.cubin_bytes for result in there)) if there else "-"),
                element("td", f"{registers}, {size(spilled)} spilled" if spilled else registers),
                element("td", ptxas_time(there) if there else "-"),
                element("td", _state(results, len(variant.build.parts_of(arch)))),
            )
        )
    return element("table", head, *rows, class_="cubins")


def _state(results: Sequence[BuildResult], parts: int) -> str:
    """What became of a layer's cubins for one architecture."""
    outcomes = {result.outcome for result in results}
    if Outcome.FAILED in outcomes:
        return "failed"
    if len(results) < parts:
        return f"{len(results)} of {parts}"
    words = OUTCOMES[Outcome.BUILT if Outcome.BUILT in outcomes else Outcome.HIT]
    return words if parts == 1 else f"{words}, {parts} parts"
