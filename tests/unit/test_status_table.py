"""The table of `farm status` fits its terminal, one line per job, and cuts nothing important."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from cli.output.console import PIPE_WIDTH
from cli.output.jobs import counts_line, job_json, job_state, job_table
from farm.jobs.model import BuildOptions, Status
from tests.unit.test_cli_output import NOW, REASON, job, shown

COLUMNS_AT_100 = ["ID", "NAME", "ARCHS", "STAGE", "DONE", "CACHE", "SUBMITTED", "DURATION", "STATUS", "REASON"]
LARGE = job(
    name="small_resnet_imagenet_pruned",
    options=BuildOptions(("sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_120")),
    status=Status.PENDING,
    stage="assemble",
    done=1,
    total=40,
    reason=REASON,
    submitted_at=NOW - timedelta(days=40),
)


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_a_status_table_is_never_wider_than_its_terminal(width: int) -> None:
    lines = shown(job_table([job(), LARGE], width), width)
    assert max(map(len, lines)) <= width
    assert lines[0].split()[-1] == "REASON"


def test_a_status_table_of_100_columns_has_the_important_columns() -> None:
    assert shown(job_table([LARGE], 100), 100)[0].split() == COLUMNS_AT_100


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_job_is_one_line_and_its_name_is_cut_in_the_middle(width: int) -> None:
    [_, line] = shown(job_table([LARGE], width), width)
    name = line.split()[2] if width == 200 else line.split()[1]
    assert name.startswith("small_")
    assert name.endswith("runed")
    assert (name == LARGE.name) == (width == 200)
    assert "1/40" in line.split()


def test_names_are_whole_where_there_is_room() -> None:
    lines = shown(job_table([job(name="alexnet_cifar10"), job()], 100), 100)
    assert lines[1].split()[1] == "alexnet_cifar10"


def test_nothing_is_cut_without_a_terminal() -> None:
    endless = job(reason="word " * 200, name="name" * 50)
    [_, line] = shown(job_table([endless], PIPE_WIDTH), PIPE_WIDTH)
    assert "name" * 50 in line
    assert line.endswith(" ".join(["word"] * 200))


def test_a_job_that_has_not_started_is_claimed_not_running() -> None:
    waits = job(status=Status.RUNNING, done=0, started_at=None)
    assert job_state(waits).plain == "CLAIMED"
    assert job_state(replace(waits, started_at=NOW)).plain == "RUNNING"
    document = job_json(waits)
    assert (document["status"], document["claimed"]) == ("RUNNING", True)
    assert counts_line({Status.RUNNING: 3}, claimed=2).plain.split("  ")[1:3] == ["2 CLAIMED", "1 RUNNING"]


def test_a_wide_terminal_has_all_columns() -> None:
    header = shown(job_table([job()], 160), 160)[0].split()
    assert {"SUBMITTER", "MODEL", "LEFT", "TRIES"} < set(header)


def test_a_reason_with_line_breaks_is_one_line() -> None:
    assert len(shown(job_table([job(reason="one\ntwo", name="a\nb")], 100), 100)) == 2
