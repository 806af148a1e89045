"""What goes wrong inside the emulator; the scheduler turns both into an EmulationError that names the instruction."""

from __future__ import annotations


class UnsupportedError(Exception):
    """An instruction, or a form of one, that the emulator does not know. The text is the reason."""


class FaultError(Exception):
    """Something no program may do; `lane` is who did it."""

    def __init__(self, lane: int, reason: str) -> None:
        super().__init__(reason)
        self.lane = lane
