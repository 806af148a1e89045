"""Time that `--trust checked` would save: ptxas made what the direct assembler could."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from codegen.selection.tool_time import SKELETON_SECONDS, direct_seconds
from farm.scheduler.plan import Plan

LEAST_SAVING = 2.0
"""Ratio of the times below which a saving is not worth a word."""


@dataclass(frozen=True)
class TrustSaving:
    """CPU time of the cubins of one architecture, as it is and with trust `checked`."""

    arch: str
    seconds: float
    checked_seconds: float
    """A prediction; each template counts with its skeleton."""


def trust_savings(todo: Plan, seconds: Mapping[str, float]) -> tuple[TrustSaving, ...]:
    """The savings worth a word, by architecture, for the cubins whose time is given by their keys."""
    now, then = defaultdict[str, float](float), defaultdict[str, float](float)
    skeletons: set[tuple[str, str]] = set()
    for request in todo.cubins:
        if (taken := seconds.get(request.key)) is None:
            continue
        now[request.arch] += taken
        if any(target.only_checked for target in todo.targets[request.key]):
            then[request.arch] += direct_seconds(request.cost)
            skeletons.add((request.arch, request.template.key))
        else:
            then[request.arch] += taken
    for arch, _ in skeletons:
        then[arch] += SKELETON_SECONDS
    found = (TrustSaving(arch, taken, then[arch]) for arch, taken in now.items())
    return tuple(each for each in found if each.seconds >= LEAST_SAVING * each.checked_seconds)
