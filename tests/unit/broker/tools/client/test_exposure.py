"""The first line of `strandline status`: what would be lost if the machine burned now."""

from __future__ import annotations

from strandline.broker.commands.docs_command import Finder, pages
from strandline.broker.tools.client.exposure import (
    check_exposure,
    check_verified,
    exposed_topics,
    loss_line,
)
from strandline.broker.tools.client.health import Page

NONE = """\
strandline_exposed_records{tiered="true"} 0
strandline_exposed_records{tiered="false"} 0
strandline_exposed_records{topic="t",tiered="true"} 0
strandline_exposed_bytes{tiered="true"} 0
strandline_exposed_seconds 0
strandline_exposed_seconds{topic="t"} 0
strandline_exposed_late_seconds{topic="t"} 0
strandline_exposed_unknown_partitions 0
"""
SOME = """\
strandline_exposed_records{tiered="true"} 50200
strandline_exposed_records{tiered="false"} 7
strandline_exposed_records{topic="t",tiered="true"} 50000
strandline_exposed_records{topic="u",tiered="true"} 0
strandline_exposed_records{topic="__consumer_offsets",tiered="true"} 200
strandline_exposed_records{topic="local",tiered="false"} 7
strandline_exposed_bytes{tiered="true"} 5033165
strandline_exposed_bytes{tiered="false"} 2048
strandline_exposed_bytes{topic="t",tiered="true"} 5000000
strandline_exposed_seconds 725
strandline_exposed_seconds{topic="t"} 725
strandline_exposed_late_seconds{topic="t"} 125
strandline_exposed_unknown_partitions 3
strandline_metadata_mirror_lag 1
"""


def test_the_loss_is_said_in_records_bytes_and_time_with_what_is_not_known() -> None:
    assert loss_line(Page(SOME)) == (
        "50,200 records (4.8 MiB) of 2 topics would be lost, the oldest 12 min old; not known of"
        " 3 partitions, whose archive is not read; 1 change of topics too; 7 records (2.0 KiB) of"
        " 1 topic without an archive too"
    )
    assert exposed_topics(Page(SOME))["t"].records == 50_000


def test_no_loss_is_said_to_be_none_and_a_broker_without_an_archive_loses_all() -> None:
    assert loss_line(Page(NONE)) == "no record of a topic with an archive would be lost"
    assert "every record would be lost" in loss_line(Page(""))


def test_records_that_wait_longer_than_the_alert_allows_are_trouble_with_its_runbook() -> None:
    assert not check_exposure(Page(NONE)).trouble
    assert not check_exposure(Page(SOME)).trouble
    late = SOME.replace('late_seconds{topic="t"} 125', 'late_seconds{topic="t"} 605')
    check = check_exposure(Page(late))
    assert check.trouble == (
        "t: 50,000 records (4.8 MiB) should have been in the bucket 10 min ago"
    )
    assert Finder(pages()).find(check.runbook).count("**Symptom.**") == 1


def _verified(**runs: tuple[int, int]) -> Page:
    """The page of a broker; each depth has the time and the findings of its last check."""
    lines = [
        f'strandline_archive_{name}{{depth="{depth}"}} {value}'
        for depth, (finished_s, count) in runs.items()
        for name, value in (
            ("verified_timestamp_seconds", finished_s),
            ("verify_findings", count),
        )
    ]
    return Page("\n".join(lines))


def test_the_last_verify_is_told_with_its_age_and_kind_and_never_is_said() -> None:
    never = check_verified(Page(""), 0)
    assert ("never" in never.figure, never.is_known, never.trouble) == (True, False, "")
    check = check_verified(_verified(sizes=(90_000, 0), everything=(0, 0)), 100_000)
    assert check.figure == "2 h 46 min ago (sizes), 1 d 3 h ago (everything)"
    assert not check.trouble


def test_findings_are_trouble_until_a_check_as_close_finds_none() -> None:
    found = check_verified(_verified(checksums=(50, 3)), 100)
    assert found.trouble == "3 findings; `strandline archive verify` names them"
    assert check_verified(_verified(checksums=(50, 3), sizes=(60, 0)), 100).trouble
    assert not check_verified(_verified(checksums=(50, 3), everything=(60, 0)), 100).trouble
