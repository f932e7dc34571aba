"""Transactions request by request, in both versions of the protocol."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from strandline.broker.protocol.messages.delete_groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from strandline.broker.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.broker.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from strandline.broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
)
from strandline.broker.protocol.messages.produce import ProducePartition
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.records.batch.record import Record, encode_batch
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    FIRST_TIMESTAMP_MS,
    MakeTopic,
    create_topic,
    describe_topic,
    end_offset,
    fetch_request,
    fetch_topic,
)
from tests.system.group_calls import GroupMember, commit
from tests.system.transactions.admin_calls import describe
from tests.system.transactions.committed import READ_COMMITTED, committed_values
from tests.system.transactions.wire_producer import WireProducer

pytestmark = pytest.mark.slow

# One: all producers write to the same log.
BROKER_SETTINGS = {"transaction.state.log.num.partitions": "1"}
BOTH_VERSIONS = pytest.mark.parametrize("version", [1, 2])
NONE = ErrorCode.NONE
A_RECORD = Record(offset=0, timestamp_ms=FIRST_TIMESTAMP_MS, key=None, value=b"plain")
# Far longer than a test waits for an answer.
NEVER_MS = 600_000
PRODUCERS = 8
BEGINNINGS = 20


def a_producer(client: WireClient, topic: str, version: int) -> WireProducer:
    """A producer whose transactional id nobody else has."""
    producer = WireProducer(client, f"id of {topic}", version=version)
    producer.begin()
    return producer


def offset_of(
    client: WireClient, group_id: str, topic: str, *, is_stable_only: bool
) -> OffsetFetchResponsePartition:
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group_id,
                topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])],
            )
        ],
        require_stable=is_stable_only,
    )
    (group,) = client.ask(request, OffsetFetchResponse, 8).groups
    return group.topics[0].partitions[0]


@BOTH_VERSIONS
def test_records_are_read_once_their_transaction_is_committed(
    client: WireClient, topic: str, version: int
) -> None:
    producer = a_producer(client, topic, version)
    producer.send(topic, b"a", b"b")
    assert committed_values(client, topic) == []
    assert producer.commit() is NONE
    assert committed_values(client, topic) == [b"a", b"b"]
    producer.send(topic, b"c")
    assert committed_values(client, topic) == [b"a", b"b"]
    assert producer.commit() is NONE
    assert committed_values(client, topic) == [b"a", b"b", b"c"]


@BOTH_VERSIONS
def test_records_of_an_aborted_transaction_are_never_read(
    client: WireClient, topic: str, version: int
) -> None:
    producer = a_producer(client, topic, version)
    producer.send(topic, b"lost")
    assert producer.abort() is NONE
    producer.send(topic, b"kept")
    assert producer.commit() is NONE
    producer.send(topic, b"lost", b"lost")
    assert producer.abort() is NONE
    assert committed_values(client, topic) == [b"kept"]


@BOTH_VERSIONS
def test_a_transaction_ends_in_all_its_partitions_at_once(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(20)
    producer = a_producer(client, topic, version)
    for partition in range(20):
        producer.send(topic, b"%d" % partition, partition=partition)
    assert producer.commit() is NONE
    for partition in range(20):
        assert committed_values(client, topic, partition=partition) == [b"%d" % partition]


@BOTH_VERSIONS
def test_an_open_transaction_hides_what_others_wrote_behind_it(
    client: WireClient, topic: str, version: int
) -> None:
    first, second = (
        WireProducer(client, f"{name} of {topic}", version=version) for name in ("one", "two")
    )
    first.begin()
    second.begin()
    first.send(topic, b"first")
    second.send(topic, b"second")
    assert second.commit() is NONE
    assert committed_values(client, topic) == []
    assert first.commit() is NONE
    assert committed_values(client, topic) == [b"first", b"second"]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_waiting_fetch_of_committed_records_wakes_when_the_transaction_ends(
    client: WireClient, broker: BrokerProcess, topic: str, is_commit: bool
) -> None:
    producer = a_producer(client, topic, 2)
    producer.send(topic, b"v")
    request = fetch_request(
        fetch_topic(topic, {0: 0}), isolation_level=READ_COMMITTED, max_wait_ms=NEVER_MS
    )
    with WireClient(broker.port) as reader:
        waiting = reader.send(request, 12)
        assert producer.end(is_commit=is_commit) is NONE
        (answer,) = reader.receive(FetchResponse, 12, waiting).topics[0].partitions
    assert answer.last_stable_offset == answer.high_watermark == 2
    aborted = [one.first_offset for one in answer.aborted_transactions or ()]
    assert aborted == ([] if is_commit else [0])


def test_a_fetch_session_names_aborted_transactions_once_they_are_decided(
    client: WireClient, topic: str
) -> None:
    producer = a_producer(client, topic, 2)
    producer.send(topic, b"lost")
    begin = fetch_request(
        fetch_topic(topic, {0: 0}), isolation_level=READ_COMMITTED, session_epoch=0
    )
    answer = client.ask(begin, FetchResponse, 12)
    (undecided,) = answer.topics[0].partitions
    assert undecided.last_stable_offset == 0
    assert list(undecided.aborted_transactions or ()) == []
    assert producer.abort() is NONE
    # Only what has changed is in the answer, and no partition is asked for by name.
    further = fetch_request(
        isolation_level=READ_COMMITTED, session_id=answer.session_id, session_epoch=1
    )
    (decided,) = client.ask(further, FetchResponse, 12).topics[0].partitions
    assert decided.last_stable_offset == decided.high_watermark == 2
    assert [one.first_offset for one in decided.aborted_transactions or ()] == [0]


@BOTH_VERSIONS
def test_a_new_producer_fences_the_one_before_it_and_aborts_what_that_left_open(
    client: WireClient, topic: str, version: int
) -> None:
    zombie = a_producer(client, topic, version)
    zombie.send(topic, b"zombie")
    successor = WireProducer(client, zombie.transactional_id, version=version)
    # The transaction is aborted first, and the client asks again.
    assert successor.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert successor.init() is NONE
    assert successor.producer_id == zombie.producer_id
    assert successor.epoch == zombie.epoch + 2
    assert zombie.write(topic, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.commit() is ErrorCode.PRODUCER_FENCED
    successor.send(topic, b"mine")
    assert successor.commit() is NONE
    assert committed_values(client, topic) == [b"mine"]


def test_producers_begin_at_the_same_time(broker: BrokerProcess) -> None:
    """The answer to each waits for the device: some come while a flush for others ends."""

    def begin(number: int) -> int:
        with WireClient(broker.port) as client:
            producer = WireProducer(client, f"one of several: {number}", version=2)
            for _ in range(BEGINNINGS):
                producer.begin()
        return producer.epoch

    with ThreadPoolExecutor(PRODUCERS) as threads:
        epochs = list(threads.map(begin, range(PRODUCERS)))
    assert epochs == [BEGINNINGS - 1] * PRODUCERS


def test_each_transaction_of_version_2_has_an_epoch_of_its_own(
    client: WireClient, topic: str
) -> None:
    producer = a_producer(client, topic, 2)
    epochs = []
    for _ in range(3):
        epochs.append(producer.epoch)
        producer.send(topic, b"v")
        assert producer.commit() is NONE
    assert epochs == [0, 1, 2]
    # A batch that is late by one transaction is no part of the next one.
    producer.epoch -= 1
    assert producer.write(topic, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_end_of_version_2_may_be_repeated(client: WireClient, topic: str) -> None:
    producer = a_producer(client, topic, 2)
    producer.send(topic, b"v")
    before = producer.epoch
    assert producer.commit() is NONE
    after, producer.epoch = producer.epoch, before
    assert producer.commit() is NONE
    assert producer.epoch == after
    producer.epoch = before
    assert producer.abort() is ErrorCode.INVALID_TXN_STATE
    assert committed_values(client, topic) == [b"v"]


def test_a_batch_of_version_1_needs_its_partition_in_the_transaction(
    client: WireClient, topic: str
) -> None:
    producer = a_producer(client, topic, 1)
    assert producer.write(topic, b"v", version=10) is ErrorCode.INVALID_TXN_STATE
    assert producer.write(topic, b"v", version=11) is ErrorCode.TRANSACTION_ABORTABLE
    assert end_offset(client, topic) == 0
    producer.send(topic, b"v")
    assert producer.commit() is NONE
    # The transaction is over, and the partition with it.
    assert producer.write(topic, b"v", version=11) is ErrorCode.TRANSACTION_ABORTABLE


def test_a_first_batch_of_version_2_must_begin_with_sequence_zero(
    client: WireClient, topic: str
) -> None:
    """A log that does not know the producer cannot have lost its earlier batches (KIP-890)."""
    producer = a_producer(client, topic, 2)
    assert producer.write(topic, b"v", skipped=3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.write(topic, b"v") is NONE
    assert producer.commit() is NONE
    old = WireProducer(client, f"old of {topic}", version=1)
    old.begin()
    assert old.add(topic, 0) is NONE
    # Version 1 may have been forgotten by the log while its transactional id lived on.
    assert old.write(topic, b"w", skipped=3) is NONE
    assert old.commit() is NONE
    assert committed_values(client, topic) == [b"v", b"w"]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_transactional_batch_needs_a_transactional_id(
    client: WireClient, make_topic: MakeTopic, is_open: bool
) -> None:
    topic = make_topic(2)
    producer = a_producer(client, topic, 2)
    if is_open:
        producer.send(topic, b"first")
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    batch = producer.batch(topic, b"v", partition=0)
    assert producer.produce(topic, [batch], transactional_id=None) == [refused]
    # The whole request, also for the plain batch that came first.
    plain = ProducePartition(index=1, records=memoryview(encode_batch([A_RECORD])))
    assert producer.produce(topic, [plain, batch], transactional_id=None) == [refused] * 2
    assert end_offset(client, topic, partition=0) == is_open
    assert end_offset(client, topic, partition=1) == 0
    assert producer.produce(topic, [plain], transactional_id=None) == [NONE]


@BOTH_VERSIONS
def test_a_request_has_batches_of_one_transactional_producer(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(2)
    producer = a_producer(client, topic, version)
    other = WireProducer(client, f"other than {topic}", version=version)
    other.begin()
    if version == 1:
        assert producer.add(topic, 0) is NONE
    batches = [
        producer.batch(topic, b"v", partition=0),
        other.batch(topic, b"w", partition=1),
    ]
    refused = [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    codes = producer.produce(topic, batches, transactional_id=producer.transactional_id)
    assert codes == refused
    assert [end_offset(client, topic, partition=index) for index in range(2)] == [0, 0]


def test_only_partitions_with_a_valid_batch_of_the_transaction_join_it(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(4)
    producer = a_producer(client, topic, 2)
    plain = memoryview(encode_batch([A_RECORD]))
    cut = producer.batch(topic, b"cut", partition=2).records
    assert cut is not None
    batches = [
        producer.batch(topic, b"v", partition=0),
        ProducePartition(index=1, records=plain),
        ProducePartition(index=2, records=cut[:-1]),
        ProducePartition(index=3, records=None),
    ]
    codes = producer.produce(topic, batches, transactional_id=producer.transactional_id)
    assert codes[:2] == [NONE, NONE]
    assert NONE not in codes[2:]
    (joined,) = describe(client, producer.transactional_id).topics
    assert list(joined.partitions) == [0]


def test_partitions_that_do_not_exist_are_not_added_and_no_others_with_them(
    client: WireClient, topic: str
) -> None:
    producer = a_producer(client, topic, 1)
    assert producer.add(topic, 5) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.add(topic, 0, 5) is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert producer.write(topic, b"v") is ErrorCode.TRANSACTION_ABORTABLE


def test_a_client_adds_none_of_the_brokers_own_topics_to_its_transaction(
    client: WireClient, topic: str, group_id: str
) -> None:
    producer = a_producer(client, topic, 1)
    # Now both topics exist.
    assert producer.send_offset(group_id, topic, 7) is NONE
    for internal in ("__consumer_offsets", "__transaction_state"):
        assert producer.add(internal, 0) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert producer.commit() is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == 7


@BOTH_VERSIONS
def test_a_transaction_ends_that_has_as_many_partitions_as_its_record_holds(
    tmp_path: Path, version: int
) -> None:
    """The record of its decision has more about each of them."""
    partition_count = 100
    settings = {"message.max.bytes": "600", "transaction.state.log.num.partitions": "1"}
    with (
        BrokerProcess(tmp_path, settings=settings) as broker,
        WireClient(broker.port) as client,
    ):
        create_topic(client, "many", partition_count)
        producer = a_producer(client, "many", version)
        if version == 1:
            assert producer.add("many", *range(partition_count)) is NONE
        codes = producer.write_together("many", b"x", partitions=range(partition_count))
        assert codes == [NONE] * partition_count
        assert producer.commit() is NONE
        last = partition_count - 1
        assert committed_values(client, "many", partition=last) == [b"x"]


def test_only_the_producer_of_a_transactional_id_works_on_its_transaction(
    client: WireClient, topic: str
) -> None:
    producer = a_producer(client, topic, 1)
    stranger = WireProducer(client, producer.transactional_id, version=1)
    stranger.producer_id, stranger.epoch = producer.producer_id + 1, 0
    assert stranger.add(topic, 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.commit() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    unknown = WireProducer(client, f"nobody of {topic}", version=1)
    unknown.producer_id, unknown.epoch = producer.producer_id, 0
    assert unknown.add(topic, 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert unknown.commit() is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_transaction_timeout_has_bounds(client: WireClient, topic: str) -> None:
    producer = WireProducer(client, f"id of {topic}", version=1)
    for timeout_ms in (-1, 0, 15 * 60_000 + 1):
        assert producer.init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    producer.transactional_id = ""
    assert producer.init() is ErrorCode.INVALID_REQUEST


@BOTH_VERSIONS
def test_offsets_count_once_their_transaction_is_committed(
    client: WireClient, topic: str, group_id: str, version: int
) -> None:
    producer = a_producer(client, topic, version)
    assert producer.send_offset(group_id, topic, 7) is NONE
    unstable = offset_of(client, group_id, topic, is_stable_only=True)
    assert unstable.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert offset_of(client, group_id, topic, is_stable_only=False).committed_offset == -1
    assert producer.commit() is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == 7
    assert producer.send_offset(group_id, topic, 9) is NONE
    assert producer.abort() is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == 7


@BOTH_VERSIONS
def test_offsets_of_a_member_need_its_generation(
    broker: BrokerProcess, client: WireClient, topic: str, group_id: str, version: int
) -> None:
    """A consumer that has lost its partitions cannot commit for them (KIP-447)."""
    producer = a_producer(client, topic, version)
    member = GroupMember(broker.port, group_id, topics=[topic])
    member.join()
    me, generation = member.member_id, member.generation

    def send(offset: int, member_id: str, generation: int) -> ErrorCode:
        return producer.send_offset(
            group_id, topic, offset, member_id=member_id, generation=generation
        )

    assert send(1, "somebody", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert send(2, me, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    # The group has not ended its rebalance, which matters to plain commits alone.
    assert send(3, me, generation) is NONE
    # Older clients name no member.
    assert send(4, "", -1) is NONE
    assert producer.commit() is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == 4
    member.leave()
    member.close()
    assert send(5, me, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def join_new_protocol(
    client: WireClient, group_id: str, topic: str
) -> ConsumerGroupHeartbeatResponse:
    joined = client.ask(
        ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id="me",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
        ),
        ConsumerGroupHeartbeatResponse,
        1,
    )
    assert joined.error_code == 0, joined
    return joined


@BOTH_VERSIONS
def test_offsets_of_a_member_of_the_new_protocol_need_its_epoch(
    client: WireClient, topic: str, group_id: str, version: int
) -> None:
    joined = join_new_protocol(client, group_id, topic)
    producer = a_producer(client, topic, version)

    def send(offset: int, member_id: str, epoch: int) -> ErrorCode:
        return producer.send_offset(group_id, topic, offset, member_id=member_id, generation=epoch)

    assert send(1, "somebody", joined.member_epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    # Before version 6 of TxnOffsetCommit the code of the classic protocol (KIP-1319).
    for epoch in (joined.member_epoch + 1, joined.member_epoch - 1):
        assert send(2, "me", epoch) is ErrorCode.ILLEGAL_GENERATION
    assert send(3, "me", joined.member_epoch) is NONE
    # Older clients name no member.
    assert send(4, "", -1) is NONE
    assert producer.commit() is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == 4


@BOTH_VERSIONS
def test_a_producer_that_recovers_writes_on_also_after_a_repeated_call(
    client: WireClient, topic: str, version: int
) -> None:
    """KIP-360: it brings its id and epoch, and may not have seen the first answer."""
    producer = a_producer(client, topic, version)
    producer.send(topic, b"first")
    assert producer.commit() is NONE
    request = InitProducerIdRequest(
        transactional_id=producer.transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )
    answers = [client.ask(request, InitProducerIdResponse, 5) for _ in range(2)]
    for answer in answers:
        assert (answer.error_code, answer.producer_id) == (0, producer.producer_id)
        assert answer.producer_epoch == producer.epoch + 1
    before = producer.epoch
    producer.become(answers[0].producer_id, answers[0].producer_epoch)
    producer.send(topic, b"second")
    assert producer.commit() is NONE
    assert committed_values(client, topic) == [b"first", b"second"]
    # Whoever has the former epoch is fenced.
    producer.become(producer.producer_id, before)
    assert producer.try_send(topic, b"late") is not NONE


@BOTH_VERSIONS
def test_offsets_of_a_group_that_does_not_exist_need_no_member(
    client: WireClient, topic: str, group_id: str, version: int
) -> None:
    producer = a_producer(client, topic, version)
    refused = producer.send_offset(group_id, topic, 1, member_id="me", generation=1)
    assert refused is ErrorCode.ILLEGAL_GENERATION
    assert producer.send_offset(group_id, topic, 1) is NONE
    assert producer.send_offset("", topic, 1) is ErrorCode.INVALID_GROUP_ID
    assert producer.abort() is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == -1


def test_offsets_of_a_topic_id_are_those_of_its_topic_and_are_refused_as_plain_ones(
    client: WireClient, topic: str, group_id: str
) -> None:
    """TxnOffsetCommit 6 (KIP-1319)."""
    topic_id = describe_topic(client, topic).topic_id
    producer = a_producer(client, topic, 2)
    send = partial(producer.send_offset, group_id, topic, topic_id=topic_id)
    assert send(1, member_id="me", generation=1) is ErrorCode.GROUP_ID_NOT_FOUND
    joined = join_new_protocol(client, group_id, topic)
    assert send(2, member_id="me", generation=joined.member_epoch - 1) is (
        ErrorCode.STALE_MEMBER_EPOCH
    )
    assert send(3, partition=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = producer.send_offset(group_id, topic, 4, topic_id=uuid.uuid4())
    assert unknown is ErrorCode.UNKNOWN_TOPIC_ID
    assert send(5, member_id="me", generation=joined.member_epoch) is NONE
    assert producer.commit() is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == 5


def test_an_offset_in_a_transaction_keeps_its_metadata(client: WireClient, topic: str) -> None:
    producer = a_producer(client, topic, 2)
    assert producer.send_offset("noted", topic, 5, metadata="since noon") is NONE
    assert producer.commit() is NONE
    found = offset_of(client, "noted", topic, is_stable_only=True)
    assert (found.committed_offset, found.metadata) == (5, "since noon")


def test_a_later_plain_commit_wins_over_one_in_a_transaction(
    client: WireClient, topic: str, group_id: str
) -> None:
    producer = a_producer(client, topic, 2)
    assert producer.send_offset(group_id, topic, 7) is NONE
    assert commit(client, group_id, {(topic, 0): 9}) == [0]
    assert producer.commit() is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == 9


@BOTH_VERSIONS
def test_the_later_of_two_commits_in_transactions_wins_whichever_ends_first(
    client: WireClient, topic: str, group_id: str, version: int
) -> None:
    first, second = (a_producer(client, f"{topic}{n}", version) for n in (1, 2))
    assert first.send_offset(group_id, topic, 5) is NONE
    assert second.send_offset(group_id, topic, 7) is NONE
    assert second.commit() is NONE
    assert first.commit() is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == 7


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_group_is_deleted_with_the_offsets_that_are_pending_in_it(
    client: WireClient, topic: str, group_id: str, is_commit: bool
) -> None:
    producer = a_producer(client, topic, 2)
    assert producer.send_offset(group_id, topic, 5) is NONE
    request = DeleteGroupsRequest(groups_names=[group_id])
    (deleted,) = client.ask(request, DeleteGroupsResponse, 2).results
    assert deleted.error_code == NONE
    assert producer.end(is_commit=is_commit) is NONE
    assert offset_of(client, group_id, topic, is_stable_only=True).committed_offset == -1


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
def test_old_versions_are_fenced_with_the_code_that_they_know(
    client: WireClient, topic: str, group_id: str, version: int, code: ErrorCode
) -> None:
    zombie = a_producer(client, topic, 1)
    WireProducer(client, zombie.transactional_id, version=1).begin()
    me = {
        "transactional_id": zombie.transactional_id,
        "producer_id": zombie.producer_id,
        "producer_epoch": zombie.epoch,
    }
    ended = client.ask(EndTxnRequest(committed=True, **me), EndTxnResponse, version)
    offsets = client.ask(
        AddOffsetsToTxnRequest(group_id=group_id, **me), AddOffsetsToTxnResponse, version
    )
    added = client.ask(
        AddPartitionsToTxnRequest(
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])], **me
        ),
        AddPartitionsToTxnResponse,
        version,
    )
    (partition,) = added.results_by_topic[0].results_by_partition
    codes = {ended.error_code, offsets.error_code, partition.partition_error_code}
    assert codes == {code}


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)]
)
def test_a_producer_that_recovers_too_late_is_fenced(
    client: WireClient, topic: str, version: int, code: ErrorCode
) -> None:
    """It brings its id and epoch (KIP-360), and another one has begun meanwhile."""
    late = a_producer(client, topic, 1)
    for _ in range(2):
        WireProducer(client, late.transactional_id, version=1).begin()
    request = InitProducerIdRequest(
        transactional_id=late.transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=late.producer_id,
        producer_epoch=late.epoch,
    )
    assert client.ask(request, InitProducerIdResponse, version).error_code == code


def test_brokers_verify_several_transactions_in_one_request(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    producers = [WireProducer(client, f"{name} of {topic}", version=1) for name in ("a", "b")]
    for producer in producers:
        producer.begin()
    assert producers[0].add(topic, 0) is NONE
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                verify_only=True,
                topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])],
            )
            for producer in producers
        ]
    )
    answer = client.ask(request, AddPartitionsToTxnResponse, 5)
    codes = [
        [one.partition_error_code for one in result.topic_results[0].results_by_partition]
        for result in answer.results_by_transaction
    ]
    missing = ErrorCode.TRANSACTION_ABORTABLE
    assert codes == [[NONE, missing], [missing, missing]]


def test_brokers_add_partitions_of_several_transactions_in_one_request(
    client: WireClient, make_topic: MakeTopic
) -> None:
    """One that cannot be added does not keep the others out."""
    topic = make_topic(2)
    producers = [WireProducer(client, f"{name} of {topic}", version=2) for name in ("a", "b")]
    for producer in producers:
        producer.begin()
    fenced, adding = producers
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch + (producer is fenced),
                topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])],
            )
            for producer in producers
        ]
    )
    for version in (4, 5):
        answer = client.ask(request, AddPartitionsToTxnResponse, version)
        codes = {
            result.transactional_id: {
                one.partition_error_code for one in result.topic_results[0].results_by_partition
            }
            for result in answer.results_by_transaction
        }
        assert codes == {
            fenced.transactional_id: {ErrorCode.PRODUCER_FENCED},
            adding.transactional_id: {NONE},
        }
    assert [describe(client, one.transactional_id).transaction_state for one in producers] == [
        "Empty",
        "Ongoing",
    ]
    assert adding.write(topic, b"v", partition=1) is NONE
    assert adding.commit() is NONE
    assert committed_values(client, topic, partition=1) == [b"v"]


def test_this_broker_coordinates_every_transactional_id(
    broker: BrokerProcess, client: WireClient
) -> None:
    for version in (1, 3, 4, 6):
        request = (
            FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"])
            if version >= 4
            else FindCoordinatorRequest(key_type=1, key="a")
        )
        answer = client.ask(request, FindCoordinatorResponse, version)
        found = answer.coordinators if version >= 4 else [answer]
        assert {(one.error_code, one.port) for one in found} == {(0, broker.port)}
