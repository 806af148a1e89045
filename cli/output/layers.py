"""A job's layers: shapes, deleted instructions, cubins, as tables, notes and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from cli.output.coverage import skipped_lines
from cli.output.format import archs_text, duration, ptxas_time, size
from cli.output.table import EXTRA, Column, fitted_table, without_columns
from codegen.errors import without_places
from codegen.ir.layer_spec import LayerSpec, Linear
from codegen.ir.tiling import Part
from codegen.toolchain.ptxas import level_of, ptxas_options
from farm.config.units import counted
from farm.jobs.model import Build, BuildOptions, BuildResult, JobDetail, Outcome, TilingChoice, batches_text

if TYPE_CHECKING:
    from farm.reports.trust import TrustSaving

MODEL = "cost model"
"""Origin of a tiling that no tuning record gave."""
NAMES_SHOWN = 4
"""Layers or cubins named in a note."""
OUTCOME_STYLES = {Outcome.HIT: "cyan", Outcome.BUILT: "green", Outcome.FAILED: "red"}


@dataclass(frozen=True)
class LayerCode:
    """A layer's cubins for one architecture, all parts together."""

    arch: str
    outcome: Outcome
    """FAILED if a part failed, HIT if all parts were cache hits."""
    cubins: int
    """Cubins built or failed so far; a whole layer has one for each part."""
    fmas_kept: int
    fmas_deleted: int
    registers: int
    """Maximum over the parts."""
    spill_bytes: int
    cubin_bytes: int
    template_seconds: float
    rewrite_seconds: float
    ptxas: str
    """Time of ptxas, or the assembler that made the machine code instead."""


def codes_of(detail: JobDetail, build: Build) -> list[LayerCode]:
    """The layer's code for each architecture that has results, in the job's order."""
    by_arch = groupby(detail.results_of(build), key=lambda result: result.arch)
    return [_layer_code(arch, list(results)) for arch, results in by_arch]


def _layer_code(arch: str, results: Sequence[BuildResult]) -> LayerCode:
    outcomes = [result.outcome for result in results]
    return LayerCode(
        arch=arch,
        outcome=next(each for each in (Outcome.FAILED, Outcome.BUILT, Outcome.HIT) if each in outcomes),
        cubins=len(results),
        fmas_kept=sum(result.fmas_kept for result in results),
        fmas_deleted=sum(result.fmas_deleted for result in results),
        registers=max(result.registers for result in results),
        spill_bytes=sum(result.spill_bytes for result in results),
        cubin_bytes=sum(result.cubin_bytes for result in results),
        template_seconds=max(result.template_seconds for result in results),  # one template for all
        rewrite_seconds=sum(result.rewrite_seconds for result in results),
        ptxas=ptxas_time(results),
    )


@dataclass(frozen=True)
class ArchTotal:
    """The cubins of a job for one architecture, summed over its layers."""

    arch: str
    cubins: int
    """Finished cubins."""
    cubins_of: int
    hits: int
    ptxas_seconds: float
    """Time of ptxas, including that of cached cubins when they were built."""
    registers: int
    """Maximum over the cubins."""
    spill_bytes: int
    cubin_bytes: int


def arch_totals(detail: JobDetail) -> list[ArchTotal]:
    """Sums for each of the job's architectures, in their order."""
    options = detail.job.options
    totals = []
    for arch in options.archs:
        there = [result for result in detail.results if result.arch == arch and result.cubin]
        totals.append(
            ArchTotal(
                arch=arch,
                cubins=len(there),
                cubins_of=sum(len(build.parts_of(arch)) for build in detail.builds if arch in build.archs(options)),
                hits=sum(result.outcome is Outcome.HIT for result in there),
                ptxas_seconds=sum(result.ptxas_seconds for result in there if result.assembler == "ptxas"),
                registers=max((result.registers for result in there), default=0),
                spill_bytes=sum(result.spill_bytes for result in there),
                cubin_bytes=sum(result.cubin_bytes for result in there),
            )
        )
    return totals


def totals_json(detail: JobDetail) -> dict[str, Any]:
    """Sums over the layers as JSON."""
    layers = {build.position: build for build in detail.builds}.values()
    return {
        "layers": len(layers),
        "weights": sum(build.spec.weights_count for build in layers),
        "nonzeros": sum(build.nonzeros for build in layers),
        "archs": [asdict(total) for total in arch_totals(detail)],
    }


