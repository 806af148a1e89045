"""Errors inside the emulators; the run turns both into an EmulationError that names the instruction."""

from __future__ import annotations


class UnsupportedError(Exception):
    """An instruction, or a form of one, that the emulator does not support. The text is the reason."""


class FaultError(Exception):
    """An error of the program; `lane` is the lane that made it."""

    def __init__(self, lane: int, reason: str) -> None:
        super().__init__(reason)
        self.lane = lane
