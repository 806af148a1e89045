"""infra/README.md explains messages that the program gives, and metrics that it serves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from farm.ledger import open_ledger
from farm.reports.metrics import LedgerCollector
from farm.testing import laptop_settings
from tests.house.tree import PACKAGES, ROOT, modules

TEXT = (ROOT / "infra" / "README.md").read_text()


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def texts() -> str:
    """All that stands in string literals, each f-string with its values left out."""
    found = []
    for file in modules(*PACKAGES):
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_every_message_that_is_explained_is_one_of_the_program_s() -> None:
    rows = re.findall(r"^\| (.+?) \| .+ \|$", section("Troubleshooting"), re.M)[2:]
    messages = [message for row in rows if "CUDA's" not in row for message in re.findall(r"`([^`]+)`", row)]
    said = texts()
    assert len(messages) >= 10
    assert not [message for message in messages if message not in said]


def test_every_metric_is_explained(tmp_path: Path) -> None:
    ledger = open_ledger(laptop_settings(tmp_path))
    try:
        served = {family.name for family in LedgerCollector(ledger).collect()}
    finally:
        ledger.close()
    assert set(re.findall(r"\bfarm_[a-z_]+\b", section("Metrics"))) == served
