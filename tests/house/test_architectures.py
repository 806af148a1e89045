"""Differences between architectures' machine code stand in their data files: no code asks for a number."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house.tree import ROOT, modules

OF_MACHINE_CODE = ("codegen/sass", "codegen/emulator")
_NUMBER = re.compile(r"\b(capability|arch_number)\b|['\"](sm|compute)_\d+")


def decisions(source: str) -> list[str]:
    """Comparisons and cases that name an architecture or its number."""
    texts = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if _decides(node)]
    return [text for text in texts if _NUMBER.search(text)]


def _decides(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return False
        case ast.Compare() | ast.MatchValue() | ast.Call(func=ast.Attribute(attr="startswith" | "endswith")):
            return True
    return False


def test_no_code_of_the_assembler_or_emulator_compares_an_architecture() -> None:
    found = {file: decisions((ROOT / file).read_text()) for file in modules(*OF_MACHINE_CODE)}
    assert len(found) > 50
    assert {file: texts for file, texts in found.items() if texts} == {}


@pytest.mark.parametrize(
    "source",
    [
        "if file.capability < 90: pass",
        "if arch == 'sm_80': pass",
        "if arch in ('sm_80', 'sm_86'): pass",
        "if arch_number(arch) >= 100: pass",
        "match arch:\n case 'sm_90': pass",
        "arch.startswith('sm_1')",
    ],
)
def test_a_comparison_with_an_architecture_is_found(source: str) -> None:
    assert decisions(source)