LAYER_COLUMNS = (
    Column("LAYER", least=12),
    Column("SHAPE", leaves=EXTRA + 1),
    Column("NON-ZERO", "right", leaves=EXTRA),
    Column("SPARSITY", "right", leaves=2),
    Column("PARTS", "right", leaves=EXTRA),
    Column("ARCH"),
    Column("CUBIN"),
    Column("PTXAS", "right"),
    Column("REGS", "right"),
    Column("SPILL", "right", leaves=1),
    Column("SIZE", "right"),
)
CODE_COLUMNS = (
    Column("LAYER", least=12),
    Column("ARCHS", least=7, cut_end=True),
    Column("BATCH", "right"),
    Column("FMAS KEPT", "right"),
    Column("DELETED", "right"),
    Column("TEMPLATE"),
    Column("REWRITE", "right"),
    Column("THREADS", "right", leaves=1),
    Column("ROWS", "right", leaves=1),
    Column("OUT CH.", "right", leaves=1),
    Column("IN CH.", "right", leaves=1),
    Column("TILING FROM", least=9, cut_end=True),
)


def layer_table(detail: JobDetail, width: int, *, totals: bool = False) -> Group:
    """One line per layer and architecture; with `totals`, one more for all layers per architecture."""
    several = any(len(build.parts_of(arch)) > 1 for build in detail.builds for arch in build.archs(detail.job.options))
    rows: list[list[str | Text]] = []
    position = -1
    for build in detail.builds:
        first = [build.layer, shape_of(build), f"{build.nonzeros:,}", f"{_sparsity(build):.1%}"]
        if build.position == position:  # the same layer, for other architectures or batch sizes
            first = [""] * len(first)
        position = build.position
        codes = codes_of(detail, build)
        for code in codes:
            parts = len(build.parts_of(code.arch))
            own = build.own_batches(code.arch)
            where = f"{code.arch} batch {batches_text(own)}" if own else code.arch
            rows.append([*first, str(parts), where, *_cells(code, parts)])
            first = [""] * len(first)
        if not codes:
            rows.append([*first, str(len(build.parts)), "-", "to come", "", "", "", ""])
    if totals:
        rows += _total_rows(detail)
    if not several:
        return fitted_table(*without_columns({"PARTS"}, LAYER_COLUMNS, rows), width)
    return fitted_table(LAYER_COLUMNS, rows, width)


def _total_rows(detail: JobDetail) -> list[list[str | Text]]:
    layers = {build.position: build for build in detail.builds}.values()
    nonzeros, weights = sum(build.nonzeros for build in layers), sum(build.spec.weights_count for build in layers)
    first = [counted(len(layers), "layer"), "", f"{nonzeros:,}", f"{1 - nonzeros / weights:.1%}" if weights else "-"]
    rows: list[list[str | Text]] = []
    for total in arch_totals(detail):
        facts = ["-", "-", "-", "-"]
        if total.cubins:
            spilled = size(total.spill_bytes) if total.spill_bytes else "-"
            facts = [duration(total.ptxas_seconds), str(total.registers), spilled, size(total.cubin_bytes)]
        counts = f"{total.cubins} of {total.cubins_of}"
        rows.append([*first, str(total.cubins_of), total.arch, counts, *facts])
        first = [""] * len(first)
    return rows


def code_table(detail: JobDetail, width: int) -> Group:
    """One line per layer and tiling: kept and deleted FMAs, template, rewriting time, tiling."""
    rows: list[list[str]] = []
    for build in detail.builds:
        made = [code for code in codes_of(detail, build) if _whole(code, len(build.parts_of(code.arch)))]
        if not made:
            continue
        template_seconds = max(code.template_seconds for code in made)
        rewrite_seconds = max(code.rewrite_seconds for code in made)
        tiling = build.tiling
        rows.append(
            [
                build.layer,
                archs_text(build.archs(detail.job.options)),
                served_text(build, detail.job.options),
                f"{made[0].fmas_kept:,}",
                f"{made[0].fmas_deleted:,}",
                f"made in {duration(template_seconds)}" if template_seconds else "hit",
                f"{rewrite_seconds * 1e3:.0f} ms" if rewrite_seconds else "-",
                f"{tiling.tile_width}x{tiling.tile_height}",
                f"{tiling.rows}",
                f"{tiling.group_outputs}",
                f"{tiling.chunk_channels}",
                _tiling_of(build),
            ]
        )
    same = set()
    if len({build.position for build in detail.builds}) == len(detail.builds):
        same.add("ARCHS")
    if len(detail.job.options.batches) == 1:
        same.add("BATCH")
    return fitted_table(*without_columns(same, CODE_COLUMNS, rows), width)


