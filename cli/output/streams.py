"""The standard streams where they are closed, or where nobody reads them any more."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rich.console import Console


class StreamConsole(Console):
    """Goes on quietly when the reader of a pipe has seen enough: the exit code still says how the command ended."""

    reader_gone = False
    """Whether that has happened; what prints until it is stopped ends then."""

    def on_broken_pipe(self) -> None:
        """What Rich calls; its own way is to end the program."""
        self.reader_gone = True
        discard(sys.stderr if self.stderr else sys.stdout)


def discard(stream: TextIO) -> None:
    """What the stream still holds, and all that is written to it from now on, goes nowhere."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def open_closed_streams() -> None:
    """Where this process was started without a stdin, stdout or stderr (as by `>&-`), it gets one that goes nowhere.

    Otherwise the next file that is opened, such as the database, would take its number.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))
