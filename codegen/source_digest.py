"""Python sources without what has no effect: comments, docstrings and empty lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_STRING_OR_COMMENT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""'
    r"|'''(?:[^\\]|\\.)*?'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|(?P<comment>#[^\n]*)",
    re.DOTALL,
)
"""As Python reads them from the left: what looks like a comment within a string is none."""


def code_of(source: str) -> str:
    """The lines that do something. Raises SyntaxError for what is no Python."""
    tree = ast.parse(source)
    lines = _STRING_OR_COMMENT.sub(lambda found: "" if found["comment"] else found[0], source).splitlines()
    for node in _statements(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements within a statement or module, without a look at expressions."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(node, name, ()):
            yield each
            yield from _statements(each)
