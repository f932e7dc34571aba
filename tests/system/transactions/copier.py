"""A worker that copies records within transactions, and ends at the first error.

    python -m tests.system.transactions.copier BOOTSTRAP TRANSACTIONAL_ID GROUP SOURCE TARGET

It is killed at any moment; the next one of its name goes on from the committed offsets. At SIGTERM
it leaves its group, and what it has not committed aborts.
"""

from __future__ import annotations

import signal
import sys

import confluent_kafka

RECORDS_MAX = 20
PATIENCE_S = 60
# librdkafka 2.10 to 2.16 waits for ever for a group's coordinator that Metadata did not name for a
# moment, as one that was killed and is starting (its issues 5511 and 5456): the process ends then.
ALARM_S = 20


def main(bootstrap: str, transactional_id: str, group_id: str, source: str, target: str) -> None:
    """Never returns; an exception ends the process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe([source])
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
    )
    signal.alarm(ALARM_S)
    producer.init_transactions(PATIENCE_S)
    signal.alarm(0)
    while True:
        messages = [
            message
            for message in consumer.consume(RECORDS_MAX, timeout=0.2)
            if message.error() is None
        ]
        if messages:
            signal.alarm(ALARM_S)
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value(), partition=message.partition())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()),
                consumer.consumer_group_metadata(),
                PATIENCE_S,
            )
            producer.commit_transaction(PATIENCE_S)
            signal.alarm(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
