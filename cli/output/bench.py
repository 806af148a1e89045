"""Measurements of `farm bench` as tables for 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from cli.output.table import plain_table
from farm.bench.layers.contenders import GENERATED, PEERS, title_of
from farm.bench.layers.paper import PaperRow
from farm.bench.layers.results import Measurement, Results
from farm.bench.layers.summary import PeerSummary, break_evens, missing, roof_share, speedups, summarise
from farm.cuda.measure.workload import CaseKey

KINDS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
BREAK_EVEN_PEERS = ("cudnn-fp32", "cudnn-tf32")


def microseconds(value: float | None) -> str:
    """Microseconds with two decimals below 100, none above; - for None."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def times(ratio: float | None) -> str:
    """A speed-up as 1.25x or 12x; - for None."""
    if ratio is None:
        return "-"
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


def case_table(results: Results, width: int) -> Table:
    """One row per case: the generated kernel's time in microseconds, and its speed-up over each peer."""
    own = results.of(GENERATED)
    asked = {each.contender for each in results.measurements}
    peers = [peer for peer in PEERS.values() if peer.listed and peer.name in asked]
    ratios = {peer.name: speedups(results, peer.name) for peer in peers}
    table = plain_table(width)
    table.add_column("OPERATOR", overflow="fold")
    for name in ("N", "ZEROS", "TYPE", "US", "COST MODEL", "ROOF", *(peer.column for peer in peers)):
        table.add_column(name, justify="right", no_wrap=True)
    for case, measurement in own.items():
        share = roof_share(measurement)
        found = [ratios[peer.name].get(case) for peer in peers]
        table.add_row(
            case.operator,
            str(case.batch),
            f"{case.sparsity:g}",
            KINDS.get(case.data_type, case.data_type),
            microseconds(measurement.microseconds),
            microseconds(measurement.predicted_microseconds),
            f"{share:.0%}" if share is not None else "-",
            *(Text(times(ratio), style="red" if ratio is not None and ratio < 1 else "") for ratio in found),
        )
    return table


def summary_table(summaries: Sequence[PeerSummary], width: int) -> Table:
    """One row per peer, batch, sparsity and data type."""
    table = plain_table(width)
    table.add_column("SPEED-UP OVER", no_wrap=True)
    for name in ("N", "ZEROS", "TYPE", "GEOMEAN", "MIN"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("MIN AT", overflow="fold")
    for each in summaries:
        table.add_row(
            title_of(each.peer),
            str(each.batch),
            f"{each.sparsity:g}",
            KINDS.get(each.data_type, each.data_type),
            times(each.mean),
            times(each.least),
            each.least_operator if each.operators > 1 else "",
        )
    return table


def break_even_table(results: Results, width: int) -> Table | None:
    """The sparsity from which the generated kernel is faster than a peer; None if only one sparsity was measured."""
    found = break_evens(results, BREAK_EVEN_PEERS)
    if not found:
        return None
    table = plain_table(width)
    table.add_column("BREAK-EVEN SPARSITY", overflow="fold")
    for name in ("N", "TYPE", *(title_of(peer) for peer in BREAK_EVEN_PEERS)):
        table.add_column(name, justify="right", no_wrap=True)
    for (operator, batch, data_type), by_peer in found.items():
        cells = [str(by_peer[peer]) if peer in by_peer else "-" for peer in BREAK_EVEN_PEERS]
        table.add_row(operator, str(batch), KINDS.get(data_type, data_type), *cells)
    return table


def paper_table(rows: Sequence[PaperRow], width: int) -> Table:
    """The paper's numbers next to ours."""
    table = plain_table(width)
    table.add_column("FIGURE", no_wrap=True)
    for name in ("WHAT", "PAPER", "OURS"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(row.figure, row.what, row.paper, row.ours)
    return table


def missing_lines(results: Results) -> list[Text]:
    """Each missing time with its reason; cases with the same reason share a line."""
    lines = []
    for (contender, reason), cases in missing(results).items():
        of = len(results.of(contender))
        where = f"all {of} cases" if len(cases) == of > 1 else _names(cases)
        lines.append(Text(f"no time of {_called(contender)}, {where}: {reason}", style="yellow"))
    return lines


def _called(contender: str) -> str:
    return "the generated kernel" if contender == GENERATED else title_of(contender)


def _names(cases: Sequence[CaseKey]) -> str:
    shown = [f"{case.operator} at batch {case.batch}, {case.sparsity:g}" for case in cases[:3]]
    more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
    return "; ".join(shown) + more


def error_line(results: Results) -> Text:
    """The largest relative error of the generated kernels, by data type."""
    errors: dict[str, float] = {}
    for case, measurement in results.of(GENERATED).items():
        if measurement.relative_error is not None:
            errors[case.data_type] = max(errors.get(case.data_type, 0.0), measurement.relative_error)
    each = ", ".join(f"{error:.1e} in {data_type}" for data_type, error in errors.items())
    return Text(f"generated kernels checked against float64: largest relative error {each}" if each else "")


def progress_line(measured: Sequence[Measurement], done: int, total: int) -> str:
    """The times of one case on one line."""
    by_name = {each.contender: each.microseconds for each in measured}
    case = measured[0].case
    found = ", ".join(f"{title_of(name)} {microseconds(time)}" for name, time in by_name.items() if time is not None)
    return f"{done}/{total} {case.operator} batch {case.batch} sparsity {case.sparsity:g} {case.data_type}: {found} us"


def tables(results: Results, width: int) -> list[Table | Text]:
    """All tables and lines of the results, in reading order."""
    shown: list[Table | Text] = [case_table(results, width), Text("")]
    if summaries := summarise(results):
        shown += [summary_table(summaries, width), Text("")]
    if (table := break_even_table(results, width)) is not None:
        shown += [table, Text("")]
    return [*shown, error_line(results), *missing_lines(results)]
