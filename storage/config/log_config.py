"""Topic configuration for the log, tiering and retention: typed and resolved.

A topic stores only properties set on it. The others come from the broker's synonym of the property
(`log.segment.bytes` for `segment.bytes`), so `LogConfig.resolve` takes both maps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.storage.config.definition import (
    BOOLEAN,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    ConfigDef,
    key,
    keys_of,
    nearest_name,
    parse_config_value,
    with_values,
)
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import TimestampType

__all__ = [
    "CLEANUP_POLICIES",
    "COMPRESSION_TYPES",
    "INT_MAX",
    "LONG_MAX",
    "SAME_AS_LOCAL",
    "SAME_AS_TOTAL",
    "SEGMENT_BYTES_MIN",
    "TOPIC_CONFIGS",
    "UNLIMITED",
    "ConfigDef",
    "LogConfig",
    "parse_topic_properties",
    "nearest_name",
    "parse_config_value",
]


# Kafka 4.0 raised the minimum of segment.bytes: smaller segments are tiny objects in the store.
SEGMENT_BYTES_MIN = 1024 * 1024
UNLIMITED = -1
SAME_AS_TOTAL = -2
SAME_AS_LOCAL = -1

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLEANUP_POLICIES = ("compact", "delete")

# The storage classes of single objects in S3; those that need a restore before a read come last.
STORAGE_CLASSES = (
    "DEFAULT",
    "STANDARD",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER_IR",
    "GLACIER",
    "DEEP_ARCHIVE",
)
# Classes whose objects must be restored before a read.
RESTORED_FIRST = frozenset({"GLACIER", "DEEP_ARCHIVE"})
OBJECT_TAGS_MAX = 10

# An archived segment made of several has at most this part of the retention, in time and in bytes.
RETENTION_PARTS = 8

# A partition and a broker.
_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")

LZ4_LEVEL_DEFAULT = 9
_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}
_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Typed topic configuration; every key is a field, its dots turned to underscores."""

    cleanup_policy: tuple[str, ...] = key(
        "cleanup.policy",
        LIST,
        "delete",
        "What happens to old records: delete by age and size, compact (keep the latest of each"
        " key), or both.",
        "log.cleanup.policy",
        choices=CLEANUP_POLICIES,
    )
    compression_type: str = key(
        "compression.type",
        STRING,
        "producer",
        "Codec of stored batches; producer keeps the producer's codec, with others the broker"
        " recompresses each batch that has another one.",
        "compression.type",
        choices=COMPRESSION_TYPES,
    )
    compression_gzip_level: int = key(
        "compression.gzip.level",
        INT,
        -1,
        "gzip level when the broker compresses; -1 is the library's default, 0 is refused.",
        "compression.gzip.level",
        minimum=-1,
        maximum=9,
    )
    compression_lz4_level: int = key(
        "compression.lz4.level",
        INT,
        LZ4_LEVEL_DEFAULT,
        "lz4 level when the broker compresses.",
        "compression.lz4.level",
        minimum=1,
        maximum=17,
    )
    compression_zstd_level: int = key(
        "compression.zstd.level",
        INT,
        3,
        "zstd level when the broker compresses.",
        "compression.zstd.level",
        minimum=-131072,
        maximum=22,
    )
    delete_retention_ms: int = key(
        "delete.retention.ms",
        LONG,
        86_400_000,
        "How long tombstones of compacted topics are kept, in ms.",
        "log.cleaner.delete.retention.ms",
        minimum=0,
    )
    file_delete_delay_ms: int = key(
        "file.delete.delay.ms",
        LONG,
        60_000,
        "Wait before a removed local segment file is unlinked, in ms.",
        "log.segment.delete.delay.ms",
        minimum=0,
    )
    flush_messages: int = key(
        "flush.messages",
        LONG,
        LONG_MAX,
        "Records between forced fsyncs of the log.",
        "log.flush.interval.messages",
        minimum=1,
    )
    flush_ms: int = key(
        "flush.ms",
        LONG,
        LONG_MAX,
        "Milliseconds between forced fsyncs of the log.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        minimum=0,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = key(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "Replicas that follower.replication.throttled.rate bounds: * or partition:broker,...",
    )
    index_interval_bytes: int = key(
        "index.interval.bytes",
        INT,
        4096,
        "Log bytes between two index entries.",
        "log.index.interval.bytes",
        minimum=0,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = key(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "Replicas that leader.replication.throttled.rate bounds: * or partition:broker,...",
    )
    local_retention_bytes: int = key(
        "local.retention.bytes",
        LONG,
        SAME_AS_TOTAL,
        "Local bytes kept per partition of a tiered topic; -2 means retention.bytes.",
        "log.local.retention.bytes",
        minimum=-2,
    )
    local_retention_ms: int = key(
        "local.retention.ms",
        LONG,
        SAME_AS_TOTAL,
        "Local age kept of a tiered topic, in ms; -2 means retention.ms.",
        "log.local.retention.ms",
        minimum=-2,
    )
    max_compaction_lag_ms: int = key(
        "max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        "Longest time that a record stays uncompacted, in ms.",
        "log.cleaner.max.compaction.lag.ms",
        minimum=1,
    )
    max_message_bytes: int = key(
        "max.message.bytes",
        INT,
        1_048_588,
        "Largest record batch, in bytes.",
        "message.max.bytes",
        minimum=0,
    )
    message_timestamp_after_max_ms: int = key(
        "message.timestamp.after.max.ms",
        LONG,
        3_600_000,
        "How far a record may be ahead of the broker's clock, in ms.",
        "log.message.timestamp.after.max.ms",
        minimum=0,
    )
    message_timestamp_before_max_ms: int = key(
        "message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        "How far a record may be behind the broker's clock, in ms.",
        "log.message.timestamp.before.max.ms",
        minimum=0,
    )
    message_timestamp_type: TimestampType = key(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose time a record carries: the producer's or the broker's.",
        "log.message.timestamp.type",
        choices=tuple(_TIMESTAMP_TYPES),
        convert=_TIMESTAMP_TYPES.__getitem__,
    )
    min_cleanable_dirty_ratio: float = key(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        0.5,
        "Dirty part of the log at which compaction starts.",
        "log.cleaner.min.cleanable.ratio",
        minimum=0,
        maximum=1,
    )
    min_compaction_lag_ms: int = key(
        "min.compaction.lag.ms",
        LONG,
        0,
        "Shortest time that a record stays uncompacted, in ms.",
        "log.cleaner.min.compaction.lag.ms",
        minimum=0,
    )
    min_insync_replicas: int = key(
        "min.insync.replicas",
        INT,
        1,
        "Number of existing replicas that must have a record of acks=all.",
        "min.insync.replicas",
        minimum=1,
    )
    preallocate: bool = key(
        "preallocate", BOOLEAN, False, "Preallocate segment files.", "log.preallocate"
    )
    remote_copy_lag_bytes: int = key(
        "remote.copy.lag.bytes",
        LONG,
        SAME_AS_LOCAL,
        "The broker may copy a closed segment when the local log has this many newer bytes, or"
        " when remote.copy.lag.ms allows it; 0: at once, -1: the local retention in bytes.",
        "log.remote.copy.lag.bytes",
        minimum=-1,
    )
    remote_copy_lag_ms: int = key(
        "remote.copy.lag.ms",
        LONG,
        0,
        "The broker may copy a closed segment when its newest record has this age, in ms, or"
        " when remote.copy.lag.bytes allows it. 0: at once; -1: the local retention in ms, or at"
        " once if that is unlimited too.",
        "log.remote.copy.lag.ms",
        minimum=-1,
    )
    remote_log_copy_disable: bool = key(
        "remote.log.copy.disable",
        BOOLEAN,
        False,
        "Stop copying to the remote tier; archived segments stay readable.",
    )
    remote_log_delete_on_disable: bool = key(
        "remote.log.delete.on.disable",
        BOOLEAN,
        False,
        "Delete the remote data when tiering is turned off.",
    )
    remote_storage_enable: bool = key(
        "remote.storage.enable", BOOLEAN, False, "Keep closed segments in the remote tier as well."
    )
    retention_bytes: int = key(
        "retention.bytes",
        LONG,
        UNLIMITED,
        "Bytes kept per partition over both tiers; -1 is unlimited.",
        "log.retention.bytes",
        minimum=-1,
    )
    retention_ms: int = key(
        "retention.ms",
        LONG,
        604_800_000,
        "Age kept over both tiers, in ms; -1 is unlimited.",
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
        minimum=-1,
    )
    segment_bytes: int = key(
        "segment.bytes",
        INT,
        1_073_741_824,
        "Size at which the broker closes a segment.",
        "log.segment.bytes",
        minimum=SEGMENT_BYTES_MIN,
    )
    segment_index_bytes: int = key(
        "segment.index.bytes",
        INT,
        10_485_760,
        "Largest offset index of one segment.",
        "log.index.size.max.bytes",
        minimum=4,
    )
    segment_jitter_ms: int = key(
        "segment.jitter.ms",
        LONG,
        0,
        "Upper bound of the random ms that the broker subtracts from segment.ms.",
        "log.roll.jitter.ms",
        "log.roll.jitter.hours",
        minimum=0,
    )
    segment_ms: int = key(
        "segment.ms",
        LONG,
        604_800_000,
        "Age at which the broker closes a segment, in ms, also without writes to it.",
        "log.roll.ms",
        "log.roll.hours",
        minimum=1,
    )
    strandline_remote_object_tags: tuple[str, ...] = key(
        "strandline.remote.object.tags",
        LIST,
        "",
        "Tags of the topic's segment objects, as key=value; S3 takes ten at most.",
        "strandline.remote.object.tags",
    )
    strandline_remote_storage_class: str = key(
        "strandline.remote.storage.class",
        STRING,
        "DEFAULT",
        "S3 storage class of the topic's later segments; DEFAULT: the bucket's. Manifests and"
        " indexes stay in the bucket's default class. Restore segments in GLACIER and DEEP_ARCHIVE"
        " by hand before you read them.",
        "strandline.remote.storage.class",
        choices=STORAGE_CLASSES,
    )
    strandline_remote_active_segment_upload_ms: int = key(
        "strandline.remote.active.segment.upload.ms",
        LONG,
        3_600_000,
        "Longest time in ms until records are in the remote tier whose segment is open, or closed"
        " with an open transaction, or waits for the cleaner: for a restore and the lake; -1: the"
        " broker uploads only whole segments.",
        "strandline.remote.active.segment.upload.ms",
        minimum=-1,
    )
    strandline_remote_compression_type: str = key(
        "strandline.remote.compression.type",
        STRING,
        "producer",
        "Codec of later batches of the topic in the remote tier: producer leaves them as they are,"
        " zstd rewrites those that become smaller. Records, offsets and times stay; bytes do not.",
        "strandline.remote.compression.type",
        choices=("producer", "zstd"),
    )
    strandline_remote_compression_zstd_level: int = key(
        "strandline.remote.compression.zstd.level",
        INT,
        3,
        "zstd level of such batches.",
        "strandline.remote.compression.zstd.level",
        minimum=-131072,
        maximum=22,
    )
    unclean_leader_election_enable: bool = key(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Allow a replica that is not in sync to lead.",
        "unclean.leader.election.enable",
    )

    # Derived: whether appends read only the batch header, as for almost all topics. A field
    # because the hot path reads it for every batch.
    stores_as_sent: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "stores_as_sent", not self.needs_records and self.stored_codec is None
        )

    @property
    def needs_records(self) -> bool:
        """Whether an append must read single records, and not only the batch header."""
        return "compact" in self.cleanup_policy or self.message_timestamp_before_max_ms != LONG_MAX

    @property
    def stored_codec(self) -> int | None:
        """The codec of every stored batch, by its attribute number; None: the producer's."""
        return _CODECS.get(self.compression_type)

    @property
    def compression_level(self) -> int | None:
        """The level for `stored_codec`; None: the library's default, or a codec without levels."""
        match self.compression_type:
            case "gzip":
                return self.compression_gzip_level if self.compression_gzip_level >= 0 else None
            case "lz4":
                # Kafka's default level selects the fast compressor, all others the slow one.
                is_default = self.compression_lz4_level == LZ4_LEVEL_DEFAULT
                return None if is_default else self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
            case _:
                return None

    @property
    def is_compacted(self) -> bool:
        """Whether the log keeps only the latest record of each key."""
        return "compact" in self.cleanup_policy

    @property
    def segment_age_ms_max(self) -> int:
        """Age at which a segment is closed; a compacted one must be closed to be compacted."""
        if self.is_compacted:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def effective_local_retention_ms(self) -> int:
        """Age kept locally by a tiered topic; -1 is unlimited."""
        if self.local_retention_ms == SAME_AS_TOTAL:
            return self.retention_ms
        return self.local_retention_ms

    @property
    def effective_local_retention_bytes(self) -> int:
        """Bytes kept locally by a tiered topic; -1 is unlimited."""
        if self.local_retention_bytes == SAME_AS_TOTAL:
            return self.retention_bytes
        return self.local_retention_bytes

    @property
    def archived_span_ms_max(self) -> int | None:
        """Ms that an archived segment made of several may span; None: retention sets no bound."""
        if "delete" not in self.cleanup_policy or self.retention_ms <= UNLIMITED:
            return None
        return self.retention_ms // RETENTION_PARTS

    @property
    def archived_bytes_max(self) -> int | None:
        """Bytes of an archived segment made of several; None: retention sets no bound."""
        if "delete" not in self.cleanup_policy or self.retention_bytes <= UNLIMITED:
            return None
        return self.retention_bytes // RETENTION_PARTS

    @property
    def archive_is_readable(self) -> bool:
        """Whether archived segments can be read without restoring them first."""
        return self.strandline_remote_storage_class not in RESTORED_FIRST

    @property
    def remote_recompression_level(self) -> int | None:
        """zstd's level for batches on their way to the archive; None: they are not recompressed."""
        if self.strandline_remote_compression_type == "zstd":
            return self.strandline_remote_compression_zstd_level
        return None

    @property
    def effective_copy_lag_ms(self) -> int:
        """Age at which a closed segment may be copied (KIP-1241); -1: age alone never allows it.

        0, at once, if neither age nor size ever allowed it: where everything is kept locally.
        """
        lag_ms = self.remote_copy_lag_ms
        if lag_ms == SAME_AS_LOCAL:
            lag_ms = self.effective_local_retention_ms
        is_for_ever = lag_ms == UNLIMITED and self.effective_copy_lag_bytes == UNLIMITED
        return 0 if is_for_ever else lag_ms

    @property
    def effective_copy_lag_bytes(self) -> int:
        """Newer local bytes at which a segment may be copied; -1: size alone never allows it."""
        if self.remote_copy_lag_bytes == SAME_AS_LOCAL:
            return self.effective_local_retention_bytes
        return self.remote_copy_lag_bytes

    @classmethod
    def resolve(
        cls, topic_properties: Mapping[str, str], broker_defaults: Mapping[str, str] | None = None
    ) -> LogConfig:
        """Resolves each property: the topic's value, else the broker's default, else Kafka's.

        `broker_defaults` is keyed by *topic* property name. Raises InvalidConfig for an unknown
        name or an invalid value, and not for properties that contradict each other: an existing
        topic must not keep a broker from its start because a default changed.
        """
        values = parse_topic_properties(topic_properties)
        for name, text in (broker_defaults or {}).items():
            if name in TOPIC_CONFIGS and name not in values:
                values[name] = TOPIC_CONFIGS[name].parse(text)
        return with_values(cls(), values)

    @classmethod
    def resolve_checked(
        cls, topic_properties: Mapping[str, str], broker_defaults: Mapping[str, str] | None = None
    ) -> LogConfig:
        """As `resolve`, for creating or altering a topic: raises InvalidConfig also if properties
        contradict each other.
        """
        config = cls.resolve(topic_properties, broker_defaults)
        config.check(topic_properties)
        return config

    def check(self, named: Mapping[str, str]) -> None:
        """Raises InvalidConfig if properties contradict each other; `named` were set by hand."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"conflict topic config setting min.compaction.lag.ms "
                f"({self.min_compaction_lag_ms}) > max.compaction.lag.ms "
                f"({self.max_compaction_lag_ms})"
            )
        if "compression.gzip.level" in named:
            _check_gzip_level(self.compression_gzip_level)
        _check_tags(self.strandline_remote_object_tags)
        if self.remote_storage_enable:
            if {"local.retention.ms", "local.retention.bytes"} & named.keys():
                self.check_local_retention()
            _check_copy_lag("ms", self.remote_copy_lag_ms, self.effective_local_retention_ms)
            _check_copy_lag(
                "bytes", self.remote_copy_lag_bytes, self.effective_local_retention_bytes
            )
        if self.remote_storage_enable and self.remote_log_copy_disable:
            _check_local_same_as_total("ms", self.local_retention_ms, self.retention_ms)
            _check_local_same_as_total("bytes", self.local_retention_bytes, self.retention_bytes)

    def check_as_defaults(self) -> None:
        """Raises InvalidConfig if these are not allowed as a broker's defaults.

        A single topic may have no retention at all. As a default it would be a mistake that
        deletes everything, and Kafka does not start with it.
        """
        if self.retention_ms == 0:
            raise InvalidConfig("log.retention.ms=0: must be -1, for no limit, or at least 1")
        self.check_local_retention()

    def check_local_retention(self) -> None:
        """Raises InvalidConfig if local retention exceeds total retention, from any source.

        Kafka's rule for tiered topics when they are created or altered, and for a broker's
        defaults. An existing topic is not refused for defaults that changed.
        """
        _check_local_not_beyond_total("bytes", self.local_retention_bytes, self.retention_bytes)
        _check_local_not_beyond_total("ms", self.local_retention_ms, self.retention_ms)


def _check_local_not_beyond_total(unit: str, local: int, total: int) -> None:
    if local == SAME_AS_TOTAL or total == UNLIMITED:
        return
    if local == UNLIMITED or local > total:
        raise InvalidConfig(
            f"Invalid value {local} for configuration local.retention.{unit}: it must not exceed"
            f" retention.{unit}={total}"
        )


def _check_copy_lag(unit: str, lag: int, local: int) -> None:
    # Records that may leave the disk must be in the archive by then, or they stay.
    if lag > 0 and local != UNLIMITED and lag > local:
        raise InvalidConfig(
            f"Invalid value {lag} for configuration remote.copy.lag.{unit}: Value must not exceed"
            f" local.retention.{unit} (effective value: {local})"
        )


def _check_gzip_level(level: int) -> None:
    # Kafka's levels are those that compress; a topic that has 0 from before this check existed
    # keeps it.
    if level == 0:
        raise InvalidConfig("compression.gzip.level=0: must be -1, or from 1 to 9")


def _check_tags(tags: tuple[str, ...]) -> None:
    if len(tags) > OBJECT_TAGS_MAX:
        raise InvalidConfig(f"strandline.remote.object.tags: at most {OBJECT_TAGS_MAX} tags")
    for tag in tags:
        key, separator, _ = tag.partition("=")
        if not separator or not key.strip():
            raise InvalidConfig(f"strandline.remote.object.tags={tag!r}: expected key=value")


def _check_local_same_as_total(unit: str, local: int, total: int) -> None:
    # Nothing is copied any more (KIP-950), so locally deleted records would be lost too early.
    if local not in (SAME_AS_TOTAL, total):
        raise InvalidConfig(
            f"remote.log.copy.disable=true needs local.retention.{unit}=-2, or the same as"
            f" retention.{unit}={total}; it is {local}"
        )


TOPIC_CONFIGS: Mapping[str, ConfigDef] = {found.name: found for found in keys_of(LogConfig)}


def parse_topic_properties(properties: Mapping[str, str]) -> dict[str, object]:
    """Returns the typed values. Raises InvalidConfig for an unknown name, or a bad value."""
    values = {}
    for name, text in properties.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfig(f"unknown topic config {name!r}{nearest_name(name, TOPIC_CONFIGS)}")
        values[name] = definition.parse(text)
    return values


def check_throttled_replicas(properties: Mapping[str, str]) -> None:
    """Raises InvalidConfig unless they are `*` or `partition:broker,...`, as in Kafka.

    Only for topics that are created or altered: another value from before this check covers no
    replica, and is no reason not to start.
    """
    for side in ("follower", "leader"):
        name = f"{side}.replication.throttled.replicas"
        elements = [part.strip() for part in properties.get(name, "").split(",") if part.strip()]
        if elements != ["*"] and not all(map(_THROTTLED_REPLICA.fullmatch, elements)):
            raise InvalidConfig(
                f"{name}={properties[name]!r}: expected * or partition:broker,partition:broker,..."
            )
