"""Figures from results: speed-up bars, sparsity sweep, roofline, as SVG and PNG. The only importer of matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from codegen.ir.layer_spec import spec_from_json
from farm.bench.layers.contenders import GENERATED, title_of
from farm.bench.layers.results import Measurement, Results, cases_of
from farm.bench.layers.roof import moved_bytes, nonzero_flops
from farm.bench.layers.summary import geometric_mean, speedups
from farm.bench.networks.summary import NetworkRow, network_rows
from farm.cuda.measure.workload import CaseKey
from farm.errors import UsageError
from farm.extras import way_out

STYLES = {
    "cudnn-fp32": ("#0072B2", "o", "", "-"),
    "cudnn-tf32": ("#E69F00", "s", "//", "--"),
    "cudnn-fp16": ("#009E73", "^", "..", "-."),
    "cublas-fp32": ("#CC79A7", "D", "\\\\", ":"),
    "cusparse": ("#D55E00", "v", "xx", (0, (5, 1))),
    "escoin": ("#56B4E9", "P", "--", (0, (3, 1, 1, 1))),
    "gimmik": ("#999999", "X", "oo", (0, (1, 2))),
}
"""Colour, marker, hatch and line of a peer, in Okabe and Ito's palette for the colour-blind."""
DENSE_STYLES = {"fp32": "cudnn-fp32", "tf32": "cudnn-tf32", "fp16": "cudnn-fp16"}
"""Styles of dense networks by precision."""
KIND_STYLES = {"compiled": ("#0072B2", ""), "rest": ("#E69F00", "//"), "gaps": ("#BBBBBB", "..")}
"""Colour and hatch of the parts of a network's time."""


def plot(results: Results, folder: Path) -> list[Path]:
    """Writes every figure that the results allow; returns the files. Raises UsageError."""
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError:
        raise UsageError(f"figures need matplotlib: {way_out('plots')}") from None
    matplotlib.use("Agg")
    settings = {"svg.hashsalt": "farm", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(settings):
            return _plot_all(pyplot, results, folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}): name another folder") from None


def _plot_all(pyplot: Any, results: Results, folder: Path) -> list[Path]:
    written: list[Path] = []

    def save(figure: Any, name: str) -> None:
        for suffix in ("svg", "png"):
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if suffix == "svg" else None)
            written.append(path)
        pyplot.close(figure)

    if results.of_networks:
        rows = [row for row in network_rows(results) if row.own and row.own.microseconds]
        if figure := _network_speedups(pyplot, results, rows):
            save(figure, "speedup-networks")
        if figure := _network_strips(pyplot, results, rows):
            save(figure, "time-networks")
        return _some(written)
    measured = [each for each in results.measurements if each.contender == GENERATED and each.microseconds]
    groups = dict.fromkeys((case.data_type, case.batch) for case in cases_of(measured))
    for data_type, batch in groups:
        own = [each for each in measured if (each.case.data_type, each.case.batch) == (data_type, batch)]
        sparsities = sorted({each.case.sparsity for each in own})
        suffix = f"{data_type}-batch-{batch}"
        shown = _bar_sparsity(own)
        bars = [each for each in own if shown is None or each.case.sparsity == shown]
        if figure := _speedups(pyplot, results, bars, shown):
            save(figure, f"speedup-{suffix}")
        if shown is not None and len(sparsities) > 1 and (figure := _sweep(pyplot, results, own)):
            save(figure, f"sweep-{suffix}")
        save(_roofline(pyplot, results, bars, shown), f"roofline-{suffix}")
    return _some(written)


def _some(written: list[Path]) -> list[Path]:
    if not written:
        raise UsageError("these results hold no time of a generated kernel: there is nothing to show")
    return written


def _bar_sparsity(own: Sequence[Measurement]) -> float | None:
    """The sparsity that the bars show: 0.9 if it was measured, else the last; None where each layer has its own."""
    layers = {each.case.operator for each in own}
    shared = [
        sparsity
        for sparsity in sorted({each.case.sparsity for each in own})
        if {each.case.operator for each in own if each.case.sparsity == sparsity} == layers
    ]
    return 0.9 if 0.9 in shared else shared[-1] if shared else None


def _heading(results: Results, what: str, case: CaseKey, sparsity: float | None) -> str:
    at = f"sparsity {sparsity:g}, " if sparsity is not None else ""
    return f"{what}\n{at}batch {case.batch}, {case.data_type} kernels - {results.title}"


