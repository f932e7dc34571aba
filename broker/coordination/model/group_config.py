"""Configuration of consumer groups and their offsets."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.broker.coordination.model.classic_messages import GroupRules
from strandline.broker.coordination.model.consumer_messages import ConsumerRules
from strandline.storage.config.definition import INT, LONG, MIB, MINUTE_MS, key, section


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Configuration of the group coordinator: both kinds of groups, and committed offsets."""

    session_timeout_ms_min: int = key(
        "group.min.session.timeout.ms",
        INT,
        6000,
        "Shortest session timeout that a member may ask for, in ms.",
        minimum=1,
    )
    session_timeout_ms_max: int = key(
        "group.max.session.timeout.ms",
        INT,
        1_800_000,
        "Longest session timeout that a member may ask for, in ms.",
        minimum=1,
    )
    classic: GroupRules = section(GroupRules)
    offsets_partition_count: int = key(
        "offsets.topic.num.partitions",
        INT,
        50,
        "Partitions of __consumer_offsets when it is created; the first group creates it.",
        minimum=1,
    )
    offsets_replicas_max: int = key(
        "offsets.topic.replication.factor",
        INT,
        3,
        "Replicas of __consumer_offsets when it is created; where fewer brokers are registered, as"
        " many as these.",
        minimum=1,
        maximum=32767,
    )
    offsets_segment_bytes: int = key(
        "offsets.topic.segment.bytes",
        INT,
        100 * MIB,
        "segment.bytes of __consumer_offsets when it is created.",
        minimum=MIB,
    )
    offsets_retention_ms: int = key(
        "offsets.retention.minutes",
        INT,
        10_080,
        "The broker forgets offsets this many minutes after their group lost its last member, or"
        " after the commit of a consumer that assigns its partitions itself.",
        minimum=1,
        convert=lambda minutes: minutes * MINUTE_MS,
    )
    offsets_retention_check_interval_ms: int = key(
        "offsets.retention.check.interval.ms",
        LONG,
        600_000,
        "Ms between two checks for expired offsets.",
        minimum=1,
    )
    offset_metadata_length_max: int = key(
        "offset.metadata.max.bytes",
        INT,
        4096,
        "Longest text that a consumer may commit beside an offset.",
        minimum=0,
    )
    consumer: ConsumerRules = section(ConsumerRules)
