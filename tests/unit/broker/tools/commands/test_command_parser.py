"""What the command line says to words that it does not know."""

from __future__ import annotations

import pytest

from strandline.broker.cli import main
from strandline.broker.tools.commands.options import USAGE_ERROR


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (["archive", "show", "--remote", "file:///archive", "orders"], "strandline archive show"),
        (["topic", "list", "--interal"], "strandline topic list"),
        (["serve", "server.properties"], "strandline serve"),
    ],
)
def test_an_unknown_word_is_told_with_the_usage_of_its_own_command(
    given: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    told = capsys.readouterr().err
    assert ended.value.code == USAGE_ERROR
    assert told.startswith(f"usage: {command} ")
    assert f"unrecognized arguments: {given[-1]}; `{command} --help`" in told


@pytest.mark.parametrize(
    "given",
    [
        ["topic", "describe", ""],
        ["topic", "alter", "", "--partitions", "2"],
        ["consume", ""],
        ["produce", ""],
        ["archive", "ls", "--remote", "file:///archive", "--topic", ""],
        ["archive", "verify", "--remote", "file:///archive", "--topic", ""],
    ],
    ids=" ".join,
)
def test_an_unset_variable_in_place_of_a_name_is_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == USAGE_ERROR
    assert "the name is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["consume", "orders", "--max-messages", "-1"], "-1 is no number of records"),
        *(
            (
                ["archive", "orphans", "--remote", "file:///a", "--grace-hours", hours],
                "no number of",
            )
            for hours in ("nan", "inf")
        ),
    ],
)
def test_a_number_that_counts_nothing_is_refused(
    given: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == USAGE_ERROR
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("given", "told_words"), [([], "first steps:"), (["topic"], "examples:")])
def test_a_command_that_stops_before_its_action_shows_what_there_is(
    given: list[str], told_words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    told = capsys.readouterr().err
    assert ended.value.code == USAGE_ERROR
    assert told.startswith(f"usage: {' '.join(['strandline', *given])} ")
    assert told_words in told