def served_text(build: Build, options: BuildOptions) -> str:
    """The batch sizes that a build is for, on any of its architectures, as in 1,8."""
    served = {batch for arch in build.archs(options) for batch in build.own_batches(arch) or options.batches}
    return batches_text(sorted(served))


def _tiling_of(build: Build) -> str:
    """Origin of the tiling: the cost model, or the GPUs of its tuning records."""
    return ", ".join(dict.fromkeys(choice.gpu or MODEL for choice in build.choices)) or MODEL


def shape_of(build: Build) -> str:
    """The layer's shape, as in 512x14x14 -> 512, 3x3, /2."""
    return shape_text(build.spec)


def shape_text(spec: LayerSpec) -> str:
    """The shape of a spec, as in 512x14x14 -> 512, 3x3, /2."""
    return f"{spec}" if isinstance(spec, Linear) or spec.stride == (1, 1) else f"{spec}, /{max(spec.stride)}"


def _sparsity(build: Build) -> float:
    return 1 - build.nonzeros / build.spec.weights_count


def _whole(code: LayerCode, parts: int) -> bool:
    return code.cubins == parts and code.outcome is not Outcome.FAILED


def _cells(code: LayerCode, parts: int) -> list[str | Text]:
    if not _whole(code, parts):
        failed = code.outcome is Outcome.FAILED
        text = Text("failed", style=OUTCOME_STYLES[code.outcome]) if failed else f"{code.cubins} of {parts}"
        return [text, "-", "-", "-", "-"]
    return [
        Text(str(code.outcome), style=OUTCOME_STYLES[code.outcome]),
        code.ptxas,
        str(code.registers),
        size(code.spill_bytes) if code.spill_bytes else "-",
        size(code.cubin_bytes),
    ]


def folded_lines(detail: JobDetail) -> list[Text]:
    """A line for each layer whose kernel computes further nodes."""
    lines = (f"{build.layer} also computes: {', '.join(build.folded)}" for build in detail.builds if build.folded)
    return [Text(line) for line in dict.fromkeys(lines)]


def tuning_lines(builds: Sequence[Build]) -> list[Text]:
    """A line for each reason not to use a tuning record, with the layers."""
    layers: dict[str, list[str]] = {}
    for build in builds:
        for choice in build.choices:
            if choice.note:
                layers.setdefault(choice.note, []).append(f"{build.layer} {choice.arch}")
    return [Text(f"{_some(names)}: {note}", style="yellow") for note, names in layers.items()]


def lowered_lines(detail: JobDetail) -> list[Text]:
    """A line for each -O level that cubins were built at because ptxas timed out at the intended one."""
    lowered: dict[tuple[int, int], dict[str, None]] = {}
    for build in detail.builds:
        meant = level_of(ptxas_options(detail.job.options.optimisation, clusters=build.tiling.splits_streams))
        for result in detail.results_of(build):
            if result.cubin and result.optimisation != meant:
                name = build.cubin_name(result.arch, result.part)
                lowered.setdefault((result.optimisation, meant), {})[name] = None
    return [
        Text(
            f"{counted(len(names), 'cubin')} built at -O{level}, ptxas timed out at -O{meant}: {_some(list(names))}",
            "yellow",
        )
        for (level, meant), names in lowered.items()
    ]


