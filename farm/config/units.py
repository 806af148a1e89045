"""Sizes and durations, as people write them and as they are shown: every option and every setting reads them here."""

from __future__ import annotations

import re

SIZES = "a size with its unit, as in 500GB, 8GiB or 512MiB"
DURATIONS = "a duration with its unit, as in 90d, 12h, 15min or 10s"

_BYTES = {f"{prefix}B": 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T"))} | {
    f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)
}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
_SIZE = re.compile(rf"({_NUMBER})\s*({'|'.join(_BYTES)})", re.IGNORECASE)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*(s|min|m|h|d)\s*", re.IGNORECASE)
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+", re.IGNORECASE)


def read_bytes(text: str) -> int:
    """Bytes from 500GB, 8GiB, 1.5 MB or 0; upper and lower case are the same. Raises ValueError: `SIZES`."""
    text = text.strip()
    if text == "0":
        return 0
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(SIZES)
    [factor] = [factor for unit, factor in _BYTES.items() if unit.lower() == match[2].lower()]
    return int(float(match[1]) * factor)


def read_seconds(text: str) -> float:
    """Seconds from 90d, 12h, 15min, 15m, 10s, 1h30m or 0. Raises ValueError: `DURATIONS`."""
    text = text.strip()
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(DURATIONS)
    parts = _DURATION_PART.findall(text)
    return sum(float(number) * _SECONDS["min" if (unit := name.lower()) == "m" else unit] for number, name in parts)


def format_bytes(count: int) -> str:
    """Exact, in the unit that makes it shortest, as in 10 GiB, 500 GB, 1234567 B; `read_bytes` takes it back."""
    exact = [(count // factor, unit) for unit, factor in _BYTES.items() if count % factor == 0]
    number, unit = min(exact, key=lambda each: each[0]) if count else (0, "B")
    return f"{number} {unit}"


def format_seconds(seconds: float) -> str:
    """In the largest unit that leaves a whole number, as in 90 d, 15 min, 0.5 s; `read_seconds` takes it back."""
    for unit, factor in reversed(_SECONDS.items()):
        if seconds and seconds % factor == 0:
            return f"{int(seconds // factor)} {unit}"
    return f"{seconds:g} s"
