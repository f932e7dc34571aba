"""Fetch over the wire: what is read, how much of it, and how long it is waited for."""

from __future__ import annotations

import time
import uuid

import pytest

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchReplicaState,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.compression import Codec
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import (
    MakeTopic,
    append,
    assert_serves,
    batch,
    create_topic,
    delete_topic,
    describe_topic,
    fetch,
    fetch_request,
    fetch_topic,
    fetched_bytes,
    produce,
    records_in,
)

pytestmark = pytest.mark.slow

UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
UNKNOWN_LEADER_EPOCH = 75
UNSUPPORTED_COMPRESSION_TYPE = 76
UNKNOWN_TOPIC_ID = 100

# A wait that must not happen ends with the test's client, which gives up after a minute.
LONG_MS = 600_000
READ_COMMITTED = 1


def partitions_of(response: FetchResponse) -> list[FetchResponsePartition]:
    return [partition for topic in response.topics for partition in topic.partitions]


# --- what is read ----------------------------------------------------------------------------


@pytest.mark.parametrize("codec_", list(Codec))
def test_a_batch_is_fetched_as_it_was_sent_but_for_offset_and_epoch(
    client: WireClient, topic: str, codec_: Codec
) -> None:
    sent = batch(7, codec=codec_)
    append(client, topic, batch(3), sent)
    (_, fetched) = walk(buffer := fetched_bytes(fetch(client, topic)))
    assert (fetched.header.base_offset, fetched.header.leader_epoch) == (3, 0)
    got = bytearray(buffer[fetched.position :])
    batch_format.stamp(got, 0, 0, -1)
    assert bytes(got) == sent


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_fetches_the_same_bytes(client: WireClient, topic: str, version: int) -> None:
    append(client, topic, batch(3), batch(2))
    wanted = describe_topic(client, topic).topic_id if version >= 13 else topic
    answer = fetch(client, wanted, version=version)
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 5, 5)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert fetched_bytes(answer) == fetched_bytes(fetch(client, topic))
    assert len(records_in(answer)) == 5


def test_a_read_committed_fetch_lists_aborted_transactions_and_another_does_not(
    client: WireClient, topic: str
) -> None:
    append(client, topic, batch())
    assert fetch(client, topic).aborted_transactions is None
    committed = fetch(client, topic, isolation_level=READ_COMMITTED)
    assert committed.aborted_transactions is not None
    assert list(committed.aborted_transactions) == []
    assert len(records_in(committed)) == 1


def test_an_offset_inside_a_batch_fetches_that_whole_batch(client: WireClient, topic: str) -> None:
    append(client, topic, batch(5), batch(5), batch(5))
    answer = fetch(client, topic, 7)
    assert [record.offset for record in records_in(answer)] == list(range(5, 15))


def test_unknown_partitions_are_named_beside_the_good_ones(
    client: WireClient, topic: str, topic_name: str
) -> None:
    append(client, topic, batch(2))
    request = fetch_request(
        fetch_topic(topic, {0: 0, 5: 0, -1: 0}),
        fetch_topic(topic_name, {0: 0}),
        max_wait_ms=LONG_MS,
        min_bytes=10**6,
    )
    answers = partitions_of(client.ask(request, FetchResponse, 12))
    # An error is told at once, however long the client would wait for bytes.
    codes = [0, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION]
    assert [answer.error_code for answer in answers] == codes
    assert len(records_in(answers[0])) == 2


def test_a_fetch_by_topic_id_knows_the_topic_of_now_only(client: WireClient, topic: str) -> None:
    old_id = describe_topic(client, topic).topic_id
    append(client, topic, batch(2))
    assert len(records_in(fetch(client, old_id))) == 2
    delete_topic(client, topic)
    new_id = create_topic(client, topic)
    append(client, topic, batch(1))
    assert fetch(client, old_id).error_code == UNKNOWN_TOPIC_ID
    assert len(records_in(fetch(client, new_id))) == 1
    for unknown in (uuid.uuid4(), uuid.UUID(int=0)):
        assert fetch(client, unknown).error_code == UNKNOWN_TOPIC_ID
    for partition in (1, -1):
        answer = fetch(client, new_id, partition=partition)
        assert answer.error_code == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [0, 3, 4, 9])
