"""Writes rows in columns one by one: a hundred thousand of them take a second and no memory.

    columns   widths are known before the first row: as wide as requested, or as the widest cell
    terminal  columns that do not fit into its width are left out, the highest rank first,
              and a line on standard error names them
    pipe      all columns, so that `grep` and `awk` work

Cells may be wider than their column: the row is then longer, and nothing is cut off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column; `rank` 0 is always shown, of the others the highest is left out first."""

    name: str
    width: int = 0
    is_right: bool = False
    rank: int = 0


class RowPrinter:
    """Writes rows to standard output. The first line is the title, the second the column names."""

    def __init__(self, title: str, columns: Sequence[Column], *, columns_max: int | None) -> None:
        """`columns_max` is the terminal's width; None writes everything."""
        self._widths = [max(len(column.name), column.width) for column in columns]
        self._columns = columns
        self._shown = self._fitting(columns_max)
        names = [column.name for column in columns]
        left_out = [name for index, name in enumerate(names) if index not in self._shown]
        if left_out:
            sys.stderr.write(
                f"left out for want of width: {', '.join(left_out)};"
                " --json, a pipe or a wider terminal has them\n"
            )
        self._write(title)
        self._write(self._line(names))
        self._write(GAP.join("─" * self._widths[index] for index in self._shown))

    def _fitting(self, columns_max: int | None) -> list[int]:
        shown = list(range(len(self._columns)))
        while columns_max is not None:
            needed = sum(self._widths[index] + len(GAP) for index in shown) - len(GAP)
            last = max(shown, key=lambda index: self._columns[index].rank)
            if needed <= columns_max or self._columns[last].rank == 0:
                break
            shown.remove(last)
        return shown

    def row(self, cells: Sequence[str]) -> None:
        """Writes one row; `cells` has one for each column, shown or not."""
        self._write(self._line(cells))

    def _line(self, cells: Sequence[str]) -> str:
        padded = (
            cells[index].rjust(self._widths[index])
            if self._columns[index].is_right
            else cells[index].ljust(self._widths[index])
            for index in self._shown
        )
        return GAP.join(padded)

    def _write(self, line: str) -> None:
        sys.stdout.write(line.rstrip() + "\n")


def print_rows(
    title: str, columns: Sequence[tuple[str, bool, int]], rows: Sequence[Sequence[str]]
) -> None:
    """Prints known rows; a column is its name, whether it is right-aligned, and its rank."""
    cells = zip(*rows, strict=True) if rows else ((),) * len(columns)
    printer = RowPrinter(
        title,
        [
            Column(name=name, width=widest(column), is_right=is_right, rank=rank)
            for (name, is_right, rank), column in zip(columns, cells, strict=True)
        ],
        columns_max=terminal_columns(),
    )
    for row in rows:
        printer.row(row)


def terminal_columns() -> int | None:
    """Returns the width of standard output's terminal; None if it is not a terminal."""
    return os.get_terminal_size(1).columns or None if sys.stdout.isatty() else None


def widest(cells: Iterable[object]) -> int:
    """Returns the width of a column whose cells are known."""
    return max((len(str(cell)) for cell in cells), default=0)
