"""Consumer groups of both protocols, and the offsets that they commit."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.config.definition import GROUPS, MIB, BrokerConfigDef, key
from strandline.storage.config.log_config import INT_MAX, ConfigType


def group_keys() -> Iterator[BrokerConfigDef]:
    yield from _classic_group_keys()
    yield from _consumer_group_keys()


def _classic_group_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        GROUPS,
        "group.min.session.timeout.ms",
        ConfigType.INT,
        6000,
        "Shortest session timeout that a member may ask for, in ms.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "group.max.session.timeout.ms",
        ConfigType.INT,
        1_800_000,
        "Longest session timeout that a member may ask for, in ms.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        3000,
        "How long the first rebalance of an empty group waits for further members, in ms.",
        minimum=0,
    )
    yield key(
        GROUPS,
        "group.max.size",
        ConfigType.INT,
        INT_MAX,
        "Members that a group may have; further ones are refused.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "offsets.topic.num.partitions",
        ConfigType.INT,
        50,
        "Partitions of __consumer_offsets when it is created; the first group creates it.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "offsets.topic.segment.bytes",
        ConfigType.INT,
        100 * MIB,
        "segment.bytes of __consumer_offsets when it is created.",
        minimum=MIB,
    )
    yield key(
        GROUPS,
        "offsets.retention.minutes",
        ConfigType.INT,
        10_080,
        "Offsets are forgotten this many minutes after their group lost its last member, or after"
        " the commit where a consumer assigns its partitions itself.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        600_000,
        "Ms between two looks for offsets to forget.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "offset.metadata.max.bytes",
        ConfigType.INT,
        4096,
        "Longest text that a consumer may commit beside an offset.",
        minimum=0,
    )


def _consumer_group_keys() -> Iterator[BrokerConfigDef]:
    """Groups of the new protocol (KIP-848)."""
    yield key(
        GROUPS,
        "group.consumer.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "A member of the new group protocol is out of its group after this many ms of silence.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "group.consumer.min.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "Shortest group.consumer.session.timeout.ms that is accepted.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "group.consumer.max.session.timeout.ms",
        ConfigType.INT,
        60_000,
        "Longest group.consumer.session.timeout.ms that is accepted.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "group.consumer.heartbeat.interval.ms",
        ConfigType.INT,
        5000,
        "Members of the new group protocol are told to send a heartbeat every so many ms; they"
        " learn of a rebalance with it.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "group.consumer.min.heartbeat.interval.ms",
        ConfigType.INT,
        5000,
        "Shortest group.consumer.heartbeat.interval.ms that is accepted.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "group.consumer.max.heartbeat.interval.ms",
        ConfigType.INT,
        15_000,
        "Longest group.consumer.heartbeat.interval.ms that is accepted.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "group.consumer.max.size",
        ConfigType.INT,
        INT_MAX,
        "Members that a group of the new protocol may have; further ones are refused.",
        minimum=1,
    )
    yield key(
        GROUPS,
        "group.consumer.assignors",
        ConfigType.LIST,
        "uniform,range",
        "Assignors of the new group protocol; the first one is for members that ask for none."
        " There are `uniform` and `range`; Kafka's class names mean the same.",
    )
    yield key(
        GROUPS,
        "group.consumer.regex.refresh.interval.ms",
        ConfigType.INT,
        600_000,
        "Regular expressions that members subscribe to are looked up again after this many ms;"
        " sooner, after ten seconds, if topics came or went.",
        minimum=10_000,
    )
    yield key(
        GROUPS,
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        "Whether a group of classic consumers goes over to the new protocol when a member that"
        " speaks it joins (`upgrade`), and back when the last such member is gone (`downgrade`).",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