def test_a_client_that_cannot_unpack_zstd_is_told_so_by_a_topic_of_zstd(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    """It would take the batches for damaged, and say so again with each fetch."""
    topic = make_topic(1, {"compression.type": "zstd"})
    append(client, topic, batch(3))
    answer = fetch(client, topic, version=version)
    assert (answer.error_code, answer.records_bytes) == (UNSUPPORTED_COMPRESSION_TYPE, 0)
    assert len(records_in(fetch(client, topic, version=10))) == 3


def test_a_leader_epoch_that_is_too_new_is_refused(client: WireClient, topic: str) -> None:
    """Too old ones need a broker that has restarted: test_crash.py."""
    append(client, topic, batch())
    ours = describe_topic(client, topic).partitions[0].leader_epoch
    assert fetch(client, topic, current_leader_epoch=ours).error_code == 0
    newer = fetch(client, topic, current_leader_epoch=ours + 1)
    assert newer.error_code == UNKNOWN_LEADER_EPOCH
    assert records_in(newer) == []


# --- how much --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 4, 11, 12, 14, 15, 18])
@pytest.mark.parametrize("replica_id", [0, 1, 7, 2**31 - 1])
def test_a_broker_that_is_no_replica_gets_nothing(
    client: WireClient, topic: str, version: int, replica_id: int
) -> None:
    """Kafka's answers to a follower that is not among the replicas; this broker's id included."""
    append(client, topic, batch(2))
    described = describe_topic(client, topic)
    named: str | uuid.UUID = described.topic_id if version >= 13 else topic
    codes = {}
    for epoch in (-1, described.partitions[0].leader_epoch, 99):
        wanted = fetch_topic(named, {0: 0, 5: 0}, current_leader_epoch=epoch)
        request = fetch_from(replica_id, version, wanted)
        response = client.ask(request, FetchResponse, version)
        first, missing = response.topics[0].partitions
        assert (fetched_bytes(first), first.high_watermark) == (b"", -1)
        assert missing.error_code == UNKNOWN_TOPIC_OR_PARTITION
        codes[epoch] = first.error_code
    knows_epochs = version >= 9
    assert set(codes.values()) == (
        {NOT_LEADER_OR_FOLLOWER, UNKNOWN_LEADER_EPOCH} if knows_epochs else {NOT_LEADER_OR_FOLLOWER}
    )
    assert codes[-1] == NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [4, 12, 18])
def test_a_debugging_consumer_is_a_consumer(client: WireClient, topic: str, version: int) -> None:
    append(client, topic, batch(2))
    named: str | uuid.UUID = describe_topic(client, topic).topic_id if version >= 13 else topic
    request = fetch_from(-2, version, fetch_topic(named, {0: 0}))
    response = client.ask(request, FetchResponse, version)
    assert len(records_in(response.topics[0].partitions[0])) == 2


def fetch_from(replica_id: int, version: int, wanted: FetchTopic) -> FetchRequest:
    """With the replica where a request of this version has it."""
    if version < 15:
        return fetch_request(wanted, replica_id=replica_id)
    state = FetchReplicaState(replica_id=replica_id, replica_epoch=1)
    return fetch_request(wanted, replica_state=state)


def test_the_first_batch_comes_however_small_the_limits_are(client: WireClient, topic: str) -> None:
    """KIP-74: a batch larger than what a consumer asks for stops nobody."""
    append(client, topic, batch(value=b"x" * 50_000), batch())
    for bytes_max, partition_bytes_max in ((1, 1), (0, 0), (10**6, 1), (1, 10**6), (-1, -1)):
        wanted = fetch_topic(topic, {0: 0}, partition_max_bytes=partition_bytes_max)
        response = client.ask(fetch_request(wanted, max_bytes=bytes_max), FetchResponse, 12)
        assert [record.offset for record in records_in(partitions_of(response)[0])] == [0]


def test_max_bytes_counts_over_all_partitions(client: WireClient, make_topic: MakeTopic) -> None:
    topic = make_topic(4)
    one = batch(value=b"x" * 10_000)
    for partition in range(4):
        append(client, topic, one, one, one, partition=partition)
    wanted = fetch_topic(topic, dict.fromkeys(range(4), 0), partition_max_bytes=2 * len(one) + 50)
    for version in (4, 12):
        request = fetch_request(wanted, max_bytes=5 * len(one) + 50)
        counts = [
            len(records_in(answer))
            for answer in partitions_of(client.ask(request, FetchResponse, version))
        ]
        assert counts == [2, 2, 1, 0]


