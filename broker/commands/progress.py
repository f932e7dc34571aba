"""Progress bars of commands: on standard error, and only on a terminal.

In a file they would leave empty lines; standard output stays clean either way.
"""

from __future__ import annotations

import logging
import sys
from typing import Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Shown:
    """A context in which a progress display is drawn. Thread-safe, as rich's displays are."""

    def __init__(self, *columns: ProgressColumn, transient: bool) -> None:
        # Handlers of the log that write above the display, and their own streams.
        self._moved: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self._progress = Progress(
            *columns,
            console=Console(stderr=True),
            transient=transient,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> Self:
        before = sys.stderr
        self._progress.start()
        # While it draws, rich has a standard error of its own, which writes above the bars. Lines
        # of the log went to the one before.
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                self._moved.append((handler, handler.stream))
                handler.setStream(sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved.clear()
        self._progress.stop()


class _RateColumn(ProgressColumn):
    """The mean of the last half minute, per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class BarProgress(_Shown):
    """One bar per step; with a rate if steps are long and even."""

    def __init__(self, *, with_rate: bool = False) -> None:
        super().__init__(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            *([_RateColumn()] if with_rate else []),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            transient=False,
        )
        self._task = self._progress.add_task("", total=0, visible=False)

    def begin(self, what: str, total: int) -> None:
        """Starts a new bar below the others."""
        self._task = self._progress.add_task(what, total=total)

    def advance(self, count: int = 1) -> None:
        self._progress.advance(self._task, count)


class Working(_Shown):
    """A moving indicator for work of unknown length, with a count of items if there is one."""

    def __init__(self, what: str) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            transient=True,
        )
        self._what = what
        self._count = 0
        self._task = self._progress.add_task(what, total=None)

    def begin(self, what: str) -> None:
        """Starts the next step, with a new count."""
        self._what, self._count = what, 0
        self.advance(0)

    def advance(self, count: int = 1) -> None:
        self._count += count
        self._progress.update(self._task, description=f"{self._what}: {self._count:,}")
