"""HTML from values: text is escaped unless it is markup already, so that no name of a layer can be any."""

from __future__ import annotations

from html import escape

VOID = frozenset({"img", "meta"})
"""Elements that have no end."""


class Markup(str):
    """HTML that is written as it stands."""

    __slots__ = ()


def element(tag: str, *children: str | None, **attributes: str | None) -> Markup:
    """An element: children that are None are left out, and so are attributes.

    `class_` is the attribute class, `aria_label` is aria-label.
    """
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    start = "".join(f' {name}="{escape(value)}"' for name, value in names.items())
    if tag in VOID:
        return Markup(f"<{tag}{start}>")
    return Markup(f"<{tag}{start}>{joined(*children)}</{tag}>")


def joined(*children: str | None) -> Markup:
    """One after the other."""
    present = (child for child in children if child is not None)
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in present))


def name_of(text: str) -> Markup:
    """A name that people chose, of which the writing direction and the length are unknown."""
    return element("bdi", text, class_="name")


def section(title: str, *children: str | None, class_: str | None = None) -> Markup:
    """A part of a page below its heading."""
    return element("section", element("h2", title), *children, class_=class_)
