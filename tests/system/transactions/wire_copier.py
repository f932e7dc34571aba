"""A worker of transaction version 2 that copies one partition, and ends at the first error.

    python -m tests.system.transactions.wire_copier BOOTSTRAP TRANSACTIONAL_ID GROUP SOURCE TARGET N

librdkafka speaks version 1, so its producer is one on a bare connection. It is killed at any
moment; the next one of its name goes on from the committed offset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import confluent_kafka

from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import eventually
from tests.support.wire import WireClient
from tests.system.transactions.copier import PATIENCE_S, RECORDS_MAX
from tests.system.transactions.wire_producer import WireProducer


def main(
    bootstrap: str, transactional_id: str, group_id: str, source: str, target: str, number: str
) -> None:
    """Never returns; an exception ends the process."""
    partition = int(number)
    with WireClient(int(bootstrap.rpartition(":")[2])) as client:
        producer = WireProducer(client, transactional_id, version=2)
        # Offsets of the one before it are stable once its transaction has ended.
        producer.begin()
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group_id,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        place = confluent_kafka.TopicPartition(source, partition)
        (committed,) = consumer.committed([place], PATIENCE_S)
        place.offset = max(committed.offset, 0)
        consumer.assign([place])
        while True:
            messages = [
                message
                for message in consumer.consume(RECORDS_MAX, timeout=0.2)
                if message.error() is None
            ]
            if messages:
                values = [message.value() for message in messages]
                after = messages[-1].offset() + 1
                retried(partial(producer.try_send, target, *values, partition=partition))
                retried(partial(producer.send_offset, group_id, source, after, partition=partition))
                retried(producer.commit)


def retried(call: Callable[[], ErrorCode]) -> None:
    """Repeats the call while the transaction before this one gets its markers."""
    codes: list[ErrorCode] = []

    def is_answered() -> bool:
        codes.append(call())
        return codes[-1] is not ErrorCode.CONCURRENT_TRANSACTIONS

    eventually(is_answered)
    assert codes[-1] is ErrorCode.NONE, codes[-1]


if __name__ == "__main__":
    main(*sys.argv[1:])
