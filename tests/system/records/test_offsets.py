"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords over the wire: where things begin and end."""

from __future__ import annotations

import time

import pytest

from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import MAX_TIMESTAMP_POSITION, OFFSET_FIELD
from strandline.storage.records.batch.record import Record, encode_batch, with_crc
from strandline.storage.records.compression import Codec
from tests.support.wire import WireClient
from tests.system.calls import (
    EARLIEST,
    FIRST_TIMESTAMP_MS,
    LATEST,
    MakeTopic,
    append,
    batch,
    delete_records,
    describe_topic,
    fetch,
    fetched_bytes,
    offset_at,
    produce,
    read_all,
)

pytestmark = pytest.mark.slow

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TIMESTAMP = 32
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
UNKNOWN_LEADER_EPOCH = 75

MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
LIST_VERSIONS = range(1, 12)
FIRST_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
READ_COMMITTED = 1


def timed_batch(*timestamps_ms: int, codec: Codec = Codec.NONE) -> bytes:
    return encode_batch(
        [
            Record(offset=offset, timestamp_ms=timestamp_ms, key=b"%d" % offset, value=b"v")
            for offset, timestamp_ms in enumerate(timestamps_ms)
        ],
        codec=codec,
    )


# --- ListOffsets -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", LIST_VERSIONS)
def test_special_timestamps_are_answered_from_their_first_version_on(
    client: WireClient, topic: str, version: int
) -> None:
    append(client, topic, batch(5), batch(2))
    expected = {
        LATEST: 7,
        EARLIEST: 0,
        MAX_TIMESTAMP: 4,
        EARLIEST_LOCAL: 0,
        LATEST_TIERED: -1,
        EARLIEST_PENDING_UPLOAD: -1,
    }
    for timestamp, offset in expected.items():
        answer = offset_at(client, topic, timestamp, version=version)
        if version < FIRST_VERSIONS[timestamp]:
            assert (answer.error_code, answer.offset) == (UNSUPPORTED_VERSION, -1)
        else:
            assert (answer.error_code, answer.offset) == (0, offset)
            max_ms = FIRST_TIMESTAMP_MS + 4 if timestamp == MAX_TIMESTAMP else -1
            assert answer.timestamp == max_ms
            has_epoch = version >= 4 and offset >= 0
            assert answer.leader_epoch == (0 if has_epoch else -1)
    for nonsense in (-7, -(2**63)):
        answer = offset_at(client, topic, nonsense, version=version)
        assert answer.error_code == UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", LIST_VERSIONS)
def test_an_empty_log_begins_and_ends_at_0_and_has_no_timestamps(
    client: WireClient, topic: str, version: int
) -> None:
    for timestamp in (LATEST, EARLIEST):
        answer = offset_at(client, topic, timestamp, version=version)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, 0, -1)
    for timestamp in (0, FIRST_TIMESTAMP_MS, MAX_TIMESTAMP):
        if version < FIRST_VERSIONS.get(timestamp, 1):
            continue
        answer = offset_at(client, topic, timestamp, version=version)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, -1, -1)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("version", LIST_VERSIONS)
def test_a_time_finds_the_first_record_at_or_after_it(
    client: WireClient, topic: str, version: int, codec: Codec
) -> None:
    """In the order of offsets, exact to the record, also where timestamps go up and down."""
    append(
        client,
        topic,
        timed_batch(1000, 3000, 2000, codec=codec),
        timed_batch(1500, 1500, 6000, codec=codec),
        timed_batch(4000, codec=codec),
    )
    for time_ms, offset, found_ms in (
        (0, 0, 1000),
        (1000, 0, 1000),
        (1001, 1, 3000),
        (3000, 1, 3000),
        (3001, 5, 6000),
        (6000, 5, 6000),
        (6001, -1, -1),
        (2**63 - 1, -1, -1),
    ):
        answer = offset_at(client, topic, time_ms, version=version)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found_ms)


# Sarama up to 1.43.3 sends -1, kafka-go's Conn the time of the last record; others may send any.
@pytest.mark.parametrize("said_ms", [-1, 1005, 2**62])
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"cleanup.policy": "compact"},
        {"compression.type": "lz4"},
        {"message.timestamp.before.max.ms": str(2**62)},
    ],
)
def test_times_are_found_by_the_records_whatever_the_header_of_their_batch_says(
    client: WireClient,
    make_topic: MakeTopic,
    configs: dict[str, str],
    codec: Codec,
    said_ms: int,
) -> None:
    topic = make_topic(1, configs)
    for first_ms in (1000, 2000, 3000):
        encoded = bytearray(timed_batch(first_ms, first_ms + 7, first_ms + 5, codec=codec))
        OFFSET_FIELD.pack_into(encoded, MAX_TIMESTAMP_POSITION, said_ms)
        append(client, topic, with_crc(encoded))
    stored = list(walk(fetched_bytes(fetch(client, topic))))
    assert [one.header.max_timestamp_ms for one in stored] == [1007, 2007, 3007]
    for wanted_ms, offset in ((0, 0), (1006, 1), (1008, 3), (3000, 6), (3008, -1)):
        assert offset_at(client, topic, wanted_ms).offset == offset
    assert offset_at(client, topic, MAX_TIMESTAMP).offset == 7


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("count", [3, 20_000])
def test_a_record_of_the_far_future_is_refused_though_its_header_hides_it(
    client: WireClient, topic: str, codec: Codec, count: int
) -> None:
    now_ms = int(time.time() * 1000)
    times_ms = [now_ms, 2 * now_ms, *[now_ms] * (count - 2)]
    encoded = bytearray(timed_batch(*times_ms, codec=codec))
    OFFSET_FIELD.pack_into(encoded, MAX_TIMESTAMP_POSITION, now_ms)
    answer = produce(client, topic, bytes(with_crc(encoded)))
    assert answer.error_code == INVALID_TIMESTAMP
    assert [wrong.batch_index for wrong in answer.record_errors] == [1]
    assert offset_at(client, topic, LATEST).offset == 0


