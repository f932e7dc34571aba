"""Tables for people: rows in columns, written one by one, so that long lists need no memory.

    columns   widths are known before the first row: as wide as requested, or as the widest cell
    terminal  ranked columns that do not fit into its width are left out, the highest rank first,
              and a line on standard error names them
    pipe      all columns, so that `grep` and `awk` work

Cells may be wider than their column: the row is then longer, and nothing is cut off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from strandline.broker.tools.client.printing import printable

GAP = "  "
# A longer cell makes its own row longer, but not all rows.
CELL_WIDTH_MAX = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column; `rank` 0 is always shown, of the others the highest is left out first."""

    name: str
    width: int = 0
    is_right: bool = False
    rank: int = 0


class RowPrinter:
    """Writes rows to standard output. The first line is the title, the second the column names."""

    def __init__(self, title: str, columns: Sequence[Column]) -> None:
        self._widths = [max(len(column.name), column.width) for column in columns]
        self._columns = columns
        self._shown = self._fitting(terminal_columns())
        names = [column.name for column in columns]
        left_out = [name for index, name in enumerate(names) if index not in self._shown]
        if left_out:
            sys.stderr.write(
                f"left out for want of width: {', '.join(left_out)};"
                " --json, a pipe or a wider terminal has them\n"
            )
        self._write(printable(title))
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

    def row(self, cells: Sequence[object]) -> None:
        """Writes one row; `cells` has one for each column, shown or not. None is a dash."""
        self._write(self._line(list(map(_text, cells))))

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


def print_table(
    title: str, columns: Sequence[str | Column], rows: Sequence[Sequence[object]]
) -> None:
    """Prints known rows and an empty line: named columns of numbers are right-aligned."""
    cells = zip(*rows, strict=True) if rows else ((),) * len(columns)
    printer = RowPrinter(title, list(map(_as_wide, columns, cells)))
    for row in rows:
        printer.row(row)
    sys.stdout.write("\n")


def _as_wide(column: str | Column, cells: Sequence[object]) -> Column:
    if isinstance(column, str):
        is_number = bool(cells) and all(isinstance(cell, int | None) for cell in cells)
        column = Column(name=column, is_right=is_number)
    return replace(column, width=min(widest(map(_text, cells)), CELL_WIDTH_MAX))


def _text(cell: object) -> str:
    return "-" if cell is None else printable(cell)


def terminal_columns() -> int | None:
    """Returns the width of standard output's terminal; None if it is not a terminal."""
    return os.get_terminal_size(1).columns or None if sys.stdout.isatty() else None


def widest(cells: Iterable[object]) -> int:
    """Returns the width of a column whose cells are known."""
    return max((len(str(cell)) for cell in cells), default=0)
