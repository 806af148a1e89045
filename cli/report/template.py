"""HTML pages from Jinja2 templates. A report is one self-contained document that loads nothing and runs no script."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from cli.output.format import duration, magnitude, microseconds, percent, size
from farm.config.units import counted

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: Any) -> str:
    """Fill a template of this folder; every value is escaped."""
    return _pages().get_template(template).render(values)


@cache
def _pages() -> Environment:
    """The templates of this folder, each compiled once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("cli", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "counted": counted,
        "duration": duration,
        "magnitude": magnitude,
        "microseconds": microseconds,
        "percent": percent,
        "share": _share,
        "size": size,
    }
    return pages


def _share(share: float) -> str:
    """Share of a width, 0 to 1, as CSS has it: 12.34%."""
    return f"{share:.2%}"
