"""Python sources reduced to code: without comments, docstrings and empty lines."""

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
"""Strings and comments in reading order, so that a # inside a string does not start a comment."""


def code_of(source: str) -> str:
    """The lines of code of a Python source. Raises SyntaxError if it is not valid Python."""
    tree = ast.parse(source)
    lines = _STRING_OR_COMMENT.sub(lambda found: "" if found["comment"] else found[0], source).splitlines()
    for node in _statements(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements nested in a statement or module."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(node, name, ()):
            yield each
            yield from _statements(each)
