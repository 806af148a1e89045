"""Sizes, durations and counts: parsing of what users write, and formatting."""

from __future__ import annotations

import re

SIZES = "a size such as 500GB, 8GiB or 512MiB"
"""Description of a size, for messages."""
DURATIONS = "a duration such as 90d, 12h, 15min or 10s"
"""Description of a duration, for messages."""

_BYTES = {f"{prefix}B": 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T"))} | {
    f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)
}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
_SIZE = re.compile(rf"({_NUMBER})\s*({'|'.join(_BYTES)})", re.IGNORECASE)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*(s|min|m|h|d)\s*", re.IGNORECASE)
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+", re.IGNORECASE)


def read_bytes(text: str) -> int:
    """Parses a size such as 500GB, 8GiB, 1.5 MB or 0, in either case, to bytes. Raises ValueError with `SIZES`."""
    text = text.strip()
    if text == "0":
        return 0
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(SIZES)
    [factor] = [factor for unit, factor in _BYTES.items() if unit.lower() == match[2].lower()]
    return int(float(match[1]) * factor)


def read_seconds(text: str) -> float:
    """Parses a duration such as 90d, 15min, 15m, 1h30m or 0 to seconds. Raises ValueError with `DURATIONS`."""
    text = text.strip()
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(DURATIONS)
    parts = _DURATION_PART.findall(text)
    return sum(float(number) * _SECONDS["min" if (unit := name.lower()) == "m" else unit] for number, name in parts)


def format_bytes(count: int) -> str:
    """Formats a size exactly, in the unit with the smallest number: 10 GiB, 500 GB. `read_bytes` parses it."""
    exact = [(count // factor, unit) for unit, factor in _BYTES.items() if count % factor == 0]
    number, unit = min(exact, key=lambda each: each[0]) if count else (0, "B")
    return f"{number} {unit}"


def format_seconds(seconds: float) -> str:
    """Formats a duration in the largest unit with a whole number: 90 d, 15 min, 0.5 s. `read_seconds` parses it."""
    for unit, factor in reversed(_SECONDS.items()):
        if seconds and seconds % factor == 0:
            return f"{int(seconds // factor)} {unit}"
    return f"{seconds:g} s"


def counted(count: int, noun: str) -> str:
    """A count with its noun, as in 1 cubin, 12 cubins."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
