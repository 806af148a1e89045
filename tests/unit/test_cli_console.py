"""Closed streams and readers that are gone are no errors: the exit code stays that of the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.exit_codes import NOT_FOUND, OK, UNREACHABLE, USAGE
from cli.main import run
from tests.command import ROOT


def code_and_words(folder: Path, shell: str) -> tuple[int, str]:
    """The exit code of a command line in which `farm` stands for the command, and all that was written."""
    environment = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    script = f'farm() {{ "{sys.executable}" -m cli.main "$@"; }}; set -o pipefail; {shell}'
    ended = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("command", ["status", "status --json", "--help"])
@pytest.mark.parametrize("ending", [">&-", "<&- >&- 2>&-", "| head -0", "2>&1 | head -0"])
def test_a_command_whose_reader_is_gone_ends_quietly(command: str, ending: str, tmp_path: Path) -> None:
    assert code_and_words(tmp_path, f"farm {command} {ending}") == (OK, "")


def test_watching_ends_when_the_reader_is_gone_though_nothing_changes(tmp_path: Path) -> None:
    code, words = code_and_words(tmp_path, "farm status --watch | head -1")
    assert (code, words.count("\n")) == (OK, 1)


@pytest.mark.parametrize("ending", ["2>&-", "2>&1 | head -0"])
@pytest.mark.parametrize(("command", "code"), [("inspect nothing", NOT_FOUND), ("nonsense", USAGE)])
def test_an_error_whose_reader_is_gone_keeps_its_exit_code(
    command: str, code: int, ending: str, tmp_path: Path
) -> None:
    assert code_and_words(tmp_path, f"farm {command} {ending}") == (code, "")


def test_the_database_does_not_get_the_descriptor_of_a_closed_stdout(tmp_path: Path) -> None:
    code_and_words(tmp_path, "farm status >&-")
    assert (tmp_path / "farm" / "farm.db").read_bytes().startswith(b"SQLite format 3\0")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["status", "status --json", "--help"])
def test_output_to_a_full_disk_is_one_line_with_its_own_exit_code(command: str, tmp_path: Path) -> None:
    code, words = code_and_words(tmp_path, f"farm {command} >/dev/full")
    assert code == UNREACHABLE
    assert (
        words == "farm: cannot write the output: No space left on device. Free disk space, or redirect it elsewhere.\n"
    )


def test_a_suggestion_ends_with_its_question_mark(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["archs"]) == USAGE
    assert "Did you mean 'cache'? farm --help lists the commands." in " ".join(capsys.readouterr().err.split())
