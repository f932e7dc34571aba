"""Versions that Kafka 4 dropped (KIP-896) and that clients from before Kafka 0.10.1 send."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from strandline.broker.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    EARLIEST,
    LATEST,
    MakeTopic,
    append,
    batch,
    delete_records,
    new_topic,
)

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000
FIRST_MS = 1_700_000_000_000
UNKNOWN_TOPIC_OR_PARTITION = 3
UNSUPPORTED_VERSION = 35


def borders(
    client: WireClient, topic: str, timestamp_ms: int, count: int = 10
) -> tuple[int, Sequence[int]]:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms, max_num_offsets=count)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    (answer,) = client.ask(request, ListOffsetsResponse, 0).topics[0].partitions
    return answer.error_code, list(answer.old_style_offsets)


@pytest.fixture
def topic_of_three_segments(client: WireClient, make_topic: MakeTopic) -> str:
    """Segments that begin at 0, 5 and 10, a day of record time apart; the log ends at 15."""
    topic = make_topic(1, {"segment.ms": str(DAY_MS)})
    for day in range(3):
        append(client, topic, batch(5, first_timestamp_ms=FIRST_MS + 2 * day * DAY_MS))
    return topic


@pytest.mark.parametrize(
    ("timestamp_ms", "count", "expected"),
    [
        (LATEST, 10, [15, 10, 5, 0]),
        (LATEST, 1, [15]),
        (LATEST, 0, []),
        (LATEST, -1, []),
        (EARLIEST, 10, [0]),
        (FIRST_MS - 1, 10, []),
        (FIRST_MS + 4, 10, [0]),
        (FIRST_MS + 2 * DAY_MS, 10, [0]),
        (FIRST_MS + 2 * DAY_MS + 4, 10, [5, 0]),
        (FIRST_MS + 5 * DAY_MS, 1, [10]),
    ],
)
def test_an_old_client_is_told_where_the_segments_before_a_time_begin(
    client: WireClient,
    topic_of_three_segments: str,
    timestamp_ms: int,
    count: int,
    expected: list[int],
) -> None:
    assert borders(client, topic_of_three_segments, timestamp_ms, count) == (0, expected)


def test_a_time_that_is_still_to_come_gives_the_end_of_the_log(
    client: WireClient, topic_of_three_segments: str
) -> None:
    later_ms = int(time.time() * 1000) + DAY_MS
    assert borders(client, topic_of_three_segments, later_ms, 2) == (0, [15, 10])


def test_old_clients_are_told_no_offset_below_the_log_start(
    client: WireClient, topic_of_three_segments: str
) -> None:
    delete_records(client, topic_of_three_segments, 7)
    assert borders(client, topic_of_three_segments, EARLIEST) == (0, [7])
    assert borders(client, topic_of_three_segments, LATEST) == (0, [15, 10, 7])


def test_an_empty_log_has_one_border_and_a_special_timestamp_of_later_versions_is_refused(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    assert borders(client, topic, LATEST) == (0, [0])
    assert borders(client, topic, -3) == (UNSUPPORTED_VERSION, [])
    assert borders(client, "nobody-made-this", LATEST) == (UNKNOWN_TOPIC_OR_PARTITION, [])


@pytest.mark.parametrize("version", [0, 1])
def test_offsets_committed_in_the_oldest_versions_are_there_for_all(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(2)
    partition = OffsetCommitRequestPartition(
        partition_index=1, committed_offset=7, commit_timestamp=1, committed_metadata="m"
    )
    commit = OffsetCommitRequest(
        group_id=topic, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    )
    (answer,) = client.ask(commit, OffsetCommitResponse, version).topics[0].partitions
    assert answer.error_code == 0
    request = OffsetFetchRequest(
        group_id=topic, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])]
    )
    found = {
        v: [
            (p.partition_index, p.committed_offset, p.error_code)
            for p in client.ask(request, OffsetFetchResponse, v).topics[0].partitions
        ]
        for v in (0, 1)
    }
    # Version 0 knew no other way to say that nothing is committed.
    assert found[0] == [(0, -1, UNKNOWN_TOPIC_OR_PARTITION), (1, 7, 0)]
    assert found[1] == [(0, -1, 0), (1, 7, 0)]


@pytest.mark.parametrize("version", [0, 1])
def test_topics_are_made_and_deleted_in_the_oldest_versions(
    client: WireClient, topic_name: str, version: int
) -> None:
    create = CreateTopicsRequest(topics=[new_topic(topic_name, 2)])
    assert client.ask(create, CreateTopicsResponse, version).topics[0].error_code == 0
    delete = DeleteTopicsRequest(topic_names=[topic_name], timeout_ms=5000)
    assert client.ask(delete, DeleteTopicsResponse, 0).responses[0].error_code == 0


def test_the_oldest_description_of_a_config_says_whether_it_is_the_default(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(1, {"retention.ms": "5000"})
    wanted = DescribeConfigsResource(
        resource_type=ConfigResourceType.TOPIC,
        resource_name=topic,
        configuration_keys=["retention.ms", "flush.ms"],
    )
    answer = client.ask(DescribeConfigsRequest(resources=[wanted]), DescribeConfigsResponse, 0)
    entries = {entry.name: entry.is_default for entry in answer.results[0].configs}
    assert entries == {"retention.ms": False, "flush.ms": True}


def test_the_log_says_why_a_client_was_cut_off(broker: BrokerProcess) -> None:
    with WireClient(broker.port) as client:
        # API 3 (Metadata), version 99.
        client.send_raw(bytes.fromhex("0000000a 0003 0063 00000001 0000".replace(" ", "")))
        assert client.closed_by_broker()
    assert "client disconnected for an invalid request" in broker.log_text()
