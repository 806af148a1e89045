"""cli/README.md has every setting as the program's own table has it."""

from __future__ import annotations

import re

from farm.config.settings import Settings
from farm.config.table import SETTINGS, Setting
from tests.house.tree import ROOT

REFERENCE = (ROOT / "cli" / "README.md").read_text()


def row(setting: Setting) -> str:
    """A setting as the reference has it."""
    default = setting.default_text
    return f"| `{setting.variable}` | `{setting.place}` | {setting.kind.name} | {default} | {setting.sentence} |"


def test_the_reference_has_every_setting_and_no_other() -> None:
    section = re.search(r"^## Settings$.*?(?=^## |\Z)", REFERENCE, re.M | re.S)
    assert section, "cli/README.md has no section about the settings"
    listed = [line for line in section[0].splitlines() if line.startswith("| `FARM_")]
    assert listed == [row(setting) for setting in SETTINGS]


def test_the_table_has_every_field_of_the_settings_once() -> None:
    fields = [name for name in Settings.__dataclass_fields__ if name != "origins"]
    assert sorted(setting.name for setting in SETTINGS) == sorted(fields)
    assert (
        len({setting.variable for setting in SETTINGS}) == len({setting.place for setting in SETTINGS}) == len(fields)
    )


def test_every_setting_is_explained_in_one_sentence() -> None:
    assert not [each.variable for each in SETTINGS if not re.fullmatch(r"[A-Z`].+\.", each.sentence)]
