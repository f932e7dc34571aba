"""Topics as clients make them."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker import BrokerProcess


@pytest.fixture
def make_topic(broker: BrokerProcess) -> Callable[..., str]:
    """Creates a topic with a fresh name: `make_topic(partitions, {config})`."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def create(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        futures = admin.create_topics(
            [NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})]
        )
        futures[name].result(60)
        return name

    return create
