"""What topics are created with, and what is remembered of their producers."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.config.definition import TOPICS, BrokerConfigDef, key
from strandline.storage.config.log_config import ConfigType


def topic_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        TOPICS,
        "num.partitions",
        ConfigType.INT,
        1,
        "Partitions of a topic that is created without a count.",
        minimum=1,
    )
    yield key(
        TOPICS,
        "default.replication.factor",
        ConfigType.SHORT,
        1,
        "Replicas of a topic that is created without a count; one broker can hold only one.",
        minimum=1,
        maximum=1,
    )
    yield key(
        TOPICS,
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        True,
        "Create a topic when a client that allows it asks for its metadata.",
    )
    yield key(TOPICS, "delete.topic.enable", ConfigType.BOOLEAN, True, "Allow DeleteTopics.")
    yield key(
        TOPICS,
        "max.request.partition.size.limit",
        ConfigType.INT,
        2000,
        "Most partitions in one answer to DescribeTopicPartitions, whatever the client asks for.",
        minimum=1,
    )
    yield key(
        TOPICS,
        "producer.id.expiration.ms",
        ConfigType.INT,
        86_400_000,
        "An idle producer's sequence numbers are forgotten after this many ms.",
        minimum=1,
        dynamic=True,
    )
