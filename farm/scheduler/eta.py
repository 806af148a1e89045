"""How fast the work goes, learned from what this coordinator has finished, and so when each job will end."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from farm.ledger.running import Outlook
from farm.scheduler.clock import Clock
from farm.scheduler.run import CubinDone, Event, TemplateDone
from farm.scheduler.task import TO_BUILD, Piece, State
from farm.scheduler.task_graph import Pieces
from farm.worker.messages import CubinFacts, CubinRequest, Request

REQUEST_SECONDS = 0.05
"""What a request takes besides its tool: reading, rewriting, the store, the way to a worker and back."""
MEMORY_SECONDS = 300.0
"""Of work: what was learned before counts ever less, since a machine may have more to do later."""
KNOWN_SHARE = 0.03
"""Of the work: with less of it finished, or before ptxas has finished anything, nothing is predicted."""
URGENT_SHARE = 0.9
"""What takes that share of the time that all together take is begun at once: else all would wait for it at the end."""
PRIOR_SECONDS = 0.5
"""So much predicted work counts as done as it is assumed at first."""
LEFT_OF_LATE = 0.1
"""Of the expected time: what is left, at least, of something that runs."""


@dataclass(frozen=True)
class Prospect:
    """What is left of all jobs."""

    running: Mapping[str, float]
    """Since how many seconds tools work on the requests that they work on now, by the requests' keys."""
    share: float
    """Of the predicted work that is done, 0 to 1."""
    left_seconds: float | None
    """Until all jobs that are there now have ended; None: it cannot be told yet."""
    of_jobs: Mapping[str, Outlook]


class _Tool:
    """How a tool's times compare to what was predicted."""

    def __init__(self) -> None:
        self._predicted = self._taken = 0.0

    def learn(self, predicted: float, taken: float) -> None:
        keep = math.exp(-predicted / MEMORY_SECONDS)
        self._predicted = keep * self._predicted + predicted
        self._taken = keep * self._taken + taken

    @property
    def known(self) -> bool:
        return self._predicted > 0

    def ratio(self, otherwise: float, late: Collection[tuple[float, float]] = ()) -> float:
        """`otherwise`: what is assumed as long as little is known; `late`: predicted and taken, of what still runs."""
        predicted = PRIOR_SECONDS + self._predicted + sum(each for each, _ in late)
        return (PRIOR_SECONDS * otherwise + self._taken + sum(each for _, each in late)) / predicted


