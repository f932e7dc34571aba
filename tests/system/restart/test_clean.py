"""SIGTERM: the broker stops at once, leaves its disk clean, and starts again without recovery."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.storage.clock import SystemClock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.record import encode_batch
from tests.support.broker import BrokerProcess, eventually, faultless_broker
from tests.support.wire import WireClient
from tests.system.calls import (
    FIRST_TIMESTAMP_MS,
    KEEP_EVERYTHING,
    append,
    batch,
    create_topic,
    describe_topic,
    end_offset,
    fetch_request,
    fetch_topic,
    new_producer_id,
    offset_at,
    produce,
    read_all,
    records,
)

pytestmark = [pytest.mark.slow, pytest.mark.crash]

CLEAN_MARK = ".kafka_cleanshutdown"
LATEST = -1
MAX_TIMESTAMP = -3
READ_COMMITTED = 1
LONG_MS = 600_000
OUT_OF_ORDER_SEQUENCE_NUMBER = 45


@pytest.fixture(scope="module")
def stoppable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that tests of this file may stop, if they start it again."""
    with faultless_broker(tmp_path_factory.mktemp("stopped"), settings=KEEP_EVERYTHING) as running:
        yield running


def test_sigterm_leaves_a_clean_disk_and_the_next_start_repairs_nothing(
    stoppable: BrokerProcess, topic_name: str
) -> None:
    with WireClient(stoppable.port) as client:
        create_topic(client, topic_name, 2, {"segment.bytes": "1048576"})
        append(client, topic_name, *[batch(3, value=b"x" * 100_000)] * 12)
        written = read_all(client, topic_name)
        epoch = describe_topic(client, topic_name).partitions[0].leader_epoch
    assert not (stoppable.data / CLEAN_MARK).exists()
    assert stoppable.stop() == 0
    assert (stoppable.data / CLEAN_MARK).exists()
    assert "stopped" in stoppable.log_text().splitlines()[-1]
    lines_before = len(stoppable.log_text().splitlines())
    stoppable.start()
    # From here on a crash would find a disk that is not clean.
    assert not (stoppable.data / CLEAN_MARK).exists()
    started = stoppable.log_text().splitlines()[lines_before:]
    assert [line for line in started if "repair" in line or " WARNING " in line] == []
    with WireClient(stoppable.port) as client:
        assert read_all(client, topic_name) == written
        assert append(client, topic_name, batch()) == len(written)
        assert describe_topic(client, topic_name).partitions[0].leader_epoch > epoch


@pytest.mark.clients
def test_a_consumer_that_began_at_the_end_reads_on_there_after_a_restart(
    stoppable: BrokerProcess, topic_name: str
) -> None:
    """It was told an epoch that wrote nothing, and asks where that ended (KIP-320)."""
    with WireClient(stoppable.port) as client:
        create_topic(client, topic_name, 2)
        for partition in (0, 1):
            append(client, topic_name, batch(10), partition=partition)
    restart(stoppable)
    with WireClient(stoppable.port) as client:
        end = offset_at(client, topic_name, LATEST)
    restart(stoppable)
    consumer = Consumer(
        {
            "bootstrap.servers": stoppable.bootstrap,
            "group.id": topic_name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        # It asks for the first one first: when it has read of the second, it has been answered,
        # and the epoch that leads has written nothing yet.
        wanted = [(0, end.offset, end.leader_epoch), (1, 9, -1)]
        consumer.assign([Place(topic_name, p, o, leader_epoch=e) for p, o, e in wanted])
        assert read_one(consumer) == (1, 9)
        with WireClient(stoppable.port) as client:
            append(client, topic_name, batch(1))
        assert read_one(consumer) == (0, 10)
    finally:
        consumer.close()


def restart(broker: BrokerProcess) -> None:
    broker.stop()
    broker.start()


def read_one(consumer: Consumer) -> tuple[int | None, int | None]:
    message = eventually(lambda: consumer.poll(0.1))
    assert message.error() is None, message.error()
    return message.partition(), message.offset()


def test_sigterm_does_not_wait_for_long_polls_and_idle_clients(
    stoppable: BrokerProcess, topic_name: str
) -> None:
    with WireClient(stoppable.port) as client:
        create_topic(client, topic_name)
        idle = [WireClient(stoppable.port) for _ in range(5)]
        parked = [WireClient(stoppable.port) for _ in range(5)]
        for consumer in parked:
            consumer.send(fetch_request(fetch_topic(topic_name, {0: 0}), max_wait_ms=LONG_MS), 12)
        append(client, topic_name, batch())
        # The record woke them all; from now on they wait again.
        for number, consumer in enumerate(parked):
            consumer.receive(FetchResponse, 12, 1)
            consumer.send(
                fetch_request(fetch_topic(topic_name, {0: 1}), max_wait_ms=LONG_MS + number), 12
            )
        # Which fails long before the first of them would end.
        assert stoppable.stop() == 0
        assert all(waiting.closed_by_broker() for waiting in [*idle, *parked])
    for waiting in (*idle, *parked):
        waiting.close()
    stoppable.start()
    with WireClient(stoppable.port) as client:
        assert end_offset(client, topic_name) == 1


def test_a_producer_is_known_after_a_clean_stop(stoppable: BrokerProcess, topic_name: str) -> None:
    """From the snapshot, which keeps the last batch of each producer as Kafka's does."""

    def send(client: WireClient, sequence: int) -> tuple[int, int]:
        encoded = batch(2, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        answer = produce(client, topic_name, encoded)
        return answer.error_code, answer.base_offset

    with WireClient(stoppable.port) as client:
        create_topic(client, topic_name)
        producer_id = new_producer_id(client)
        assert [send(client, sequence) for sequence in (0, 2, 4)] == [(0, 0), (0, 2), (0, 4)]
    stoppable.stop()
    stoppable.start()
    with WireClient(stoppable.port) as client:
        assert send(client, 4) == (0, 4)
        assert send(client, 8)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(client, 6) == (0, 6)


def test_a_read_committed_client_finds_no_time_in_an_open_transaction(
    stoppable: BrokerProcess, topic_name: str
) -> None:
    """The folder is one that Kafka left behind in the middle of a transaction."""
    with WireClient(stoppable.port) as client:
        topic_id = create_topic(client, topic_name)
        append(client, topic_name, batch(5))
    assert stoppable.stop() == 0
    left_behind = LocalLog.open(
        stoppable.data / f"{topic_name}-0",
        topic_partition=TopicPartition(topic_name, 0),
        topic_id=topic_id,
        config=LogConfig(),
        clock=SystemClock(),
        recovery_point=0,
        log_start_offset=0,
        clean_shutdown=True,
    )
    later_ms = FIRST_TIMESTAMP_MS + 1000
    transactional = encode_batch(
        records(5, first_timestamp_ms=later_ms),
        producer_id=77,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    left_behind.append(
        memoryview(bytearray(transactional)), leader_epoch=0, origin=AppendOrigin.COORDINATOR
    )
    left_behind.close()
    stoppable.start()
    with WireClient(stoppable.port) as client:
        for timestamp, uncommitted, committed in (
            (LATEST, 10, 5),
            (MAX_TIMESTAMP, 9, -1),
            (later_ms, 5, -1),
            (FIRST_TIMESTAMP_MS + 1, 1, 1),
        ):
            found = [
                offset_at(client, topic_name, timestamp, isolation_level=isolation)
                for isolation in (0, READ_COMMITTED)
            ]
            assert [answer.offset for answer in found] == [uncommitted, committed]
            assert [answer.error_code for answer in found] == [0, 0]
