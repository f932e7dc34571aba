"""Rows fit into the terminal, and a pipe gets all of them."""

from __future__ import annotations

import pytest

from strandline.broker.tools.client import tables
from strandline.broker.tools.client.tables import Column, RowPrinter, print_table

COLUMNS = [
    Column(name="topic", width=10),
    Column(name="size", width=8, is_right=True),
    Column(name="first", width=10, rank=1),
    Column(name="key", width=40, rank=2),
]
ROW = ["orders", "1 MiB", "2013-01-01", "topics/orders-1/0.log"]


@pytest.mark.parametrize(
    ("columns_max", "left_out"),
    [
        (None, []),
        (80, []),
        (73, ["key"]),
        (32, ["key"]),
        (31, ["first", "key"]),
        (5, ["first", "key"]),
    ],
)
def test_what_does_not_fit_is_left_out_by_its_rank_and_named(
    columns_max: int | None,
    left_out: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "terminal_columns", lambda: columns_max)
    RowPrinter("title", COLUMNS).row(ROW)
    told = capsys.readouterr()
    title, names, _, row = told.out.splitlines()
    assert title == "title"
    shown = [column.name for column in COLUMNS if column.name not in left_out]
    assert names.split() == shown
    assert [name for name in ("first", "key") if name in told.err] == left_out
    assert ("2013-01-01" in row) == ("first" in shown)
    assert ("orders-1" in row) == ("key" in shown)
    # The two that are always shown need this much.
    assert len(row) <= max(columns_max or 1000, 20)


def test_a_cell_that_is_wider_than_its_column_is_written_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long_name = "a-topic-with-a-name-of-many-letters"
    RowPrinter("", COLUMNS).row([long_name, *ROW[1:]])
    assert long_name in capsys.readouterr().out


def test_numbers_are_right_aligned_and_nothing_is_a_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table("lag", ["topic", "end"], [["orders", 12], ["a", None]])
    assert capsys.readouterr().out.splitlines() == [
        "lag",
        "topic   end",
        "──────  ───",
        "orders   12",
        "a         -",
        "",
    ]


@pytest.mark.parametrize("name", ["[bold]x[/bold]", "[", "a\\", "\x1b[2J\x1b]0;\x07\x9b31m\u202e"])
def test_names_are_printed_as_they_are_and_steer_no_terminal(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(name, ["group", "other"], [[name, 1]])
    title, _, _, row, _ = capsys.readouterr().out.splitlines()
    assert title.isprintable()
    assert title == row.split()[0]
    assert title == name or title.startswith("\\x1b[2J")