def test_a_time_finds_nothing_before_the_log_start(client: WireClient, topic: str) -> None:
    append(client, topic, timed_batch(1000, 2000, 3000, 4000))
    delete_records(client, topic, 2)
    for time_ms in (0, 1500, 3000):
        answer = offset_at(client, topic, time_ms)
        assert (answer.offset, answer.timestamp) == (2, 3000)


def test_the_first_of_equal_largest_timestamps_is_the_maximum(
    client: WireClient, topic: str
) -> None:
    append(client, topic, timed_batch(5, 9, 9), timed_batch(9, 1))
    answer = offset_at(client, topic, MAX_TIMESTAMP)
    assert (answer.offset, answer.timestamp) == (1, 9)


def test_a_deleted_record_does_not_have_the_largest_timestamp(
    client: WireClient, topic: str
) -> None:
    append(client, topic, timed_batch(5, 9, 7), timed_batch(6))
    delete_records(client, topic, 2)
    answer = offset_at(client, topic, MAX_TIMESTAMP)
    assert (answer.offset, answer.timestamp) == (2, 7)
    delete_records(client, topic, 4)
    assert offset_at(client, topic, MAX_TIMESTAMP).offset == -1


def test_without_transactions_the_last_stable_offset_is_the_end(
    client: WireClient, topic: str
) -> None:
    append(client, topic, batch(4))
    assert offset_at(client, topic, LATEST, isolation_level=READ_COMMITTED).offset == 4


@pytest.mark.parametrize("version", range(4, 12))
def test_list_offsets_checks_the_leader_epoch(client: WireClient, topic: str, version: int) -> None:
    ours = describe_topic(client, topic).partitions[0].leader_epoch
    codes = [
        offset_at(client, topic, LATEST, current_leader_epoch=epoch, version=version).error_code
        for epoch in (-1, ours, ours + 1)
    ]
    assert codes == [0, 0, UNKNOWN_LEADER_EPOCH]


def test_list_offsets_answers_every_partition_that_was_asked_in_order(
    client: WireClient, make_topic: MakeTopic, topic_name: str
) -> None:
    topic = make_topic(3)
    append(client, topic, batch(2), partition=1)
    asked = [(topic, 2), (topic, 1), (topic, 0), (topic, 3), (topic_name, 0)]
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=LATEST)
                    for asked_name, index in asked
                    if asked_name == name
                ],
            )
            for name in (topic, topic_name)
        ]
    )
    response = client.ask(request, ListOffsetsResponse, 7)
    assert [
        (t.name, p.partition_index, p.error_code, p.offset)
        for t in response.topics
        for p in t.partitions
    ] == [
        (topic, 2, 0, 0),
        (topic, 1, 0, 2),
        (topic, 0, 0, 0),
        (topic, 3, UNKNOWN_TOPIC_OR_PARTITION, -1),
        (topic_name, 0, UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


@pytest.mark.parametrize("version", [1, 5, 7, 11])
def test_a_partition_named_twice_is_an_invalid_request_and_the_others_are_answered(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(2)
    append(client, topic, batch(4))
    asked = [(0, LATEST), (1, LATEST), (0, FIRST_TIMESTAMP_MS)]
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=i, timestamp=t) for i, t in asked],
            )
        ]
    )
    ((*answers,),) = (
        t.partitions for t in client.ask(request, ListOffsetsResponse, version).topics
    )
    assert [(a.partition_index, a.error_code, a.offset) for a in answers] == [
        (0, INVALID_REQUEST, -1),
        (1, 0, 0),
        (0, INVALID_REQUEST, -1),
    ]


# --- OffsetForLeaderEpoch --------------------------------------------------------------------