def test_behind_a_batch_that_does_not_fit_into_the_answer_no_partition_gets_anything(
    client: WireClient, make_topic: MakeTopic
) -> None:
    """As with Kafka, which fills the answer with a part of that batch: the order is kept."""
    topic = make_topic(3)
    large, small = batch(value=b"x" * 10_000), batch()
    append(client, topic, large, large, partition=0)
    append(client, topic, small, partition=1)
    append(client, topic, small, small, partition=2)
    for limits, expected in (
        ({"max_bytes": 2 * len(large) - 1}, [1, 0, 0]),
        ({"max_bytes": 2 * len(large) + len(small)}, [2, 1, 0]),
        # Its own limit says nothing of the others.
        ({"partition_max_bytes": 2 * len(large) - 1}, [1, 1, 2]),
    ):
        own = limits.pop("partition_max_bytes", 1 << 20)
        wanted = fetch_topic(topic, dict.fromkeys(range(3), 0), partition_max_bytes=own)
        response = client.ask(
            fetch_request(wanted, max_wait_ms=LONG_MS, min_bytes=10**6, **limits), FetchResponse, 12
        )
        assert [len(records_in(answer)) for answer in partitions_of(response)] == expected


def test_a_partition_named_twice_is_answered_twice(client: WireClient, topic: str) -> None:
    append(client, topic, batch(2), batch(2))
    partitions = [
        FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=10_000)
        for offset in (0, 2)
    ]
    request = fetch_request(FetchTopic(name=topic, partitions=partitions))
    answers = partitions_of(client.ask(request, FetchResponse, 12))
    assert [records_in(answer)[0].offset for answer in answers] == [0, 2]


# --- how long --------------------------------------------------------------------------------


