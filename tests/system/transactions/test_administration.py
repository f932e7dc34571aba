"""What administrators see of transactions, and what they and the time end."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest

from strandline.broker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import MakeTopic, create_topic, fetch
from tests.system.transactions.admin_calls import describe, producers_of, write_marker
from tests.system.transactions.committed import committed_values
from tests.system.transactions.wire_producer import WireProducer

pytestmark = pytest.mark.slow

BROKER_SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
NONE = ErrorCode.NONE


def open_transaction(
    client: WireClient,
    topic: str,
    *,
    partition: int = 0,
    timeout_ms: int = 60_000,
    version: int = 1,
) -> WireProducer:
    producer = WireProducer(client, f"id of {topic} {partition}", version=version)
    producer.begin(timeout_ms=timeout_ms)
    producer.send(topic, b"open", partition=partition)
    return producer


def listed(
    client: WireClient,
    *,
    states: tuple[str, ...] = (),
    producer_ids: tuple[int, ...] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
    version: int = 2,
) -> ListTransactionsResponse:
    request = ListTransactionsRequest(
        state_filters=states,
        producer_id_filters=producer_ids,
        duration_filter=duration_ms,
        transactional_id_pattern=pattern,
    )
    return client.ask(request, ListTransactionsResponse, version)


def ids_of(answer: ListTransactionsResponse) -> set[str]:
    assert answer.error_code == 0, answer
    return {one.transactional_id for one in answer.transaction_states}


def test_a_transaction_is_described_by_state_partitions_and_start(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    producer = open_transaction(client, topic, partition=2)
    found = describe(client, producer.transactional_id)
    assert (found.error_code, found.transaction_state) == (0, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
    assert [(one.topic, list(one.partitions)) for one in found.topics] == [(topic, [2])]
    assert found.transaction_timeout_ms == 60_000
    assert found.transaction_start_time_ms > 0
    assert producer.commit() is NONE
    assert describe(client, producer.transactional_id).transaction_state == "CompleteCommit"
    unknown = describe(client, f"nobody of {topic}")
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(client, "").error_code == ErrorCode.INVALID_REQUEST


def test_transactional_ids_are_listed_by_every_filter(client: WireClient, topic: str) -> None:
    producer = open_transaction(client, topic)
    other = WireProducer(client, f"other of {topic}", version=2)
    other.begin()
    mine, others = producer.transactional_id, other.transactional_id
    assert {mine, others} <= ids_of(listed(client))
    assert mine in ids_of(listed(client, states=("Ongoing",)))
    assert others not in ids_of(listed(client, states=("Ongoing",)))
    assert ids_of(listed(client, producer_ids=(producer.producer_id,))) == {mine}
    assert ids_of(listed(client, pattern=f"other of {topic}")) == {others}
    assert ids_of(listed(client, pattern=f".*{topic}.*")) == {mine, others}
    for version in (1, 2):
        long_ones = ids_of(listed(client, duration_ms=3_600_000, version=version))
        # As in Kafka, one without a transaction has run for ever.
        assert (mine in long_ones, others in long_ones) == (False, True)
        # In its first millisecond it has not run for longer than 0 ms.
        assert eventually(lambda: mine in ids_of(listed(client, duration_ms=0, version=version)))  # noqa: B023
    # Older versions have no such filter.
    assert {mine, others} <= ids_of(listed(client, version=0))
    unknown = listed(client, states=("Nonsense",))
    assert list(unknown.unknown_state_filters) == ["Nonsense"]
    assert ids_of(unknown) == set()
    invalid = listed(client, pattern="(")
    assert invalid.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert producer.abort() is NONE


def test_an_open_transaction_is_a_producers_in_its_partition(
    client: WireClient, topic: str
) -> None:
    producer = open_transaction(client, topic)
    (found,) = producers_of(client, topic)
    assert found.producer_id == producer.producer_id
    assert found.current_txn_start_offset == 0
    assert producer.commit() is NONE
    (found,) = producers_of(client, topic)
    assert found.current_txn_start_offset == -1
    assert found.coordinator_epoch >= 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_administrator_ends_a_transaction_that_hangs(
    client: WireClient, topic: str, version: int
) -> None:
    open_transaction(client, topic)
    (found,) = producers_of(client, topic)
    assert write_marker(client, found, topic, version=version) is NONE
    assert producers_of(client, topic)[0].current_txn_start_offset == -1
    answer = fetch(client, topic, 0)
    assert answer.last_stable_offset == answer.high_watermark
    assert committed_values(client, topic) == []


def test_a_marker_of_an_older_coordinator_is_refused(client: WireClient, topic: str) -> None:
    producer = open_transaction(client, topic)
    (found,) = producers_of(client, topic)
    assert write_marker(client, found, topic, coordinator_epoch=7) is NONE
    refused = write_marker(client, found, topic, coordinator_epoch=6)
    assert refused is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    missing = write_marker(client, found, f"no {topic}")
    assert missing is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    del producer


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_times_out_is_aborted_by_the_broker_and_its_producer_fenced(
    client: WireClient, topic: str, version: int
) -> None:
    producer = open_transaction(client, topic, timeout_ms=200, version=version)

    def is_aborted() -> bool:
        state = describe(client, producer.transactional_id).transaction_state
        return state == "CompleteAbort"

    eventually(is_aborted)
    assert producer.commit() is ErrorCode.PRODUCER_FENCED
    assert producer.write(topic, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed_values(client, topic) == []
    # The producer recovers by beginning anew.
    producer.begin()
    producer.send(topic, b"again")
    assert producer.commit() is NONE
    assert committed_values(client, topic) == [b"again"]


@pytest.mark.clients
def test_librdkafka_is_fenced_where_it_commits_later_than_its_timeout(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    """With INVALID_TXN_STATE it would tell of a fault of its own."""
    producers: list[confluent_kafka.Producer] = []

    def has_sent() -> bool:
        """On a loaded machine the first one may be too late with its record already."""
        producers.append(impatient(broker, topic))
        refused: list[confluent_kafka.KafkaError | None] = []
        producers[-1].produce(topic, b"late", on_delivery=lambda error, _: refused.append(error))
        producers[-1].flush()
        return refused == [None]

    eventually(has_sent)
    eventually(lambda: describe(client, topic).transaction_state == "CompleteAbort")
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        producers[-1].commit_transaction(60)
    assert raised.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    assert committed_values(client, topic) == []


def impatient(broker: BrokerProcess, transactional_id: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 1000,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    return producer


@pytest.mark.parametrize("version", [1, 2])
def test_an_expired_id_is_refused_and_begins_anew(tmp_path: Path, version: int) -> None:
    settings = {
        "transactional.id.expiration.ms": "1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
        "transaction.state.log.num.partitions": "1",
    }
    with BrokerProcess(tmp_path, settings=settings) as own, WireClient(own.port) as client:
        create_topic(client, "t", 1)
        producer = WireProducer(client, "idle", version=version)
        write_anew(producer, b"before")
        before = producer.producer_id
        eventually(lambda: not ids_of(listed(client)))
        assert producer.try_send("t", b"late") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        write_anew(producer, b"after")
        assert producer.producer_id != before
        assert committed_values(client, "t") == [b"before", b"after"]


def write_anew(producer: WireProducer, value: bytes) -> None:
    """One transaction of a new producer; on a slow machine its id may expire before that begins."""

    def written() -> bool:
        producer.begin()
        return producer.try_send("t", value) is NONE

    eventually(written)
    assert producer.commit() is NONE
