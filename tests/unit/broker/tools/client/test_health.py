"""`strandline status`: each alert of docs/reference/alerts.md is a check, nothing else is."""

from __future__ import annotations

import pytest

from strandline.broker.commands.docs_command import Finder, pages
from strandline.broker.tools.client.health import (
    HealthCheck,
    Page,
    TopicTiers,
    check_broker,
    store_requests,
    tiers,
)

WELL = """\
# TYPE kafka_server_replicamanager_partitioncount gauge
kafka_server_replicamanager_partitioncount 12
kafka_server_replicamanager_offlinereplicacount 0
strandline_log_directory_free_bytes{directory="/data"} 50000000000
kafka_log_logcleanermanager_uncleanable_partitions_count 0
kafka_server_replicamanager_partitionswithlatetransactionscount 0
strandline_remote_up 1
strandline_remote_archive_owned 1
strandline_remote_copy_waiting_segments{topic="t",reason="queued"} 40
strandline_remote_copy_waiting_segments{topic="t",reason="gap"} 0
strandline_metadata_mirror_lag 0
strandline_remote_deleted_objects_total{object="cluster"} 0
strandline_cold_failures_total{reason="failed"} 7
strandline_cold_failures_total{reason="corrupt"} 0
strandline_cold_failures_total{reason="missing"} 0
strandline_cold_failures_total{reason="archived"} 0
strandline_cold_failures_total{reason="denied"} 0
process_open_fds 26
process_max_fds 20000
kafka_network_requestmetrics_requestqueuetimems{request="Fetch",quantile="0.99"} 2
kafka_network_requestmetrics_requestqueuetimems_count{request="Fetch"} 1000
kafka_network_requestmetrics_requestqueuetimems{request="Produce",quantile="0.99"} NaN
kafka_network_requestmetrics_requestqueuetimems_count{request="Produce"} 1000
"""


def runbook_of(check: HealthCheck) -> str:
    """What `strandline docs` prints for the check."""
    return Finder(pages()).find(check.runbook)


def troubles(text: str, unready: str = "") -> list[str]:
    return [check.what for check in check_broker(Page(text), unready) if check.trouble]


def test_a_broker_that_is_well_has_no_trouble() -> None:
    assert troubles(WELL) == []


def test_a_broker_without_a_remote_tier_is_well() -> None:
    local = "\n".join(line for line in WELL.splitlines() if "strandline_remote" not in line)
    assert troubles(local) == []