def _speedups(pyplot: Any, results: Results, bars: Sequence[Measurement], sparsity: float | None) -> Any:
    cases = [each.case for each in bars]
    ratios = {peer: found for peer in STYLES if (found := _ratios(results, peer, cases))}
    if not ratios:
        return None
    peers = [
        _Bars(
            peer,
            f"{title_of(peer)} (mean {geometric_mean(found.values()):.1f}x)",
            {place: found[case] for place, case in enumerate(cases) if case in found},
        )
        for peer, found in ratios.items()
    ]
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.1 * len(cases) + 2.4), 4.6))
    _draw_bars(axes, peers, [case.operator for case in cases])
    axes.set_ylabel("speed-up over the peer")
    axes.set_title(_heading(results, "Speed-up of the generated kernels", cases[0], sparsity), fontsize=11)
    axes.legend(ncols=3, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.26), frameon=False)
    return figure


class _Bars(NamedTuple):
    """The bars of a peer."""

    style: str
    label: str
    ratios: dict[int, float]
    """Speed-ups over the peer, by the place of the bar."""


def _draw_bars(axes: Any, bars: Sequence[_Bars], names: Sequence[str]) -> None:
    """Draws a bar for each peer beside one another at each named place."""
    width = 0.84 / len(bars)
    for i, each in enumerate(bars):
        colour, _, hatch, _ = STYLES[each.style]
        axes.bar(
            [place + (i - (len(bars) - 1) / 2) * width for place in each.ratios],
            [ratio - 1 for ratio in each.ratios.values()],
            width * 0.94,
            bottom=1,  # bars of slower layers hang below the line
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.4,
            label=each.label,
        )
    axes.axhline(1, color="black", linewidth=1)
    _logarithmic(axes.yaxis, axes.set_yscale)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _ratios(results: Results, peer: str, cases: Sequence[CaseKey]) -> dict[CaseKey, float]:
    found = speedups(results, peer)
    return {case: found[case] for case in cases if case in found}


def _sweep(pyplot: Any, results: Results, own: Sequence[Measurement]) -> Any:
    """One small panel per operator: speed-up over each peer against the sparsity."""
    operators = list(dict.fromkeys(each.case.operator for each in own))
    ratios = {
        peer: {case: found[case] for each in own if (case := each.case) in found}
        for peer in STYLES
        if (found := speedups(results, peer))
    }
    ratios = {peer: found for peer, found in ratios.items() if found}
    if not ratios:
        return None
    columns = min(5, len(operators))
    rows = -(-len(operators) // columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(2.6 * columns + 0.6, 2.4 * rows + 1.2), sharex=True, sharey=True, squeeze=False
    )
    for panel, operator in zip(panels.flat, operators, strict=False):
        for peer, found in ratios.items():
            points = sorted((case.sparsity, ratio) for case, ratio in found.items() if case.operator == operator)
            colour, marker, _, line = STYLES[peer]
            style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 3.5, "linewidth": 1.3}
            panel.plot([x for x, _ in points], [y for _, y in points], label=title_of(peer), **style)
        panel.axhline(1, color="black", linewidth=1)
        panel.set_title(operator, fontsize=9)
        panel.grid(color="#dddddd", linewidth=0.6)
    for panel in panels.flat[len(operators) :]:
        panel.set_visible(False)
    _logarithmic(panels[0][0].yaxis, panels[0][0].set_yscale)
    figure.supxlabel("sparsity", fontsize=10)
    figure.supylabel("speed-up over the peer", fontsize=10)
    heading = _heading(results, "Speed-up by sparsity (above 1: the generated kernel is faster)", own[0].case, None)
    figure.suptitle(heading, fontsize=11)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(handles, labels, ncols=len(labels), fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, 0.0))
    return figure


def _roofline(pyplot: Any, results: Results, own: Sequence[Measurement], sparsity: float | None) -> Any:
    """Roofline: non-zero work per second against non-zero work per byte."""
    peaks = results.environment["peaks"]
    double = 2 if own[0].case.data_type == "float16" else 1
    flops, rate = peaks["flops"] * double / 1e12, peaks["bytes_per_second"] / 1e12
    figure, axes = pyplot.subplots(figsize=(8.4, 5.0))
    points = []
    for each in own:
        spec, images = spec_from_json(each.facts["spec"]), each.facts["images"]
        work = nonzero_flops(spec, each.facts["nonzeros"], images)
        points.append((work / moved_bytes(spec, images), work / (each.microseconds or 1) / 1e6, each.case.operator))
    low, high = min(x for x, _, _ in points) / 3, max(flops / rate, *(x for x, _, _ in points)) * 4
    ridge = flops / rate
    axes.plot([low, ridge, high], [low * rate, flops, flops], color="black", linewidth=1.5)
    axes.annotate(
        f"{rate:.2g} TB/s", (ridge / 6, ridge / 6 * rate), xytext=(-6, 6), textcoords="offset points", ha="right"
    )
    axes.annotate(f"{flops:.3g} TFLOP/s", (high, flops), xytext=(-2, 5), textcoords="offset points", ha="right")
    _logarithmic(axes.xaxis, axes.set_xscale, "")
    _logarithmic(axes.yaxis, axes.set_yscale, "")
    _labelled(axes, points)
    axes.set_xlabel("FLOP on non-zeros per byte read or written once")
    axes.set_ylabel("TFLOP/s on non-zeros")
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(_heading(results, "Roofline of the generated kernels", own[0].case, sparsity), fontsize=11)
    return figure


