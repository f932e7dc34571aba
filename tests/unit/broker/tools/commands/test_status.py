"""`strandline status`: its first line, and a screen that three thousand topics do not fill."""

from __future__ import annotations

import pytest

from strandline.broker.cli import main
from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.commands.arguments import TOPICS_SHOWN
from strandline.broker.tools.commands.status import watch
from strandline.broker.tools.nodes.metrics_reader import MetricsReader

TOPICS = 3000
URL = "http://127.0.0.1:9404"
SCREEN_LINES = 50


def page() -> str:
    """A broker of very many topics; of two of them it alone has records."""
    lines = ['strandline_build_info{version="1"} 1', "strandline_remote_up 1"]
    for number in range(TOPICS):
        topic = f"t{number:04d}"
        lines += [
            f'strandline_log_tier_bytes{{topic="{topic}",partition="0",tier="{tier}"}} {number}'
            for tier in ("local", "remote")
        ]
    lines += [
        'strandline_exposed_records{tiered="true"} 12',
        'strandline_exposed_bytes{tiered="true"} 4096',
        "strandline_exposed_seconds 65",
    ]
    for topic, late_s in (("t0007", 0), ("t0005", 5)):
        lines += [
            f'strandline_exposed_records{{topic="{topic}",tiered="true"}} 6',
            f'strandline_exposed_bytes{{topic="{topic}",tiered="true"}} 2048',
            f'strandline_exposed_seconds{{topic="{topic}"}} 65',
            f'strandline_exposed_late_seconds{{topic="{topic}"}} {late_s}',
        ]
    return "\n".join(lines)


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(_reader: MetricsReader, url: str) -> str:
        return page() if url.endswith("/metrics") else "ok"

    monkeypatch.setattr(MetricsReader, "get", get)


def test_three_thousand_topics_fit_a_screen_and_those_with_most_at_stake_come_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["status", "--metrics", URL])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "if this machine burned now: 12 records (4.0 KiB) of 2 topics would be lost, the oldest"
        " 1 min old"
    )
    assert len(lines) <= SCREEN_LINES
    listed = [line.split()[0] for line in lines if line.startswith(("t0", "t2"))]
    assert listed[:3] == ["t0005", "t0007", f"t{TOPICS - 1}"]
    assert len(listed) == TOPICS_SHOWN
    assert any(f"and {TOPICS - TOPICS_SHOWN:,} topics with less at stake" in one for one in lines)


def test_all_topics_are_listed_by_name_when_they_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["status", "--metrics", URL, "--all-topics"])
    listed = [one.split()[0] for one in capsys.readouterr().out.splitlines() if one[:2] == "t0"]
    assert listed == sorted(listed)
    assert len(listed) == 1000


def test_a_watch_goes_on_when_the_broker_cannot_be_read_for_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    looks: list[int] = []

    def look() -> int:
        looks.append(1)
        if len(looks) == 1:
            raise ToolFailure("cannot read it")
        if len(looks) == 3:
            raise KeyboardInterrupt
        return 0

    with pytest.raises(KeyboardInterrupt):
        watch(look, interval_s=0)
    assert len(looks) == 3
    assert "cannot read it" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon"])
def test_a_time_between_looks_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["status", "--metrics", URL, "--watch", text])
    assert refused.value.code == 2
