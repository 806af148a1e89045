"""The layers of a report, one card each: zeros, instructions, time and cubins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.output.format import microseconds, percent, ptxas_time, size
from cli.output.layers import shape_of
from cli.report.figures import Picture, zeros_picture
from codegen.ir.layer_spec import Linear
from farm.config.units import counted
from farm.jobs.model import BuildResult, Outcome

if TYPE_CHECKING:
    from farm.reports.job_report import JobReport, KernelTime, LayerReport

OUTCOMES = {Outcome.HIT: "cached", Outcome.BUILT: "built"}


@dataclass(frozen=True)
class Fact:
    """A figure of a layer, with a bar."""

    label: str
    value: str
    words: str
    share: float
    """Length of the bar, 0 to 1."""


@dataclass(frozen=True)
class CubinRow:
    """A layer's cubins for one architecture, all parts together."""

    arch: str
    code: str
    registers: str
    ptxas: str
    state: str


@dataclass(frozen=True)
class Card:
    """A layer on the page."""

    id: str
    name: str
    shape: str
    folded: tuple[str, ...]
    """Nodes of the model that the layer's kernel computes too."""
    picture: Picture | None
    """None if the store has lost the weights."""
    facts: tuple[Fact, ...]
    cubins: tuple[CubinRow, ...]


def layer_id(layer: LayerReport) -> str:
    """The HTML id of the layer's card."""
    return f"layer-{layer.build.position}"


def layer_cards(report: JobReport) -> list[Card]:
    """A card for each layer, in graph order."""
    return [_card(report, layer) for layer in report.layers]


def _card(report: JobReport, layer: LayerReport) -> Card:
    build = layer.build
    return Card(
        id=layer_id(layer),
        name=build.layer,
        shape=shape_of(build),
        folded=tuple(build.folded),
        picture=_picture(layer),
        facts=(_sparsity(layer), *_instructions(report, layer), *_kernel_times(report, layer)),
        cubins=tuple(_cubin_row(layer, arch) for arch in report.detail.job.options.archs),
    )


def _picture(layer: LayerReport) -> Picture | None:
    zeros = layer.zeros
    if zeros is None:
        return None
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
    return zeros_picture(zeros, words=words, caption="; ".join([words, *empty]))


def _sparsity(layer: LayerReport) -> Fact:
    nonzeros, weights = layer.build.nonzeros, layer.build.spec.weights_count
    share = nonzeros / weights
    return Fact("Sparsity", percent(1 - share), f"{nonzeros:,} of {weights:,} weights left", share)


def _instructions(report: JobReport, layer: LayerReport) -> list[Fact]:
    """Multiply-adds in the code; architectures with equal counts share a fact."""
    groups: dict[tuple[int, int], list[str]] = {}
    for arch in report.detail.job.options.archs:
        results = [result for result in layer.for_arch(arch).results_for(arch) if result.cubin]
        count = sum(each.fmas_kept for each in results), sum(each.fmas_deleted for each in results)
        if sum(count):
            groups.setdefault(count, []).append(arch)
    return [
        Fact(
            _label("Multiply-adds", archs, groups),
            f"{kept:,}",
            f"in the code, {deleted:,} deleted",
            kept / (kept + deleted),
        )
        for (kept, deleted), archs in groups.items()
    ]


def _kernel_times(report: JobReport, layer: LayerReport) -> list[Fact]:
    """Kernel time; architectures with equal times share a fact."""
    groups: dict[KernelTime, list[str]] = {}
    for arch in report.detail.job.options.archs:
        groups.setdefault(layer.time_for(arch), []).append(arch)
    facts = []
    for time, archs in groups.items():
        share = time.microseconds / (report.total_microseconds(archs[0]) or 1.0)
        source = f"{'measured on' if time.measured else 'predicted for'} {time.gpu}"
        words = f"{percent(share)} of the network, {source}"
        facts.append(Fact(_label("Time", archs, groups), microseconds(time.microseconds), words, share))
    return facts


def _label(what: str, archs: Sequence[str], groups: Collection[object]) -> str:
    """The label of a fact, with its architectures where others have a different value."""
    return f"{what}, {', '.join(archs)}" if len(groups) > 1 else what


def _cubin_row(layer: LayerReport, arch: str) -> CubinRow:
    results = layer.results_for(arch)
    state = _state(results, layer.cubins_for(arch))
    there = [result for result in results if result.cubin]
    if not there:
        return CubinRow(arch, "-", "-", "-", state)
    registers, spilled = max(result.registers for result in there), sum(result.spill_bytes for result in there)
    return CubinRow(
        arch,
        size(sum(result.cubin_bytes for result in there)),
        f"{registers}, {size(spilled)} spilled" if spilled else str(registers),
        ptxas_time(there),
        state,
    )


def _state(results: Sequence[BuildResult], parts: int) -> str:
    """The outcome of a layer's cubins for one architecture, in words."""
    outcomes = {result.outcome for result in results}
    if Outcome.FAILED in outcomes:
        return "failed"
    if len(results) < parts:
        return f"{len(results)} of {parts}"
    words = OUTCOMES[Outcome.BUILT if Outcome.BUILT in outcomes else Outcome.HIT]
    return words if parts == 1 else f"{words}, {parts} cubins"
