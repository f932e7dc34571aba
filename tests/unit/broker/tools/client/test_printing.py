"""Whatever names contain, tables and lines show it and obey none of it."""

from __future__ import annotations

import pytest

from strandline.broker.tools.client.printing import print_table, remark, say


@pytest.mark.parametrize(
    "name", ["[bold]x[/bold]", "[/x]", "\\[/x]", "[", "a\\", "[link=file:///etc]x", "[0,10)"]
)
def test_brackets_in_somebodys_names_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """They are markup to the library that draws the table, and some of it ends in a traceback."""
    wide = "w" * 80
    print_table(f"group {name}", ["group", "other"], [[name, wide]])
    title, *_, row = filter(None, (line.strip() for line in capsys.readouterr().out.splitlines()))
    assert (title, row.removesuffix(wide).strip()) == (f"group {name}", name)


def test_names_do_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[2J\x1b]0;mine\x07\x9b31m\u202e"
    print_table(name, ["group"], [[name]])
    say(f"deleted group {name}\nand another")
    remark(name)
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert all(one.isprintable() for line in text.splitlines() for one in line)
        assert "\\x1b[2J" in text
    assert captured.out.endswith("\nand another\n")
