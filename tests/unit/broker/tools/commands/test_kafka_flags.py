"""Words of Kafka's own tools and of kcat are answered with ours."""

from __future__ import annotations

import pytest

from strandline.broker.cli import main
from strandline.broker.tools.commands.options import USAGE_ERROR


@pytest.mark.parametrize(
    ("given", "told_words"),
    [
        ("consume --topic orders --from-beginning", ["give the name alone", "--from start"]),
        ("consume -t orders -o beginning -e", ["give the name alone", "--until-end"]),
        ("topic --list", ["the action is a word without dashes: list"]),
        ("group describe --group=billing", ["give the name alone"]),
        ("produce orders --broker-list there:9092", ["--bootstrap-server HOST:PORT"]),
    ],
)
def test_words_of_kafkas_tools_and_of_kcat_are_told_with_ours(
    given: str, told_words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given.split())
    told = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == USAGE_ERROR
    assert [words for words in told_words if words not in told] == []


def test_what_a_command_has_itself_is_not_told_as_anothers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["archive", "ls", "--topic", "orders"])
    told = capsys.readouterr().err
    assert "--help` tells more" in told
    assert "for --topic" not in told
