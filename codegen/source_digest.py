"""Sources reduced to code, without comments, docstrings and empty lines, so that a corrected comment changes no digest.

Regular expressions rather than parsers, since every process that makes a key reads these sources: 20 ms for all of
codegen/ instead of 300 ms. tests/unit/test_keys.py compares the result with Python's parser for every source.
"""

from __future__ import annotations

import re

_PYTHON = re.compile(
    r'''^[ \t]*"""(?:[^\\]|\\.)*?"""[ \t]*(?:\#[^\n]*)?$'''  # a string that is a statement of its own
    r'|(?P<code>"""(?:[^\\]|\\.)*?"""'
    r"|'''(?:[^\\]|\\.)*?'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*')"
    r"|\#[^\n]*",
    re.DOTALL | re.MULTILINE,
)
"""Docstrings, strings and comments in reading order, so that a # inside a string does not start a comment."""
_CUDA = re.compile(
    r'(?P<code>"(?:[^"\\\n]|\\.)*"|' r"'(?:[^'\\\n]|\\.)')" r"|//(?:[^\\\n]|\\.)*" r"|/\*.*?\*/", re.DOTALL
)
"""Strings, characters and comments. A comment at the end of a line that a backslash continues goes on as well."""


def python_code(source: str) -> str:
    """The lines of code of a Python source whose docstrings have three double quotes."""
    return _code(_PYTHON, source)


def cuda_code(source: str) -> str:
    """The lines of code of a CUDA source; comments inside of strings, which reach the PTX, are code."""
    return _code(_CUDA, source)


def _code(pattern: re.Pattern[str], source: str) -> str:
    lines = pattern.sub(lambda found: found["code"] or "", source).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip())