def _labelled(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Numbered points and a list of their names, as names beside close points would overlap."""
    axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], color="#0072B2", zorder=3, s=130, alpha=0.85)
    for number, (x, y, _) in enumerate(points, 1):
        axes.annotate(
            f"{number}", (x, y), ha="center", va="center", fontsize=7.5, color="white", weight="bold", zorder=4
        )
    names = "\n".join(f"{number:>2}  {name}" for number, (_, _, name) in enumerate(points, 1))
    axes.text(1.02, 1, names, transform=axes.transAxes, va="top", fontsize=8.5, linespacing=1.5)


def _network_speedups(pyplot: Any, results: Results, rows: Sequence[NetworkRow]) -> Any:
    """Bars for each network and batch with a dense one beside it: speed-up over the fastest of each precision."""
    rows = [row for row in rows if any(row.speedup(precision) for precision in DENSE_STYLES)]
    found = {
        precision: ratios
        for precision in DENSE_STYLES
        if (ratios := {i: ratio for i, row in enumerate(rows) if (ratio := row.speedup(precision))})
    }
    if not found:
        return None
    bars = [
        _Bars(
            DENSE_STYLES[precision],
            f"dense {precision.upper()} (mean {geometric_mean(ratios.values()):.2f}x)",
            ratios,
        )
        for precision, ratios in found.items()
    ]
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.1 * len(rows) + 2.4), 5.6), layout="constrained")
    _draw_bars(axes, bars, _network_labels(rows))
    axes.set_ylabel("speed-up over dense PyTorch")
    axes.set_title(f"Speed-up of whole pruned networks\none CUDA graph each - {results.title}", fontsize=11)
    figure.legend(ncols=3, fontsize=8.5, loc="outside lower center", frameon=False)
    return figure


def _network_strips(pyplot: Any, results: Results, rows: Sequence[NetworkRow]) -> Any:
    """A strip for each network and batch: the shares of compiled layers, of the rest, of gaps."""
    known = [row for row in rows if row.breakdown]
    if not known:
        return None
    figure, axes = pyplot.subplots(figsize=(8.4, 0.42 * len(known) + 1.8))
    begins = [0.0] * len(known)
    for kind, (colour, hatch) in KIND_STYLES.items():
        shares = [row.breakdown[kind] for row in known]
        axes.barh(range(len(known)), shares, 0.7, left=begins, color=colour, hatch=hatch, edgecolor="white", label=kind)
        begins = [begin + share for begin, share in zip(begins, shares, strict=True)]
    for i, row in enumerate(known):
        axes.text(1.01, i, f"{row.own.microseconds if row.own else 0:,.0f} us", va="center", fontsize=8.5)
    axes.set_yticks(range(len(known)), _network_labels(known))
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of a replay")
    axes.set_title(f"Where the time of pruned networks goes - {results.title}", fontsize=11, pad=26)
    axes.legend(ncols=3, fontsize=8.5, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    return figure


def _network_labels(rows: Sequence[NetworkRow]) -> list[str]:
    """Labels of networks, with the sparsity if one was measured at several."""
    labels = [_network_label(row) for row in rows]
    return [
        f"{label}, {row.case.sparsity:g}" if labels.count(label) > 1 else label
        for label, row in zip(labels, rows, strict=True)
    ]


def _network_label(row: NetworkRow) -> str:
    half = "" if row.case.data_type == "float32" else f", {row.case.data_type}"
    return f"{row.case.operator}, batch {row.case.batch}{half}"


def _logarithmic(axis: Any, set_scale: Callable[..., None], unit: str = "x") -> None:
    """Powers of two, written as they are."""
    from matplotlib.ticker import FuncFormatter

    set_scale("log", base=2)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{unit}"))
