"""Every table of jobs, layers and tuning at 100 columns, as `tests/golden/tables` holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.commands.verify import verdict_table
from cli.output.jobs import job_table
from cli.output.layers import code_table, layer_table
from cli.output.tuning import outcome_table, record_table
from codegen.ir.tiling import Tiling
from farm.jobs.model import Outcome, Status
from farm.tuning.search.tune import Outcome as TuneOutcome
from tests.tuning_samples import record
from tests.unit.test_cli_output import REASON, detail, in_parts, job, shown
from tests.unit.test_cli_verify import row

GOLDEN = Path(__file__).parent.parent / "golden" / "tables"
WIDTH = 100
TILING = Tiling("conv2d", 32, 4, 2, 8, 4, 3, images=2)
TUNED = TuneOutcome("conv1", ("conv2",), 64, record(TILING))

TABLES: dict[str, Callable[[], Any]] = {
    "jobs": lambda: job_table([job(), job(name="resnet50", status=Status.PENDING, done=1, reason=REASON)], WIDTH),
    "layers": lambda: layer_table(detail(Outcome.HIT, Outcome.BUILT), WIDTH, totals=True),
    "layers_in_parts": lambda: layer_table(in_parts(Outcome.BUILT, Outcome.BUILT, Outcome.BUILT), WIDTH),
    "code": lambda: code_table(detail(Outcome.HIT, Outcome.BUILT, template_seconds=1.5), WIDTH),
    "verify": lambda: verdict_table([row("conv1"), row("fc1", parts=2, message="off")], WIDTH),
    "tune": lambda: outcome_table([TUNED, replace(TUNED, record=None, reason="no tiling fits it")], WIDTH),
    "tuning_records": lambda: record_table([record(TILING)], frozenset(), WIDTH),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_100_columns_matches_its_golden_file(name: str) -> None:
    lines = shown(TABLES[name](), WIDTH)
    assert lines == (GOLDEN / f"{name}.txt").read_text().splitlines()
