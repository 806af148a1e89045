"""What is still under way where a branch is taken, followed to where the branch goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from codegen.machine import latencies
from codegen.machine.operands import PREDICATES, RESOURCES
from codegen.machine.program import Finding, Program, resource_name
from codegen.machine.word import ALWAYS, NO_SCOREBOARD

_LONGEST: Final = int(max(latencies.REGISTER_CYCLES.max(), latencies.GUARD_CYCLES))


@dataclass(frozen=True)
class _Pending:
    """A register that is not ready: its value is under way (result, cycles), or its old one is still read (operand)."""

    kind: Literal["result", "cycles", "operand"]
    word: int
    """Who made it so."""
    resource: int
    scoreboards: frozenset[int] = frozenset()
    """To wait for any of them is enough."""
    elapsed: int = 0
    """Cycles since that word issued."""


def pending_on_branches(code: Program) -> Iterator[Finding]:
    """What the code at a branch's target uses although it is not ready when the branch is taken."""
    ends = np.append(np.flatnonzero(code.ends), len(code) - 1)
    waiting = [(each, target) for branch, target in code.branches for each in _pending_at(code, branch)]
    seen = set(waiting)
    while waiting:
        pending, start = waiting.pop()
        resource = np.array([pending.resource])
        uses = code.last_write if pending.kind == "operand" else code.next_use
        end = int(ends[np.searchsorted(ends, start)])
        use = int(uses.following(resource, np.array([start]))[0])
        cleared = min((_first(code, board, start) for board in pending.scoreboards), default=len(code))
        if use <= end and use < cleared and (reason := _wrong(code, pending, start, use)):
            yield Finding(use, reason)
            continue
        for branch, target in code.branches_within(start, min(end, use - 1, cleared - 1)):
            after = pending
            if pending.kind == "cycles":
                after = replace(pending, elapsed=pending.elapsed + _cycles(code, start, branch))
            if after.elapsed < _LONGEST and (after, target) not in seen:
                seen.add((after, target))
                waiting.append((after, target))


def _cycles(code: Program, start: int, branch: int) -> int:
    """From one word's issue to behind a branch's."""
    return int(code.cycles[branch] + code.stalls[branch] - code.cycles[start])


def _first(code: Program, scoreboard: int, start: int) -> int:
    places = code.waits[scoreboard]
    at = int(np.searchsorted(places, start))
    return int(places[at]) if at < len(places) else len(code)


def _pending_at(code: Program, branch: int) -> Iterator[_Pending]:
    """What the words before a branch leave under way."""
    resources, before = np.arange(RESOURCES), np.full(RESOURCES, branch)
    while len(resources):
        writer = code.last_write.before(resources, before)
        there = (writer >= 0) & (code.segment[writer] == code.segment[branch])
        resources, writer = resources[there], writer[there]
        for resource, word in zip(resources.tolist(), writer.tolist(), strict=True):
            elapsed = _cycles(code, word, branch)
            if not code.variable[word]:
                if elapsed < _LONGEST:
                    yield _Pending("cycles", word, resource, elapsed=elapsed)
            elif code.done[word] > branch:
                cover = int(code.covering[word])
                boards = {int(code.write_scoreboard[cover])} - {NO_SCOREBOARD} if cover <= branch else set()
                yield _Pending("result", word, resource, frozenset(boards))
        again = code.guard[writer] != ALWAYS
        resources, before = resources[again], writer[again]
    first = int(np.searchsorted(code.segment, code.segment[branch]))
    reads = code.used.reads
    window = slice(*np.searchsorted(reads.word, [first, branch]).tolist())
    late = code.asynchronous[reads.word[window]] & (code.released[reads.word[window]] > branch)
    late &= reads.resource[window] < PREDICATES
    for word, resource in zip(reads.word[window][late].tolist(), reads.resource[window][late].tolist(), strict=True):
        following = np.arange(word, branch)
        alike = following[code.asynchronous[following] & (code.units[following] == code.units[word])]
        boards = {*code.read_scoreboard[alike].tolist(), *code.write_scoreboard[alike].tolist()} - {NO_SCOREBOARD}
        yield _Pending("operand", word, resource, frozenset(boards))


def _wrong(code: Program, pending: _Pending, start: int, use: int) -> str:
    """Why a word may not use a register yet, or nothing."""
    name = resource_name(pending.resource)
    if pending.kind == "operand":
        if code.asynchronous[use]:
            return ""
        return f"overwrites {name} before word {pending.word}, which branches here, has read it"
    if pending.kind == "result":
        return f"uses {name} before word {pending.word}, from which a branch leads here, is waited for"
    elapsed = pending.elapsed + int(code.cycles[use] - code.cycles[start])
    writer, place, resource = (np.array([each]) for each in (pending.word, use, pending.resource))
    writing = not (code.used.reads.resource[code.used.reads.word == use] == pending.resource).any()
    needed = int(code.needed(writer, place, resource, writing=writing)[0])
    return f"uses {name} {elapsed} cycles after word {pending.word}, not {needed}" if elapsed < needed else ""