def _some(names: Sequence[str]) -> str:
    """The first few names, and the number of the others."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def assembler_lines(detail: JobDetail) -> list[Text]:
    """The number of cubins made without ptxas, and the reasons for those made by ptxas."""
    asked = detail.job.options.assembler
    made = [result for build in detail.builds for result in detail.results_of(build) if result.cubin]
    by_ptxas = [result for result in made if result.assembler == "ptxas"]
    if not made or asked == "ptxas":
        return []
    reasons = Counter(without_places(result.fallback) for result in by_ptxas if result.fallback).most_common()
    if len(by_ptxas) < len(made):
        evidence = dict.fromkeys(result.evidence for result in made if result.evidence)
        why = f" ({'; '.join(evidence)})" if evidence else ""
        of = Counter(result.assembler for result in made)
        ways = (of["direct"], f"assembled directly{why}"), (of["patch"], "patched into code of the same mask")
        first, *more = [way for way in ways if way[0]]
        texts = [f"{first[0]} of {counted(len(made), 'cubin')} {first[1]}", *(f"{count} {how}" for count, how in more)]
        head = Text(", ".join([*texts, "the others by ptxas"] if by_ptxas else texts))
    elif len(reasons) == 1:
        return [Text(f"all cubins made by ptxas: {reasons[0][0]}")]
    else:
        head = Text("all cubins made by ptxas")
    return [head, *(Text(f"  {count} by ptxas: {reason}") for reason, count in reasons)]


def trust_line(savings: Sequence[TrustSaving]) -> str:
    """The time of ptxas that trust `checked` would save, as in `sm_80 would take 9 s instead of 8 min with ...`."""
    each = [f"{one.arch} {duration(one.checked_seconds)} instead of {duration(one.seconds)}" for one in savings]
    return f"{', '.join(each).replace(' ', ' would take ', 1)} with --trust checked"


def left_out_lines(detail: JobDetail) -> list[Text]:
    """Lines for skipped layers, with reasons and the coverage."""
    from farm.reports.coverage import coverage_of

    return skipped_lines(detail.job.skipped, coverage_of(detail.builds, detail.job.skipped))


def compiled_line(details: Sequence[JobDetail], seconds: float) -> Text:
    """Summary of a compile: cubins built and cached, and the time."""
    results = [result for detail in details for result in detail.results]
    outcomes = Counter(result.outcome for result in results)
    hits, built, failed = outcomes[Outcome.HIT], outcomes[Outcome.BUILT], outcomes[Outcome.FAILED]
    templates = len({result.template_key for result in results if result.template_seconds})
    cached = f"{hits} of {counted(len(results), 'cubin')} from the cache"
    if results and hits == len(results):
        return Text(f"nothing to compile: {cached} (100% hits), {duration(seconds)}", style="green")
    share = f"{hits / len(results):.0%} hits" if results else "none yet"
    patched = sum(result.outcome is Outcome.BUILT and result.assembler == "patch" for result in results)
    parts = [
        f"compiled {counted(built, 'cubin')}"
        + (f" ({patched} patched)" if patched else "")
        + (f" and {counted(templates, 'template')}" if templates else ""),
        f"{cached} ({share})",
        duration(seconds),
    ]
    if failed:
        parts.insert(1, f"{failed} failed")
    return Text(", ".join(parts))


def layer_json(build: Build, results: list[BuildResult], options: BuildOptions) -> dict[str, Any]:
    """A layer as JSON; one with several tilings has an entry for each."""
    return {
        "name": build.layer,
        "input": build.input,
        "output": build.output,
        "residual": build.residual or None,
        "gate": build.gate or None,
        "folded": list(build.folded),
        "rows_per_image": build.rows,
        "spec": build.spec.to_json(),
        "archs": list(build.archs(options)),
        "tiling": build.tiling.to_json(),
        "tiling_choices": [_choice_json(choice, options) for choice in build.choices],
        "weights": build.spec.weights_count,
        "nonzeros": build.nonzeros,
        "sparsity": _sparsity(build),
        "weights_digest": build.weights,
        "parts": [_groups(part) for part in max(map(build.parts_of, build.archs(options)), key=len)],
        "cubins": [
            {
                "arch": result.arch,
                "part": _groups(build.parts_of(result.arch)[result.part]),
                "outcome": str(result.outcome),
                "template_hit": result.template_seconds == 0,
                "template_seconds": result.template_seconds,
                "rewrite_seconds": result.rewrite_seconds,
                "ptxas_seconds": result.ptxas_seconds,
                "fmas_kept": result.fmas_kept,
                "fmas_deleted": result.fmas_deleted,
                "optimisation": result.optimisation,
                "assembler": result.assembler,
                "evidence": result.evidence,
                "fallback": result.fallback,
                "registers": result.registers,
                "spill_bytes": result.spill_bytes,
                "cubin": result.cubin,
                "cubin_bytes": result.cubin_bytes,
                "ptx": result.ptx,
                "template_key": result.template_key,
                "cubin_key": result.cubin_key,
                "error": result.error,
                "command": result.command,
            }
            for result in results
        ],
    }


def _choice_json(choice: TilingChoice, options: BuildOptions) -> dict[str, Any]:
    batches = list(choice.batches or options.batches)
    return {"arch": choice.arch, "batches": batches, "record_of_gpu": choice.gpu or None, "note": choice.note or None}


def _groups(part: Part) -> dict[str, int]:
    """The K-groups of a part, as a half-open range."""
    return {"first": part.first, "end": part.end}