class Pace:
    """Of one run: the time that each piece of it takes, and how much of such time passes in a second."""

    def __init__(self, pieces: Pieces, clock: Clock) -> None:
        self._pieces = pieces
        self._clock = clock
        self._nvcc, self._ptxas = _Tool(), _Tool()
        self._ratios = 1.0, 1.0
        """Of nvcc and of ptxas."""
        self._observed_at: float | None = None
        self._slots = 1
        """The most requests that were worked on at once, since there was nothing to do."""
        self._work = 0.0
        """Done in that time, in the seconds that it took."""
        self._recent_work = 0.0
        self._recent_seconds = 0.0
        """Of all slots together, in which the recent work was done, while there was something for them to do."""
        self._usable = 0
        """Slots that had something since the last look."""

    def expected_seconds(self, request: Request) -> float:
        """What a request will take."""
        return REQUEST_SECONDS + self._ratios[isinstance(request, CubinRequest)] * request.seconds

    def _compare(self, now: float) -> None:
        """What runs longer than it should counts too. A machine that is slow in one tool is so in the other."""
        late: tuple[list[tuple[float, float]], list[tuple[float, float]]] = [], []
        for piece in self._pieces.in_state(State.FLIGHT):
            taken = 0.0 if piece.runs_since is None else now - piece.runs_since
            if taken > self.expected_seconds(piece.request):
                late[isinstance(piece.request, CubinRequest)].append((piece.request.seconds, taken))
        nvcc = self._nvcc.ratio(self._ptxas.ratio(1.0), late[0])
        self._ratios = nvcc, self._ptxas.ratio(nvcc, late[1])

    def observe(self, events: Iterable[Event], running: Collection[str]) -> None:
        """What a step has brought, and what tools work on after it."""
        now = self._clock.now()
        if self._observed_at is not None:
            passed = now - self._observed_at
            keep = math.exp(-passed / MEMORY_SECONDS)
            self._recent_seconds = keep * self._recent_seconds + passed * self._usable
            self._recent_work *= keep
        for event in events:
            self._learn(event)
        flying = {piece.key: piece for piece in self._pieces.in_state(State.FLIGHT)}
        for key in running:
            if (piece := flying.get(key)) is not None and piece.runs_since is None:
                piece.runs_since = now
        self._slots = max(self._slots, len(running))
        self._usable = min(self._slots, len(flying) + sum(1 for _ in self._pieces.in_state(State.READY)))
        self._observed_at = now if flying else None
        if not self._pieces.busy:
            self._slots, self._usable, self._work, self._recent_work, self._recent_seconds = 1, 0, 0.0, 0.0, 0.0

    def _learn(self, event: Event) -> None:
        taken = 0.0
        if isinstance(event, TemplateDone) and event.result.failure is None and not event.result.hit:
            taken = event.result.seconds
            self._nvcc.learn(event.request.seconds, taken)
        elif isinstance(event, CubinDone) and isinstance(event.result.made, CubinFacts) and not event.result.hit:
            taken = event.result.made.rewrite_seconds + event.result.made.ptxas_seconds
            fell_back = event.result.made.assembler != event.request.assembler
            if not event.result.instead_of and not fell_back:
                self._ptxas.learn(event.request.seconds, taken)
        if taken:
            self._work += taken + REQUEST_SECONDS
            self._recent_work += taken + REQUEST_SECONDS

    def look(self, job_ids: Collection[str]) -> Prospect:
        """What is left of these jobs. What must not wait for older jobs is begun next from now on."""
        now = self._clock.now()
        self._compare(now)
        left: dict[Piece, float] = {}
        running: dict[str, float] = {}
        begun = 0.0
        for piece in self._pieces:
            if piece.state in TO_BUILD:
                left[piece] = self.expected_seconds(piece.request)
                if piece.runs_since is not None:
                    running[piece.key] = now - piece.runs_since
                    done = min(now - piece.runs_since, (1 - LEFT_OF_LATE) * left[piece])
                    begun += done
                    left[piece] -= done
        all_left = sum(left.values())
        work = self._work + begun
        ends = self._ends(left, begun)
        last = max(ends.values(), default=0.0)
        for piece in self._pieces.in_state(State.READY):
            if left[piece] >= URGENT_SHARE * all_left / self._slots:
                self._pieces.hurry(piece)
        known = self._work >= KNOWN_SHARE * (work + all_left) and self._ptxas.known
        share = work / max(work + all_left, 1e-9)
        return Prospect(running, share, last if known else None, self._of_jobs(job_ids, ends, known=known))

    def _ends(self, left: Mapping[Piece, float], begun: float) -> dict[Piece, float]:
        """In how many seconds each piece will be built, in the order in which they are begun."""
        work = PRIOR_SECONDS * self._slots + self._recent_work + begun
        idle = (PRIOR_SECONDS * self._slots + self._recent_seconds) / work
        slots = [0.0] * self._slots
        ends = {}
        for piece in sorted(left, key=lambda piece: (piece.runs_since is None, piece.rank)):
            ends[piece] = slots[0] + left[piece] * idle
            heapq.heapreplace(slots, ends[piece])
        return ends

    def _of_jobs(self, job_ids: Collection[str], ends: Mapping[Piece, float], *, known: bool) -> dict[str, Outlook]:
        running = dict.fromkeys(job_ids, 0)
        last = dict.fromkeys(job_ids, 0.0)
        for piece, end in ends.items():
            targets = piece.targets_for()
            for job_id in {target.job for target in targets}:
                last[job_id] = max(last[job_id], end)
            running[self._pieces.oldest(piece)] += piece.runs_since is not None
        return {job_id: Outlook(running[job_id], last[job_id] if known else None) for job_id in job_ids}
