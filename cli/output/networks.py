"""Measurements of whole networks as tables for 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from cli.output.bench import KINDS, microseconds, times
from cli.output.table import Cell, Column, fitted_table
from farm.bench.layers.contenders import GENERATED
from farm.bench.layers.results import Measurement, Results
from farm.bench.layers.summary import missing
from farm.bench.networks.session import PRECISIONS
from farm.bench.networks.summary import NetworkRow, mode_and_precision, network_rows
from farm.cuda.measure.workload import CaseKey

SLOWEST = 4
"""Layers named for each network."""


def network_table(rows: Sequence[NetworkRow], width: int) -> Group:
    """One row per network and batch size: our time, the speed-up over the fastest dense run, the shares of the time."""
    columns = [Column("NETWORK", least=8)]
    columns += [Column(name, "right") for name in ("N", "TYPE", "US", "IMAGES/S")]
    columns += [Column(precision.upper(), "right") for precision in PRECISIONS]
    columns += [Column(name, "right", leaves=3) for name in ("COMPILED", "REST", "GAPS")]
    columns += [Column("ERROR", "right", leaves=1), Column("TOP-1", "right", leaves=2)]
    return fitted_table(columns, [_row(each) for each in rows], width)


def _row(row: NetworkRow) -> list[Cell]:
    own, facts = row.own, row.own.facts if row.own else {}
    speedups = [row.speedup(precision) for precision in PRECISIONS]
    throughput = facts.get("images_per_second")
    return [
        row.case.operator,
        str(row.case.batch),
        KINDS.get(row.case.data_type, row.case.data_type),
        microseconds(own.microseconds if own else None),
        f"{throughput:,.0f}" if throughput else "-",
        *(Text(times(ratio), style="red" if ratio is not None and ratio < 1 else "") for ratio in speedups),
        *(_share(row.breakdown.get(kind)) for kind in ("compiled", "rest", "gaps")),
        f"{own.relative_error:.0e}" if own and own.relative_error is not None else "-",
        _share(facts.get("top1")),
    ]


def dense_table(results: Results, width: int) -> Group:
    """One row per network, batch size and PyTorch mode: times of the dense network in microseconds."""
    found = {(each.case, each.contender): each for each in results.measurements if each.contender != GENERATED}
    columns = [Column("DENSE, IN US", least=8), Column("N", "right"), Column("MODE")]
    columns += [Column(precision.upper(), "right") for precision in PRECISIONS]
    rows: list[list[Cell]] = []
    for case, mode in dict.fromkeys((case, mode_and_precision(contender)[0]) for case, contender in found):
        of_mode = [found.get((case, f"{mode}-{precision}")) for precision in PRECISIONS]
        cells = [microseconds(each.microseconds if each else None) for each in of_mode]
        rows.append([case.operator, str(case.batch), mode, *cells])
    return fitted_table(columns, rows, width)


def slowest_lines(rows: Sequence[NetworkRow]) -> list[Text]:
    """The slowest layers of each network and batch size."""
    lines = []
    for row in rows:
        layers = row.breakdown.get("layer_microseconds", {})
        total = row.breakdown.get("total_microseconds")
        if layers and total:
            slowest = sorted(layers.items(), key=lambda each: -each[1])[:SLOWEST]
            shown = ", ".join(f"{name} {value / total:.0%}" for name, value in slowest)
            lines.append(Text(f"{called(row.case)}: slowest layers {shown}"))
    return lines


def missing_network_lines(results: Results) -> list[Text]:
    """Each missing time with its reason; cases with the same reason share a line."""
    by_reason: dict[str, list[str]] = {}
    for (contender, reason), cases in missing(results).items():
        name = "ours" if contender == GENERATED else contender
        by_reason.setdefault(reason, []).append(f"{name} of {'; '.join(called(case) for case in cases)}")
    return [Text(f"no time of {', '.join(what)}: {reason}", style="yellow") for reason, what in by_reason.items()]


def progress_line(measured: Measurement) -> str:
    """One measurement on one line."""
    name = "ours" if measured.contender == GENERATED else measured.contender
    found = f"{microseconds(measured.microseconds)} us" if measured.microseconds else measured.reason
    return f"{called(measured.case)}: {name} {found}"


def called(case: CaseKey) -> str:
    """A case in words, as in resnet50 at batch 8, float16."""
    return f"{case.operator} at batch {case.batch}, {case.data_type}"


def network_tables(results: Results, width: int) -> list[Group | Text]:
    """All tables and lines of the results, in reading order."""
    rows = network_rows(results)
    shown: list[Group | Text] = [network_table(rows, width), Text("")]
    if any(each.contender != GENERATED for each in results.measurements):
        shown += [dense_table(results, width), Text("")]
    return [*shown, *slowest_lines(rows), *missing_network_lines(results)]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
