"""What administrators ask through confluent-kafka's and kafka-python's admin clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient

from tests.support.broker import BrokerProcess

pytestmark = [pytest.mark.clients, pytest.mark.slow]

T = TypeVar("T")


def only(futures: Mapping[object, Future[T]]) -> T:
    (future,) = futures.values()
    return future.result(60)


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def test_a_topic_with_assigned_replicas_is_checked_and_then_created(admin: AdminClient) -> None:
    name = "assigned"
    good = NewTopic(name, 2, replica_assignment=[[1], [1]], config={"retention.ms": "1000"})
    only(admin.create_topics([good], validate_only=True))
    assert name not in admin.list_topics(timeout=60).topics
    only(admin.create_topics([good]))
    described = only(admin.describe_topics(TopicCollection([name])))
    assert [[node.id for node in place.replicas] for place in described.partitions] == [[1], [1]]
    for assignment in ([[7]], [[1, 1]]):
        wrong = NewTopic("wrong", 1, replica_assignment=assignment)
        with pytest.raises(KafkaException, match="INVALID_REPLICA_ASSIGNMENT"):
            only(admin.create_topics([wrong]))


def test_configurations_come_with_source_and_synonyms(
    admin: AdminClient, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1, {"retention.ms": "5000"})
    rows = only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    row = rows["retention.ms"]
    assert (row.value, row.is_default, row.is_read_only, row.is_sensitive) == (
        "5000",
        False,
        False,
        False,
    )
    assert ConfigSource(row.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert "log.retention.hours" in row.synonyms
    assert rows["cleanup.policy"].is_default


def test_allowed_operations_are_told_when_they_are_asked_for(
    admin: AdminClient, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    cluster = admin.describe_cluster(include_authorized_operations=True).result(60)
    assert AclOperation.CREATE in cluster.authorized_operations
    wanted = TopicCollection([topic])
    asked = only(admin.describe_topics(wanted, include_authorized_operations=True))
    assert {AclOperation.READ, AclOperation.WRITE} <= set(asked.authorized_operations)
    assert only(admin.describe_topics(wanted)).authorized_operations is None
    assert admin.describe_cluster().result(60).authorized_operations is None


def test_kafka_python_deletes_a_topic_by_its_id(
    broker: BrokerProcess, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    (described,) = admin.describe_topics([topic])
    (deleted,) = admin.delete_topics([topic])["topics"]
    assert deleted["error_code"] == 0
    assert str(deleted["topic_id"]) == str(described["topic_id"])
    assert topic not in admin.list_topics()
    admin.close()
