"""The cases of a test come in the same order in every process, as pytest-xdist needs them."""

from __future__ import annotations

import ast

from tests.house.tree import ROOT, own_files


def test_no_test_takes_its_cases_from_a_set() -> None:
    found = []
    for path in own_files():
        if path.suffix != ".py" or not path.is_relative_to(ROOT / "tests"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.parametrize":
                cases = [each for each in node.args[1:2] if _is_set(each)]
                found += [f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(each)}" for each in cases]
    assert not found


def _is_set(cases: ast.expr) -> bool:
    """Whether an expression is a set, or made of one by an operator."""
    if isinstance(cases, ast.BinOp):
        return _is_set(cases.left) or _is_set(cases.right)
    called = ast.unparse(cases.func) if isinstance(cases, ast.Call) else ""
    return isinstance(cases, ast.Set | ast.SetComp) or called in ("set", "frozenset")
