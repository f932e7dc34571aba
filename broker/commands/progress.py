"""Progress bars of commands: on standard error, and only on a terminal.

In a file they would leave empty lines; standard output stays clean either way.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class BarProgress:
    """One bar per step. Thread-safe, as rich's are."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("", total=0, visible=False)

    def __enter__(self) -> BarProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, total: int) -> None:
        """Starts a new bar below the others."""
        self._task = self._progress.add_task(what, total=total)

    def advance(self, count: int = 1) -> None:
        self._progress.advance(self._task, count)


def working(what: str) -> Progress:
    """A moving indicator for work of unknown length, such as listing a bucket."""
    return Counting(what).progress


class Counting:
    """As `working`, with the number of items so far."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self.progress.add_task(what, total=None)

    def __enter__(self) -> Counting:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, what: str) -> None:
        """Starts the next step, with a new count."""
        self._what, self._count = what, 0
        self.advance(0)

    def advance(self, count: int = 1) -> None:
        self._count += count
        self.progress.update(self._task, description=f"{self._what}: {self._count:,}")
