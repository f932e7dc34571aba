"""What the demo shows: numbered steps, progress bars, tables, and comparisons that are counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from strandline.storage.plurals import counted


class DemoError(Exception):
    """Something the demo needs did not happen; the message says what and where to look."""


_LOG_TAIL_BYTES = 2000


def end_of(log: Path) -> str:
    """For the message of a DemoError: where a program's own words are, and the last of them."""
    tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    return f"the end of {log}:\n{tail}"


class Bar:
    """One progress bar; `total` may become known, or grow, while it runs."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def update(self, completed: float, *, total: float | None = None) -> None:
        if total is None:
            self._progress.update(self._task, completed=completed)
        else:
            self._progress.update(self._task, completed=completed, total=total)


class Screen:
    """The terminal, and the count of comparisons that failed."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.failed_comparisons = 0
        self._step = 0

    def step(self, title: str) -> None:
        self._step += 1
        self.console.print(f"\n[bold]{self._step}  {title}[/bold]")

    def note(self, text: str) -> None:
        self.console.print(f"   {text}", soft_wrap=True)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Bars below each other while the block runs; the last state stays on the screen."""
        with Progress(
            TextColumn("  "),
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self.console,
        ) as progress:
            yield progress

    @contextmanager
    def bar(self, title: str, *, total: float | None = None) -> Iterator[Bar]:
        with self.progress() as progress:
            yield new_bar(progress, title, total=total)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Numbers to the right with thousands marked, everything else to the left."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for index, column in enumerate(columns):
            is_number = all(isinstance(row[index], int | float) for row in rows)
            table.add_column(column, justify="right" if is_number else "left")
        for row in rows:
            table.add_row(*(_cell(value) for value in row))
        self.console.print(table)

    def compare(self, what: str, *, expected: object, actual: object) -> None:
        """Says whether both are equal, and remembers it if not."""
        if expected == actual:
            self.console.print(f"   [green]✓[/green] {what}")
            return
        self.failed_comparisons += 1
        self.console.print(f"   [bold red]✗ {what}[/bold red]")
        self.console.print(f"     expected {expected}\n     actual   {actual}", markup=False)


def new_bar(progress: Progress, title: str, *, total: float | None = None) -> Bar:
    return Bar(progress, progress.add_task(title, total=total, detail=""))


def _cell(value: object) -> str:
    match value:
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case None:
            return "-"
        case _:
            return str(value)


def in_mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def show(run: Callable[[Screen], None]) -> int:
    """Runs a demo on a screen and says how it ended; returns the exit code."""
    screen, began = Screen(), time.monotonic()
    try:
        run(screen)
    except DemoError as error:
        screen.console.print("\n[bold red]The demo failed:[/bold red]", end=" ")
        screen.console.print(str(error), markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        screen.console.print("\nstopped")
        return 130
    seconds = time.monotonic() - began
    if screen.failed_comparisons:
        failed = f"{counted(screen.failed_comparisons, 'comparison')} failed"
        screen.console.print(f"\n[bold red]{failed}[/bold red] ({seconds:.0f} s)")
        return 1
    screen.console.print(f"\n[bold green]All comparisons held[/bold green] ({seconds:.0f} s)")
    return 0
