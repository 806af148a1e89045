"""What the pages of `farm report` have in common: one HTML document that loads nothing else and runs no script."""

from __future__ import annotations

from importlib.resources import files

from cli.report.html import Markup, element

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What the browser must not do whatever the page says: no request, no script."""


def document(title: str, *parts: Markup | None) -> str:
    """A page of these parts."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(files("cli.report").joinpath("report.css").read_text())),
    )
    body = element("body", element("main", *parts))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def figures(*shown: tuple[str, str, str]) -> Markup:
    """Large figures side by side: a value, what it is, and more words."""
    items = (
        element("div", element("dt", what), element("dd", element("b", value), element("small", more)))
        for value, what, more in shown
    )
    return element("dl", *items, class_="figures")