@pytest.mark.parametrize(
    ("series", "value", "what"),
    [
        ("kafka_server_replicamanager_offlinereplicacount", "3", "partitions"),
        ('strandline_log_directory_free_bytes{directory="/data"}', "1000", "disk of /data"),
        ("kafka_log_logcleanermanager_uncleanable_partitions_count", "1", "compaction"),
        ("kafka_server_replicamanager_partitionswithlatetransactionscount", "2", "transactions"),
        ("strandline_remote_up", "0", "object store"),
        ("strandline_remote_archive_owned", "0", "owns the archive"),
        (
            'strandline_remote_copy_waiting_segments{topic="t",reason="gap"}',
            "3",
            "waiting for the archive",
        ),
        ("strandline_metadata_mirror_lag", "2", "metadata in the bucket"),
        (
            'strandline_remote_deleted_objects_total{object="cluster"}',
            "1",
            "metadata objects",
        ),
        ('strandline_cold_failures_total{reason="corrupt"}', "1", "reads of the archive"),
        ('strandline_cold_failures_total{reason="missing"}', "1", "reads of the archive"),
        ('strandline_cold_failures_total{reason="archived"}', "1", "reads of the archive"),
        ('strandline_cold_failures_total{reason="denied"}', "1", "reads of the archive"),
        ("process_open_fds", "16001", "open files"),
        (
            'kafka_network_requestmetrics_requestqueuetimems{request="Fetch",quantile="0.99"}',
            "201",
            "requests wait",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_runbook(series: str, value: str, what: str) -> None:
    lines = [
        f"{series} {value}" if line.startswith(series + " ") else line for line in WELL.splitlines()
    ]
    assert "\n".join(lines) + "\n" != WELL
    (check,) = [one for one in check_broker(Page("\n".join(lines)), "") if one.trouble]
    assert check.what == what
    assert runbook_of(check).count("**Symptom.**") == 1


def test_a_pause_under_a_few_requests_is_no_busy_broker() -> None:
    name = "kafka_network_requestmetrics_requestqueuetimems"
    few = (
        f'{name}{{request="Metadata",quantile="0.99"}} 509\n{name}_count{{request="Metadata"}} 12\n'
    )
    assert troubles(WELL + few) == []


def test_the_partition_that_fails_for_longest_is_named_with_its_error() -> None:
    name = "strandline_remote_copy_failing_seconds"
    text = (
        WELL
        + f'{name}{{topic="a",partition="0",error="TierUnavailable"}} 4.2\n'
        + f'{name}{{topic="b",partition="7",error="AccessDenied"}} 700.4\n'
    )
    (check,) = [one for one in check_broker(Page(text), "") if one.trouble]
    assert check.what == "archiving"
    assert check.trouble == (
        "b-7 (and 1 more) for 700 s: AccessDenied"
        " (writing is forbidden: the credentials, or the bucket's policy)"
    )


def test_the_transaction_that_keeps_segments_from_the_archive_is_named_and_is_no_trouble() -> None:
    name = "strandline_remote_copy_held_seconds"
    text = (
        WELL
        + f'{name}{{topic="a",partition="0",producer_id="5",start_offset="3"}} 4.2\n'
        + f'{name}{{topic="b",partition="7",producer_id="6",start_offset="1200"}} 45.4\n'
    )
    assert troubles(text) == []
    told = (
        " has had a transaction open since offset 1200, for 45 s; it ends at its timeout, or with"
        " kafka-transactions.sh abort"
    )
    assert waiting(text) == f"40 segments; b-7: producer 6{told}"
    named = text.replace('producer_id="6"', 'transactional_id="app-1",producer_id="6"')
    assert waiting(named) == f"40 segments; b-7: 'app-1' (producer 6){told}"


def waiting(text: str) -> str:
    (check,) = [c for c in check_broker(Page(text), "") if c.what == "waiting for the archive"]
    return check.figure


def test_a_store_that_takes_no_writes_is_said_to_be_one_and_no_second_owner_is_suspected() -> None:
    name = "strandline_remote_writes_refused_seconds"
    text = f'{WELL}{name}{{error="AccessDenied"}} 65.4\n'
    (check,) = [one for one in check_broker(Page(text), "") if one.trouble]
    assert check.what == "writes to the archive"
    assert check.trouble.startswith("for 65 s writing is forbidden: ")
    assert "grant what is missing" in runbook_of(check)
    (full,) = [
        c for c in check_broker(Page(text.replace("AccessDenied", "StoreFull")), "") if c.trouble
    ]
    assert "Enlarge the volume" in runbook_of(full)
    unclaimed = text.replace("archive_owned 1", "archive_owned 0")
    assert troubles(unclaimed) == ["writes to the archive"]


@pytest.mark.parametrize(
    ("error", "figure", "remedy"),
    [
        ("TierUnavailable", "unreachable", "the object store is unreachable"),
        ("AccessDenied", "refuses reads", "grant what is missing"),
    ],
)
def test_a_store_that_is_down_is_the_one_trouble_and_its_reason_is_said(
    error: str, figure: str, remedy: str
) -> None:
    """It was told as another broker that owns the archive, and as metadata that were deleted."""
    text = (
        WELL.replace("strandline_remote_up 1", "strandline_remote_up 0")
        .replace("archive_owned 1", "archive_owned 0")
        .replace("mirror_lag 0", "mirror_lag 4")
        + f'strandline_remote_down_seconds{{error="{error}",reason="get cluster.json: why"}} 65.4\n'
        + 'strandline_remote_copy_failing_seconds{topic="a",partition="0",error="TierError"} 4\n'
    )
    (check,) = [one for one in check_broker(Page(text), "") if one.trouble]
    assert (check.what, check.figure) == ("object store", figure)
    assert check.trouble.startswith("for 65 s ")
    assert check.trouble.endswith(": get cluster.json: why")
    assert remedy in runbook_of(check)
    figures = {one.what: one.figure for one in check_broker(Page(text), "")}
    assert figures["writes to the archive"] == "not known"


def test_a_replica_says_its_role_and_how_far_behind_it_is() -> None:
    """A healthy one was behind for ever: its metadata are in no bucket."""
    text = "".join(
        f"{line}\n"
        for line in WELL.splitlines()
        if "archive_owned" not in line and "mirror_lag" not in line
    )
    checks = check_broker(Page(f"{text}strandline_replica_lag_seconds 4.2\n"), "")
    figures = {check.what: check.figure for check in checks}
    assert figures["read-only replica"] == "4 s behind what its origin archived"
    assert figures["writes to the archive"] == "none: this is a read-only replica"
    assert not {"owns the archive", "metadata in the bucket"} & figures.keys()
    assert not any(check.trouble for check in checks)
    late = check_broker(Page(f"{text}strandline_replica_lag_seconds 601\n"), "")
    assert [check.what for check in late if check.trouble] == ["read-only replica"]


def test_work_of_no_partition_that_fails_is_named_with_what_it_costs() -> None:
    name = "strandline_remote_upkeep_failing_seconds"
    rows = [
        ("groups", "__consumer_offsets-1", 4),
        ("groups", "__consumer_offsets-7", 70),
        ("purge", "orders", 9),
    ]
    text = "".join(
        f'{name}{{activity="{activity}",subject="{subject}",error="AccessDenied"}} {for_s}\n'
        for activity, subject, for_s in rows
    )
    (check,) = [one for one in check_broker(Page(WELL + text), "") if one.trouble]
    assert check.trouble == (
        "a restore would lose the newest offsets of groups (__consumer_offsets-7 for 70 s:"
        " AccessDenied); objects of a deleted topic stay in the bucket (orders for 9 s:"
        " AccessDenied)"
    )
    assert "tiering does not succeed" in runbook_of(check)


def test_when_the_store_last_answered_is_said() -> None:
    name = "strandline_remote_last_answer_seconds"
    page = Page(f'{WELL}{name}{{what="read"}} 3.2\n{name}{{what="write"}} 12.7\n')
    (check,) = [one for one in check_broker(page, "") if one.what == "object store"]
    assert check.figure == "answered a read 3 s ago and a write 13 s ago"


def test_a_server_that_is_safe_with_one_broker_alone_is_told_and_is_no_trouble() -> None:
    text = f"{WELL}strandline_remote_conditions_atomic 0\n"
    assert troubles(text) == []
    (check,) = [one for one in check_broker(Page(text), "") if one.what == "writes to the archive"]
    assert "safe with this broker alone" in check.figure


def test_why_clients_are_not_served_is_said_as_the_broker_says_it() -> None:
    (check,) = [
        one for one in check_broker(Page(WELL), "every log folder is offline") if one.trouble
    ]
    assert check.trouble == "every log folder is offline"
    assert "All log folders are offline" in runbook_of(check)


def test_what_lies_where_is_summed_over_partitions() -> None:
    tier, lag = "strandline_log_tier_bytes", "kafka_server_brokertopicmetrics_remotecopylagbytes"
    text = (
        f'{tier}{{topic="t",partition="0",tier="local"}} 10\n'
        f'{tier}{{topic="t",partition="0",tier="remote"}} 200\n'
        f'{tier}{{topic="t",partition="1",tier="local"}} 1\n'
        f'{tier}{{topic="s",partition="0",tier="local"}} 5\n'
        f'{lag} 3\n{lag}{{topic="t"}} 3\n'
        'strandline_remote_requests_total{operation="put"} 4\n'
        'strandline_remote_requests_total{operation="get"} 0\n'
    )
    page = Page(text)
    assert tiers(page) == [
        TopicTiers(topic="s", local_bytes=5, archive_bytes=0, copy_lag_bytes=0, delete_lag_bytes=0),
        TopicTiers(
            topic="t", local_bytes=11, archive_bytes=200, copy_lag_bytes=3, delete_lag_bytes=0
        ),
    ]
    assert store_requests(page) == {"put": 4}


def test_labels_may_hold_quotes_backslashes_and_commas() -> None:
    page = Page('m{directory="C:\\\\a \\"b\\", c=\\"d",x="\\n"} 1 1700000000\n')
    assert page.all("m")[0].labels == {"directory": 'C:\\a "b", c="d', "x": "\n"}


def test_what_is_done_in_another_way_on_this_server_is_told_and_is_no_trouble() -> None:
    page = Page(f'{WELL}strandline_remote_lacking{{request="batch_delete"}} 1\n')
    checks = {check.what: check for check in check_broker(page, "")}
    assert checks["writes to the archive"].figure == "taken; objects are deleted one by one"
    assert not any(check.trouble for check in checks.values())
