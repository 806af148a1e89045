"""No test asserts what cannot be otherwise."""

from __future__ import annotations

import ast

from tests.house.tree import ROOT, own_files


def test_no_assertion_compares_an_expression_with_itself() -> None:
    found = []
    for path in own_files():
        if path.suffix != ".py" or not path.is_relative_to(ROOT / "tests"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                for compared in (each for each in ast.walk(node.test) if isinstance(each, ast.Compare)):
                    sides = [ast.dump(side) for side in (compared.left, *compared.comparators)]
                    if len(set(sides)) < len(sides):
                        found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(compared)}")
    assert not found
