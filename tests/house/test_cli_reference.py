"""cli/REFERENCE.md is what the program generates; the settings table and the exit codes behind it are complete."""

from __future__ import annotations

import re

from cli import exit_codes
from cli.reference import reference
from farm.config.settings import Settings
from farm.config.settings_table import SETTINGS
from tests.house.tree import ROOT


def test_the_committed_reference_is_what_the_program_generates() -> None:
    assert (ROOT / "cli" / "REFERENCE.md").read_text() == reference(), "run `make reference`"


def test_every_exit_code_has_a_meaning() -> None:
    codes = [value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)]
    assert list(exit_codes.MEANINGS) == sorted(codes)


def test_the_settings_table_has_every_field_once() -> None:
    fields = [name for name in Settings.__dataclass_fields__ if name != "origins"]
    assert sorted(setting.name for setting in SETTINGS) == sorted(fields)
    assert len({setting.variable for setting in SETTINGS}) == len(fields)
    assert len({setting.place for setting in SETTINGS}) == len(fields)


def test_every_setting_is_explained_in_one_sentence() -> None:
    assert not [each.variable for each in SETTINGS if not re.fullmatch(r"[A-Z`].+\.", each.sentence)]