def test_a_long_poll_wakes_when_enough_bytes_came_and_not_before(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    small, large = batch(value=b"small"), batch(value=b"x" * 5000)
    with WireClient(broker.port) as consumer:
        request = fetch_request(
            fetch_topic(topic, {0: 0}), max_wait_ms=LONG_MS, min_bytes=len(small) + len(large)
        )
        sent = consumer.send(request, 12)
        append(client, topic, small)
        # Had the first append woken it, its answer would hold one record.
        append(client, topic, large)
        (answer,) = partitions_of(consumer.receive(FetchResponse, 12, sent))
    assert len(records_in(answer)) == 2


def test_a_long_poll_counts_the_bytes_of_all_its_partitions(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    one = batch(value=b"x" * 1000)
    with WireClient(broker.port) as consumer:
        request = fetch_request(
            fetch_topic(topic, dict.fromkeys(range(3), 0)),
            max_wait_ms=LONG_MS,
            min_bytes=3 * len(one),
        )
        sent = consumer.send(request, 12)
        for partition in range(3):
            append(client, topic, one, partition=partition)
        answers = partitions_of(consumer.receive(FetchResponse, 12, sent))
    assert [len(records_in(answer)) for answer in answers] == [1, 1, 1]


@pytest.mark.parametrize("version", [4, 12])
def test_a_long_poll_ends_with_an_empty_answer_when_its_time_is_over(
    client: WireClient, topic: str, version: int
) -> None:
    append(client, topic, batch(2))
    began_s = time.monotonic()
    answer = fetch(client, topic, 2, max_wait_ms=150, version=version)
    waited_s = time.monotonic() - began_s
    assert waited_s > 0.14
    assert (answer.error_code, answer.high_watermark, records_in(answer)) == (0, 2, [])


def test_a_long_poll_gets_at_its_end_the_little_that_came(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    with WireClient(broker.port) as consumer:
        # Where the machine makes a pause in between, they come when its time is over.
        for end in range(0, 20, 2):
            wanted = fetch_topic(topic, {0: end})
            request = fetch_request(wanted, max_wait_ms=300, min_bytes=10**6)
            sent = consumer.send(request, 12)
            append(client, topic, batch(2))
            (answer,) = partitions_of(consumer.receive(FetchResponse, 12, sent))
            if records_in(answer):
                break
    assert len(records_in(answer)) == 2


def test_min_bytes_of_0_or_no_wait_answers_at_once(client: WireClient, topic: str) -> None:
    for wait_ms, min_bytes in ((LONG_MS, 0), (0, 1), (-1, 10**6), (LONG_MS, -1)):
        request = fetch_request(
            fetch_topic(topic, {0: 0}), max_wait_ms=wait_ms, min_bytes=min_bytes
        )
        assert records_in(partitions_of(client.ask(request, FetchResponse, 12))[0]) == []


def test_a_fetch_of_nothing_answers_at_once(client: WireClient) -> None:
    assert partitions_of(client.ask(fetch_request(max_wait_ms=LONG_MS), FetchResponse, 12)) == []


def test_min_bytes_above_max_bytes_waits_for_max_bytes_only(client: WireClient, topic: str) -> None:
    """Else a consumer that asks so would wait for what no answer may hold."""
    append(client, topic, *[batch(value=b"x" * 1000)] * 10)
    request = fetch_request(
        fetch_topic(topic, {0: 0}), max_wait_ms=LONG_MS, min_bytes=10**6, max_bytes=1500
    )
    (answer,) = partitions_of(client.ask(request, FetchResponse, 12))
    assert len(records_in(answer)) == 1


def test_a_fetch_from_a_closed_segment_does_not_wait_for_min_bytes(
    client: WireClient, make_topic: MakeTopic
) -> None:
    """An answer ends at the end of a segment, but there is more behind it: nothing to wait for."""
    topic = make_topic(1, {"segment.bytes": "1048576"})
    large = batch(value=b"x" * 600_000)
    append(client, topic, large, large, large)
    request = fetch_request(
        fetch_topic(topic, {0: 0}), max_wait_ms=LONG_MS, min_bytes=2 * len(large)
    )
    (answer,) = partitions_of(client.ask(request, FetchResponse, 12))
    assert len(records_in(answer)) == 1


def test_deleting_a_topic_wakes_its_long_polls(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    with WireClient(broker.port) as consumer:
        request = fetch_request(fetch_topic(topic, {0: 0}), max_wait_ms=LONG_MS)
        sent = consumer.send(request, 12)
        delete = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=5000)
        client.ask(delete, DeleteTopicsResponse, 6)
        (answer,) = partitions_of(consumer.receive(FetchResponse, 12, sent))
    assert answer.error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_a_long_poll_does_not_hold_up_other_connections(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    waiting = [WireClient(broker.port) for _ in range(50)]
    sent = [
        consumer.send(fetch_request(fetch_topic(topic, {0: 0}), max_wait_ms=LONG_MS), 12)
        for consumer in waiting
    ]
    assert_serves(broker.port)
    append(client, topic, batch())
    for consumer, correlation_id in zip(waiting, sent, strict=True):
        (answer,) = partitions_of(consumer.receive(FetchResponse, 12, correlation_id))
        assert len(records_in(answer)) == 1
        consumer.close()


def test_a_client_that_disconnects_during_a_long_poll_leaves_no_trace(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    """Its socket is closed now, not when its hour is over; and appending goes on."""
    before = broker.socket_count()
    consumers = [WireClient(broker.port) for _ in range(10)]
    for consumer in consumers:
        consumer.send(fetch_request(fetch_topic(topic, {0: 0}), max_wait_ms=3_600_000), 12)
    eventually(lambda: broker.socket_count() == before + 10)
    for consumer in consumers:
        consumer.close()
    eventually(lambda: broker.socket_count() == before)
    assert append(client, topic, batch()) == 0
    assert produce(client, topic, batch()).error_code == 0


def test_records_of_a_deleted_topic_reach_the_reader_who_asked_before(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    """The bytes of an answer stay readable while it is on its way, whatever becomes of the file."""
    sent_batches = [batch(value=bytes([number]) * 900_000) for number in range(8)]
    append(client, topic, *sent_batches)
    with WireClient(broker.port) as consumer:
        request = fetch_request(fetch_topic(topic, {0: 0}, partition_max_bytes=50_000_000))
        sent = consumer.send(request, 12)
        assert_serves(broker.port)
        delete_topic(client, topic)
        (answer,) = partitions_of(consumer.receive(FetchResponse, 12, sent))
    assert len(codec.join(answer.records)) == sum(map(len, sent_batches))
    assert [(record.value or b"")[:1] for record in records_in(answer)] == [
        bytes([number]) for number in range(8)
    ]
