"""Commands that may take long show it where somebody looks, and nowhere else."""

from __future__ import annotations

import io
import logging
import re
import sys
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.broker.commands.progress import BarProgress
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

COMMANDS = [
    ("archive ls", "reading manifests"),
    ("archive show", "reading manifests"),
    ("archive usage", "objects listed"),
    ("archive retention --topic t --retention-ms -1", "reading manifests"),
    ("archive orphans", "objects compared with their manifests"),
    ("archive verify", "segments"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveBuilder:
    built = ArchiveBuilder(tmp_path)
    built.add_topic("t")
    built.add_segment("t", make_batches(make_records(20)))
    return built


@pytest.mark.parametrize(("command", "what"), COMMANDS)
def test_a_command_that_may_take_long_shows_it_on_a_terminal(
    command: str,
    what: str,
    archive: ArchiveBuilder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Standard output, which may be a pipe, has the result alone."""
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        patch.setenv("TERM", "xterm")
        main([*command.split(), "--remote", archive.url])
    assert what in terminal.getvalue()
    assert what not in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", [command for command, _ in COMMANDS])
def test_where_nobody_looks_nothing_is_shown(
    command: str, archive: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*command.split(), "--remote", archive.url])
    assert not any(what in capsys.readouterr().err for _, what in COMMANDS)


def test_a_line_of_the_log_stands_above_the_bar_and_not_within_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with BarProgress() as progress:
        progress.begin("segments", 10)
        progress.advance()
        logging.getLogger("strandline.tests").warning("a line of the log")
        assert handler.stream is not terminal
    assert handler.stream is terminal
    # Rich erases its bar, writes the line, and draws the bar below it.
    assert re.search(r"\x1b\[2K[^\n]*a line of the log\n", terminal.getvalue())
