"""Topic configuration as the log engine, tiering and retention see it: typed and resolved.

A topic stores only what was set on it. The rest comes from the broker's synonym of the property
(`log.segment.bytes` for `segment.bytes`), so `LogConfig.resolve` takes both maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from strandline.storage.config.definition import (
    INT_MAX,
    LONG_MAX,
    ConfigDef,
    ConfigType,
    nearest_name,
    parse_config_value,
)
from strandline.storage.config.topic_properties import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    OBJECT_TAGS_MAX,
    SAME_AS_LOCAL,
    SAME_AS_TOTAL,
    SEGMENT_BYTES_MIN,
    TOPIC_CONFIGS,
    UNLIMITED,
    check_topic_properties,
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
    "ConfigType",
    "LogConfig",
    "check_topic_properties",
    "nearest_name",
    "parse_config_value",
]


LZ4_LEVEL_DEFAULT = 9
_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Typed topic configuration; every field is a property of TOPIC_CONFIGS in snake case."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_gzip_level: int = -1
    compression_lz4_level: int = LZ4_LEVEL_DEFAULT
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    local_retention_bytes: int = SAME_AS_TOTAL
    local_retention_ms: int = SAME_AS_TOTAL
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    remote_copy_lag_bytes: int = SAME_AS_LOCAL
    remote_copy_lag_ms: int = 0
    remote_log_copy_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = UNLIMITED
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    strandline_remote_active_segment_upload_ms: int = 3_600_000
    strandline_remote_object_tags: tuple[str, ...] = ()
    strandline_remote_compression_type: str = "producer"
    strandline_remote_compression_zstd_level: int = 3
    strandline_remote_storage_class: str = "DEFAULT"

    # Derived: whether appends need nothing but the batch header, as almost all topics' do. A field
    # because the hot path asks it for every batch.
    stores_as_sent: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "stores_as_sent", not self.needs_records and self.stored_codec is None
        )

    @property
    def needs_records(self) -> bool:
        """Whether an append must look at single records, and not at the batch header alone."""
        return "compact" in self.cleanup_policy or self.message_timestamp_before_max_ms != LONG_MAX

    @property
    def stored_codec(self) -> int | None:
        """The codec of every stored batch, as batch attributes number it; None: the producer's."""
        return _CODECS.get(self.compression_type)

    @property
    def compression_level(self) -> int | None:
        """The level for `stored_codec`; None is the library's default, or there are no levels."""
        match self.compression_type:
            case "gzip":
                return self.compression_gzip_level if self.compression_gzip_level >= 0 else None
            case "lz4":
                # Kafka's default level stands for the fast compressor, all others for the slow one.
                is_default = self.compression_lz4_level == LZ4_LEVEL_DEFAULT
                return None if is_default else self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
            case _:
                return None

    @property
    def is_compacted(self) -> bool:
        """Whether of each key only the latest record is kept."""
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
    def remote_recompression_level(self) -> int | None:
        """zstd's level for batches on their way to the archive; None: they go as they are."""
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
        """Newer local bytes at which it may; -1: size alone never allows it."""
        if self.remote_copy_lag_bytes == SAME_AS_LOCAL:
            return self.effective_local_retention_bytes
        return self.remote_copy_lag_bytes

    @classmethod
    def resolve(
        cls, topic_properties: Mapping[str, str], broker_defaults: Mapping[str, str] | None = None
    ) -> LogConfig:
        """Builds the view: what the topic sets, else the broker's default, else Kafka's.

        `broker_defaults` is keyed by *topic* property name. Raises InvalidConfig for a name that is
        unknown or a value that cannot be, and not for what contradicts each other: a topic that is
        there must not keep a broker from its start because a default changed.
        """
        defaults = broker_defaults or {}
        check_topic_properties(topic_properties)
        values: dict[str, object] = {}
        for field_name, convert in _FIELDS.items():
            definition = TOPIC_CONFIGS[field_name.replace("_", ".")]
            text = topic_properties.get(
                definition.name, defaults.get(definition.name, definition.default)
            )
            parsed = definition.parse(text)
            values[field_name] = convert(parsed) if convert else parsed
        return cls(**values)  # type: ignore[arg-type]  # the table's types match the fields, tested

    @classmethod
    def resolve_checked(
        cls, topic_properties: Mapping[str, str], broker_defaults: Mapping[str, str] | None = None
    ) -> LogConfig:
        """As `resolve`, for what is made or altered: raises InvalidConfig also if properties
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
        """Raises InvalidConfig if a broker may not have these for its topics.

        A single topic may be kept for no time at all. For all that say nothing it would be a slip
        that deletes everything, and Kafka does not start with it.
        """
        if self.retention_ms == 0:
            raise InvalidConfig("log.retention.ms=0: must be -1, for no limit, or at least 1")
        self.check_local_retention()

    def check_local_retention(self) -> None:
        """Raises InvalidConfig if more is kept locally than at all, whoever said so.

        Kafka's rule for tiered topics when they are made or altered, and for a broker's defaults.
        A topic that is there already is not refused for defaults that changed.
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
    # What may go locally has to be in the archive by then, or it stays.
    if lag > 0 and local != UNLIMITED and lag > local:
        raise InvalidConfig(
            f"Invalid value {lag} for configuration remote.copy.lag.{unit}: Value must not exceed"
            f" local.retention.{unit} (effective value: {local})"
        )


def _check_gzip_level(level: int) -> None:
    # Kafka's levels are those that compress; a topic that has 0 from before this was looked at
    # goes on with it.
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
    # Nothing is copied any more (KIP-950), so what went locally would be gone before its time.
    if local not in (SAME_AS_TOTAL, total):
        raise InvalidConfig(
            f"remote.log.copy.disable=true needs local.retention.{unit}=-2, or the same as"
            f" retention.{unit}={total}; it is {local}"
        )


def _timestamp_type(parsed: object) -> object:
    return TimestampType.LOG_APPEND_TIME if parsed == "LogAppendTime" else TimestampType.CREATE_TIME


_FIELDS: Mapping[str, Callable[[object], object] | None] = {
    name: (_timestamp_type if name == "message_timestamp_type" else None)
    for name, declared in LogConfig.__dataclass_fields__.items()
    if declared.init
}
