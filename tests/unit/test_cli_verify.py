"""The table of `farm verify`: one line per layer that fits the terminal, failures in full below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cli.commands.verify import ptx_lines, verdict_table, wrong_lines
from tests.unit.test_cli_output import shown

NAME = "/backbone/backbone.features/backbone.features.17/conv/conv.2/Conv"


def row(layer: str = NAME, *, parts: int = 1, batches: Sequence[int] = (), message: str = "") -> dict[str, Any]:
    return {
        "layer": layer,
        "parts": parts,
        "archs": ["sm_80", "sm_90"],
        "batches": list(batches),
        "on": "machine code",
        "ptx_because": "",
        "blocks": 12,
        "blocks_total": 1024,
        "outputs": 65_536,
        "relative_error": 3.9e-8,
        "bound_share": 0.479,
        "ok": not message,
        "message": message,
    }


@pytest.mark.parametrize("width", [80, 100, 160])
def test_only_a_long_name_is_cut(width: int) -> None:
    lines = shown(verdict_table([row("x" * 300), row()], width), width)
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)
    assert all(line.split()[1] == "80,90" and line.split()[-3:] == ["3.9e-08", "47.9%", "PASS"] for line in lines[1:])


def test_parts_are_shown_where_a_layer_has_several() -> None:
    assert "PARTS" not in shown(verdict_table([row()], 100), 100)[0]
    assert "PARTS" in shown(verdict_table([row(), row(parts=2)], 120), 120)[0]


def test_kernels_for_some_batch_sizes_are_told_apart() -> None:
    rows = [row(batches=(1, 8), message="off"), row(batches=(64,))]
    assert [line.split()[1:3] for line in shown(verdict_table(rows, 120), 120)[1:]] == [
        ["80,90", "1,8"],
        ["80,90", "64"],
    ]
    assert [line.plain for line in wrong_lines(rows)] == [f"{NAME} sm_80,sm_90 batch 1,8: off"]
    assert "BATCH" not in shown(verdict_table([row()], 120), 120)[0]


def test_failed_checks_are_printed_in_full_below_the_table() -> None:
    wrong = "in the block of outputs from [0, 0, 0]: one is 0.7 and should be 0.5, further off than 0.1 " + "x" * 50
    rows = [row(), row("conv1", message=wrong)]
    assert [line.split()[-1] for line in shown(verdict_table(rows, 100), 100)] == ["RESULT", "PASS", "FAIL"]
    assert [line.plain for line in wrong_lines(rows)] == [f"conv1 sm_80,sm_90: {wrong}"]


def test_each_reason_for_ptx_is_one_line_with_its_count() -> None:
    reason = "machine code of sm_80 is not emulated"
    lines = ptx_lines([row(), *(row(f"conv{i}") | {"ptx_because": reason} for i in range(3))])
    assert [line.plain for line in lines] == [f"3 checks of PTX only: {reason}. farm verify --gpu runs the cubins"]


def test_reasons_that_differ_in_the_place_of_a_word_are_one() -> None:
    reasons = [f"word {place} (opcode 0x210): two carries out" for place in (148, 156)]
    lines = ptx_lines([row() | {"ptx_because": each} for each in reasons])
    assert [line.plain for line in lines] == [
        "2 checks of PTX only: a word (opcode 0x210): two carries out. farm verify --gpu runs the cubins"
    ]
