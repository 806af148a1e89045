"""Values as text: counts, durations, sizes, times of day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from codegen.sass.qualification import ASSEMBLED
from farm.config.price import Price
from farm.jobs.model import BuildResult


def duration(seconds: float | None) -> str:
    """Seconds as 0.4s, 12s, 3m05s, 2h10m or 4d03h; - for None."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def cost_text(seconds: float, price: Price | None) -> str:
    """CPU time, and its cost if there is a price, as in 12m40s (0.0084 EUR)."""
    return duration(seconds) + (f" ({price.text(seconds)})" if price else "")


def cost_json(spent_seconds: float, saved_seconds: float, price: Price | None) -> dict[str, Any] | None:
    """Costs of CPU time spent and saved; None without a price."""
    if price is None:
        return None
    spent, saved = price.of(spent_seconds), price.of(saved_seconds)
    return {"price": str(price), "currency": price.currency, "spent": spent, "saved": saved}


def size(count_bytes: int) -> str:
    """Bytes as 812 B, 14 KB, 3.2 MB or 1.5 GB."""
    if count_bytes < 1000:
        return f"{count_bytes} B"
    if count_bytes < 1_000_000:
        return f"{count_bytes / 1000:.0f} KB"
    if count_bytes < 1_000_000_000:
        return f"{count_bytes / 1e6:.1f} MB"
    return f"{count_bytes / 1e9:.1f} GB"


def magnitude(count: int) -> str:
    """A count as 812, 14.2K, 3.2M or 1.5G."""
    for unit, factor in (("G", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f}{unit}"
    return str(count)


def percent(share: float) -> str:
    """A share of 0 to 1 as 90.0%."""
    return f"{share:.1%}"


def microseconds(value: float) -> str:
    """A kernel time for a page, as in 12.3 \N{MICRO SIGN}s or 4.56 ms."""
    return f"{value / 1000:,.2f} ms" if value >= 1000 else f"{value:,.1f} \N{MICRO SIGN}s"


def moment(at: datetime, now: datetime) -> str:
    """A time of today as 14:03:22, an older one as 2026-11-20, in the local time zone."""
    local, today = at.astimezone(), now.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == today.date() else "%Y-%m-%d")


def date_and_time(at: datetime) -> str:
    """A time as 2026-11-20 14:03:22, for logs, in the local time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def archs_text(archs: Sequence[str]) -> str:
    """Architectures without their prefix, as in 80 90 120."""
    return " ".join(arch.removeprefix("sm_") for arch in archs)


def built_how(result: BuildResult) -> str:
    """A built cubin in words: tools, times, registers and size."""
    rewritten = f"rewrite {result.rewrite_seconds * 1e3:.0f} ms, " if result.ptx else ""
    seconds = result.ptxas_seconds
    took = duration(seconds) if result.assembler == "ptxas" else f"{seconds * 1e3:.0f} ms"
    assembled = f"{ASSEMBLED[result.assembler]} {took}"
    return f"{rewritten}{assembled}, {result.registers} registers, {size(result.cubin_bytes)}"


def ptxas_time(results: Sequence[BuildResult]) -> str:
    """Time that ptxas took for some cubins, or the assembler that made them without it: direct or patch."""
    by_ptxas = [result.ptxas_seconds for result in results if result.assembler == "ptxas"]
    others = sorted({result.assembler for result in results})
    return duration(sum(by_ptxas)) if by_ptxas or not others else ", ".join(others)
