"""Tuning records and results of `farm tune`, as tables for 100 columns and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from cli.output.layers import shape_text
from cli.output.table import EXTRA, Cell, Column, fitted_table
from farm.config.units import counted

if TYPE_CHECKING:
    from codegen.ir.tiling import Tiling
    from farm.tuning.record import TuningRecord
    from farm.tuning.search.tune import Measurements, Outcome


OUTCOME_COLUMNS = (
    Column("LAYER", least=12),
    Column("N", "right"),
    Column("MODEL US", "right"),
    Column("BEST US", "right"),
    Column("WARM US", "right", leaves=2),
    Column("SPEED-UP", "right"),
    Column("TRIED", "right", leaves=1),
    Column("TILING"),
    Column("RESULT", least=8, cut_end=True),
)
RECORD_COLUMNS = (
    Column("GPU", least=10),
    Column("SHAPE", least=14),
    Column("N", "right"),
    Column("DENSITY", "right"),
    Column("BEST US", "right"),
    Column("SPEED-UP", "right"),
    Column("TILING"),
    Column("MEASURED", leaves=EXTRA),
    Column("FROM"),
)


def outcome_table(outcomes: Sequence[Outcome], width: int) -> Group:
    """One row per layer and batch size."""
    rows: list[list[Cell]] = []
    for each in outcomes:
        record = each.record
        times = [*_times(record), _gain(record)] if record else ["-"] * 4
        tried, tiling = (str(record.tried), tiling_text(record.tiling)) if record else ("-", "-")
        rows.append([_names(each), str(each.batch), *times, tried, tiling, _result(each)])
    return fitted_table(OUTCOME_COLUMNS, rows, width)


def record_table(records: Sequence[TuningRecord], shipped: frozenset[TuningRecord], width: int) -> Group:
    """One row per record."""
    rows = [
        [
            f"{record.gpu.removeprefix('NVIDIA ')} {record.key.arch}",
            f"{shape_text(record.key.spec)} {record.key.spec.data_type.replace('float', 'f')}",
            str(record.key.batch_band),
            f"{record.key.density_band:g}",
            _times(record)[1],
            _gain(record),
            tiling_text(record.tiling),
            record.measured_at.strftime("%Y-%m-%d"),
            "farm" if record in shipped else "ledger",
        ]
        for record in records
    ]
    return fitted_table(RECORD_COLUMNS, rows, width)


def tiling_text(tiling: Tiling) -> str:
    """A tiling as 32x4x2 r2 k2x8 c4 s3 x8: tile and images, rows, K-groups per block and output channels per K-group,
    input channels per chunk, stages, blocks of a cluster; `by place` if the blocks begin in that order."""
    images = f"x{tiling.images}" if tiling.images > 1 else ""
    groups = f"{tiling.groups}x" if tiling.groups > 1 else ""
    return (
        f"{tiling.tile_width}x{tiling.tile_height}{images} r{tiling.rows} k{groups}{tiling.group_outputs} "
        f"c{tiling.chunk_channels} s{tiling.stages}{f' x{tiling.cluster}' if tiling.cluster > 1 else ''}"
        f"{' by place' if tiling.order == 'place' else ''}"
    )


def outcome_line(outcome: Outcome) -> str:
    """The result of one layer on one line."""
    record = outcome.record
    name = f"{outcome.layer} batch {outcome.batch}"
    if record is None:
        return f"{name}: no record, {outcome.reason}"
    how = "has a record" if outcome.known else f"best of {record.tried}"
    model, best, warm = _times(record)
    times = f"{best} us, the cost model's first choice {model} us" + (f", warm {warm} us" if warm != "-" else "")
    wrong = f", {len(outcome.wrong)} wrong" if outcome.wrong else ""
    return f"{name}: {how}, {times}{wrong}"


def wrong_lines(outcomes: Sequence[Outcome]) -> list[Text]:
    """A line for each kernel with wrong results, which is a bug."""
    return [
        Text(f"wrong: {each.layer} batch {each.batch}, {wrong}", style="red")
        for each in outcomes
        for wrong in each.wrong
    ]


def tuned_line(outcomes: Sequence[Outcome]) -> Text:
    """Summary: the number of records, and the speed-up over the cost model's first choices."""
    records = [each.record for each in outcomes if each.record is not None]
    left = sum(each.left for each in outcomes)
    rest = f"; no time left for {counted(left, 'layer')}: run the same command again" if left else ""
    if not records:
        return Text(f"no layer has a record{rest}", style="red")
    ratios = [record.slower for record in records]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    close = sum(ratio <= 1.15 for ratio in ratios)
    return Text(
        f"{counted(len(records), 'record')}: the best tilings found are {mean:.2f}x faster than the cost model's first "
        f"choices (geomean); {close} of {len(ratios)} first choices are within 15 % of the best{rest}",
        style="yellow" if left else "green",
    )


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """The result of a layer as JSON."""
    return {
        "layer": outcome.layer,
        "also": list(outcome.also),
        "batch": outcome.batch,
        "known": outcome.known,
        "record": outcome.record.to_json() if outcome.record else None,
        "not_built": outcome.not_built,
        "wrong": list(outcome.wrong),
        "reason": outcome.reason,
        "left": outcome.left,
        "measured": None if outcome.measured is None else _measured_json(outcome.measured),
    }


def _measured_json(measured: Measurements) -> dict[str, Any]:
    return {
        "spec": measured.spec.to_json(),
        "images": measured.images,
        "density": measured.density,
        "kernels": [each.to_json() for each in measured.kernels],
    }


def _names(outcome: Outcome) -> str:
    return outcome.layer + (f" and {len(outcome.also)} more" if outcome.also else "")


def _result(outcome: Outcome) -> Text:
    if outcome.record is None:
        return Text("no time", style="yellow") if outcome.left else Text(outcome.reason, style="red")
    if outcome.wrong:
        return Text(f"{len(outcome.wrong)} wrong", style="red")
    return Text("known", style="cyan") if outcome.known else Text("tuned", style="green")


def _gain(record: TuningRecord) -> str:
    return f"{record.slower:.2f}x"


def _times(record: TuningRecord) -> tuple[str, str, str]:
    """Times of the cost model's first choice and of the best, as in a network if known; warm time of the best."""
    if record.cold_microseconds is None:
        return _us(record.model_microseconds), _us(record.microseconds), "-"
    model = record.model_cold_microseconds or record.cold_microseconds
    return _us(model), _us(record.cold_microseconds), _us(record.microseconds)


def _us(microseconds: float) -> str:
    return f"{microseconds:.2f}" if microseconds < 1000 else f"{microseconds:.0f}"
