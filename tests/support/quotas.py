"""Quotas of consumers: set, and whether a client is held up by them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaEntry,
    EntityData,
    QuotaOperation,
)
from tests.support.wire import WireClient

PATIENCE_S = 60.0


class Quotas:
    """Sets consumers' rates; takes them away again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._set: list[Mapping[str, str | None]] = []

    def set(self, entity: Mapping[str, str | None], value: float | None) -> None:
        if value is not None:
            self._set.append(entity)
        operation = QuotaOperation(key="consumer_byte_rate", value=value or 0, remove=value is None)
        rows = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
        request = AlterClientQuotasRequest(entries=[AlterQuotaEntry(entity=rows, ops=[operation])])
        with WireClient(self._port) as client:
            (entry,) = client.ask(request, AlterClientQuotasResponse, 1).entries
        assert entry.error_code == 0, entry

    def clear(self) -> None:
        for entity in self._set:
            self.set(entity, None)


def is_held_up(settings: Mapping[str, str], topic: str, *, records: int) -> bool:
    """Whether a consumer of so many records of partition 0 is told to wait on its way."""
    pauses: list[float] = []
    told = {"throttle_cb": lambda event: pauses.append(event.throttle_time)}
    with closing(Consumer({"group.id": "quotas", **settings, **told})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        received = 0
        deadline_s = time.monotonic() + PATIENCE_S
        while received < records and not any(pauses) and time.monotonic() < deadline_s:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                received += 1
        assert any(pauses) or received == records, "neither read nor held up"
        return any(pauses)
