"""What a trace has written down, line by line, beside what a test expects."""

from __future__ import annotations

from textwrap import dedent


class TraceLines:
    """The lines of a trace, and how far a test has looked at them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._last_line = 0

    def shows(self, expected: str) -> None:
        """Compares the lines since the last look; `|` goes on with the line above."""
        joined = dedent(expected).strip().replace("\n|", " ")
        wanted = [" ".join(line.split()) for line in joined.splitlines()]
        got = self.lines[self._last_line :]
        self._last_line = len(self.lines)
        assert got == wanted, "\n" + "\n".join(got)

    def shows_last(self, expected: str) -> None:
        """Compares the last line only."""
        self._last_line = len(self.lines) - 1
        self.shows(expected)

    def skip(self) -> None:
        """What happened so far is not what the test is about."""
        self._last_line = len(self.lines)