def epoch_end(
    client: WireClient,
    topic: str,
    epoch: int,
    *,
    current_leader_epoch: int = -1,
    partition: int = 0,
    version: int = 4,
) -> EpochEndOffset:
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderTopic(
                topic=topic,
                partitions=[
                    OffsetForLeaderPartition(
                        partition=partition,
                        current_leader_epoch=current_leader_epoch,
                        leader_epoch=epoch,
                    )
                ],
            )
        ],
    )
    response = client.ask(request, OffsetForLeaderEpochResponse, version)
    ((answer,),) = (t.partitions for t in response.topics)
    return answer


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_current_leader_epoch_ends_where_the_log_ends(
    client: WireClient, topic: str, version: int
) -> None:
    ours = describe_topic(client, topic).partitions[0].leader_epoch
    # Even before its first record.
    before = epoch_end(client, topic, ours, version=version)
    assert (before.error_code, before.leader_epoch, before.end_offset) == (0, ours, 0)
    append(client, topic, batch(3))
    after = epoch_end(client, topic, ours, version=version)
    assert (after.error_code, after.leader_epoch, after.end_offset) == (0, ours, 3)


def test_an_epoch_that_nobody_knows_has_no_end(client: WireClient, topic: str) -> None:
    append(client, topic, batch(3))
    ours = describe_topic(client, topic).partitions[0].leader_epoch
    for epoch in (ours + 1, 2**31 - 1, -1):
        answer = epoch_end(client, topic, epoch)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1)


def test_offset_for_leader_epoch_checks_leader_epoch_and_partition(
    client: WireClient, topic: str, topic_name: str
) -> None:
    ours = describe_topic(client, topic).partitions[0].leader_epoch
    newer = epoch_end(client, topic, ours, current_leader_epoch=ours + 1)
    assert newer.error_code == UNKNOWN_LEADER_EPOCH
    for name, partition in ((topic, 7), (topic_name, 0)):
        answer = epoch_end(client, name, 0, partition=partition)
        assert answer.error_code == UNKNOWN_TOPIC_OR_PARTITION


# --- DeleteRecords ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_deleting_records_moves_the_log_start(client: WireClient, topic: str, version: int) -> None:
    append(client, topic, batch(5), batch(5))
    answer = delete_records(client, topic, 3, version=version)
    assert (answer.error_code, answer.low_watermark) == (0, 3)
    assert offset_at(client, topic, EARLIEST).offset == 3
    # In the middle of a batch, which is fetched whole; the client drops what lies before.
    assert [record.offset for record in read_all(client, topic)] == [3, 4, 5, 6, 7, 8, 9]
    assert fetch(client, topic, 2).error_code == OFFSET_OUT_OF_RANGE
    assert fetch(client, topic, 3).log_start_offset == 3


def test_a_log_start_never_goes_back(client: WireClient, topic: str) -> None:
    append(client, topic, batch(10))
    delete_records(client, topic, 6)
    answer = delete_records(client, topic, 2)
    assert (answer.error_code, answer.low_watermark) == (0, 6)
    assert offset_at(client, topic, EARLIEST).offset == 6


def test_minus_1_deletes_everything_and_offsets_go_on(client: WireClient, topic: str) -> None:
    append(client, topic, batch(10))
    answer = delete_records(client, topic, -1)
    assert (answer.error_code, answer.low_watermark) == (0, 10)
    assert offset_at(client, topic, EARLIEST).offset == 10
    assert read_all(client, topic) == []
    assert append(client, topic, batch()) == 10


@pytest.mark.parametrize("before", [11, 2**63 - 1, -2, -(2**63)])
def test_deleting_beyond_the_high_watermark_is_out_of_range(
    client: WireClient, topic: str, before: int
) -> None:
    append(client, topic, batch(10))
    answer = delete_records(client, topic, before)
    assert (answer.error_code, answer.low_watermark) == (OFFSET_OUT_OF_RANGE, -1)
    assert offset_at(client, topic, EARLIEST).offset == 0


def test_records_of_a_topic_that_is_only_compacted_cannot_be_deleted(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(1, {"cleanup.policy": "compact"})
    append(client, topic, batch(10))
    answer = delete_records(client, topic, 5)
    assert (answer.error_code, answer.low_watermark) == (POLICY_VIOLATION, -1)
    assert offset_at(client, topic, EARLIEST).offset == 0
    both = make_topic(1, {"cleanup.policy": "compact,delete"})
    append(client, both, batch(10))
    assert delete_records(client, both, 5).low_watermark == 5


def test_records_of_an_unknown_partition_cannot_be_deleted(
    client: WireClient, topic: str, topic_name: str
) -> None:
    for name, partition in ((topic, 1), (topic, -1), (topic_name, 0)):
        answer = delete_records(client, name, 0, partition=partition)
        assert answer.error_code == UNKNOWN_TOPIC_OR_PARTITION


# --- Fetch's own ends ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_a_fetch_below_or_above_the_log_is_out_of_range(
    client: WireClient, topic: str, version: int
) -> None:
    append(client, topic, batch(10))
    delete_records(client, topic, 4)
    for offset in (3, 0, -1, -(2**63), 11, 2**63 - 1):
        answer = fetch(client, topic, offset, version=version)
        assert answer.error_code == OFFSET_OUT_OF_RANGE
        assert list(answer.records) in ([], [b""])
        assert answer.high_watermark == 10
    # The end itself is a place to wait at.
    assert fetch(client, topic, 10, version=version).error_code == 0
