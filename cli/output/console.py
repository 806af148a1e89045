"""The standard streams: consoles for results and messages, closed streams, readers that are gone."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from farm.errors import printable

PIPE_WIDTH = 10_000
"""Columns where stdout is no terminal and COLUMNS is not set: nothing is wrapped or cut."""


class StreamConsole(Console):
    """A console for text that contains names and messages of others.

    Each text is one line without control characters, so that none moves the cursor, changes colours or forges a line.
    It goes quiet when the reader of its pipe is gone, so that the exit code still tells the outcome.
    """

    _told = False
    """Whether a write found the reader gone."""

    @property
    def reader_gone(self) -> bool:
        """Whether the reader has gone; commands that print until they are stopped end then."""
        return self._told or _has_no_reader(sys.stderr if self.stderr else sys.stdout)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of a renderable; all text that is printed passes here, also that of tables and progress bars."""
        if isinstance(renderable, str):
            renderable = self.render_str(renderable)
        return super().render(one_line(renderable) if isinstance(renderable, Text) else renderable, options)

    def on_broken_pipe(self) -> None:
        """Discard further output; Rich's own method ends the program."""
        self._told = True
        discard(sys.stderr if self.stderr else sys.stdout)


def _has_no_reader(stream: TextIO) -> bool:
    """Whether a stream is a pipe that nobody reads, told without a write."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # not a file of the system, or closed
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def one_line(text: Text) -> Text:
    """The text, with its styles, as one printable line."""
    plain = printable(text.plain)
    if plain == text.plain:
        return text
    shown = text.copy()
    shown.plain = plain
    return shown


def stdout() -> StreamConsole:
    """Console for results; coloured on a terminal, or where FORCE_COLOR is set."""
    return _console(stderr=False)


def stderr() -> StreamConsole:
    """Console for progress, warnings and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> StreamConsole:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    return StreamConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def print_error(message: str) -> None:
    """Print an error on one line, however long, so that it can be searched for."""
    stderr().print(Text(f"farm: {message}", style="red"), soft_wrap=True)


def print_warning(message: str) -> None:
    """Print a warning on one line."""
    stderr().print(Text(f"warning: {message}", style="yellow"), soft_wrap=True)


def print_json(document: Any) -> None:
    """Print the one document of a --json call."""
    print_text(json.dumps(document, indent=2) + "\n")


def print_text(text: str) -> None:
    """Write text to stdout as it is; a reader that is gone is no error."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        discard(sys.stdout)


def discard(stream: TextIO) -> None:
    """Send the stream's buffered and future output to /dev/null."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def open_closed_streams() -> None:
    """Connect standard streams that the process was started without, as by `>&-`, to /dev/null.

    Otherwise the next file that is opened, such as the database, would get their descriptor.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))
