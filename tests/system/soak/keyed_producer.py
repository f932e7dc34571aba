"""The producer of the compacted topic: few keys, written again and again, some of them deleted."""

from __future__ import annotations

import random
import time

from confluent_kafka import KafkaError, Message, Producer

from tests.system.soak.clients import VALUE_BYTES, KeenProducer
from tests.system.soak.model import SEQUENCE_BITS, PartitionModel, make_value
from tests.system.soak.table import Sent, TableModel

KEYS = 240
# The others are written so seldom that their last records, tombstones too, go through every tier
# and round.
HOT_KEYS = 12
HOT_SHARE = 0.7
TOMBSTONE_SHARE = 0.15
# A log that ends with a tombstone ends elsewhere once the tombstone's time is over.
LAST_KEY = b"last"


class KeyedProducer(KeenProducer):
    """An idempotent librdkafka producer of records with keys; its partitions are TableModels."""

    def _send(
        self, producer: Producer, model: PartitionModel, sequence: int, chance: random.Random
    ) -> None:
        # Which keys are hot moves on.
        first_hot = sequence // 100 * HOT_KEYS // 2
        is_hot = chance.random() < HOT_SHARE
        number = first_hot + chance.randrange(HOT_KEYS) if is_hot else chance.randrange(KEYS)
        is_tombstone = chance.random() < TOMBSTONE_SHARE
        padding = None if is_tombstone else chance.randbytes(chance.randint(*VALUE_BYTES))
        self._send_row(producer, model, b"%d" % (number % KEYS), sequence, padding)

    def _send_last(self, producer: Producer) -> None:
        for model in self._partitions:
            self._send_row(producer, model, LAST_KEY, self.sent_count, b"")

    def _send_row(
        self,
        producer: Producer,
        model: PartitionModel,
        key: bytes,
        sequence: int,
        padding: bytes | None,
    ) -> None:
        assert isinstance(model, TableModel), model
        code = None if padding is None else self.number << SEQUENCE_BITS | sequence
        value = None
        if code is not None and padding is not None:
            value = make_value(model.topic, model.number, model.incarnation, code, padding)
        sent_s = time.monotonic()

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._unanswered[model.name] -= 1
            # Without an offset, as PartitionModel.acknowledge says, it stays pending.
            offset = message.offset()
            if error is None and offset is not None:
                model.acknowledge_row(offset, Sent(key, code), sent_s=sent_s)
            elif error is not None:
                self._violations.add(f"{self.name}: {model.name} refused a record: {error}")

        model.sending(key)
        producer.produce(
            model.topic, partition=model.number, key=key, value=value, on_delivery=delivered
        )
        self.sent_count += 1
