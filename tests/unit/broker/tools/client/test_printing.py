"""Whatever names contain, lines show it and obey none of it."""

from __future__ import annotations

import pytest

from strandline.broker.tools.client.printing import remark, say


def test_names_do_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[2J\x1b]0;mine\x07\x9b31m\u202e"
    say(f"deleted group {name}\nand another")
    remark(name)
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert all(one.isprintable() for line in text.splitlines() for one in line)
        assert "\\x1b[2J" in text
    assert captured.out.endswith("\nand another\n")
