"""Topic configuration: names, defaults and checks of Kafka's topic properties.

One table describes every property; validation, DescribeConfigs and the generated documentation
read it. `LogConfig` is the typed view that the log engine, tiering and retention work with.

A topic stores only what was set on it. The rest comes from the broker's synonym of the property
(`log.segment.bytes` for `segment.bytes`), so `LogConfig.resolve` takes both maps.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from strandline.storage.errors import InvalidConfig
from strandline.storage.model import TimestampType

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
# Kafka 4.0 raised the floor of segment.bytes: smaller segments are dust in the object store.
SEGMENT_BYTES_MIN = 1024 * 1024
UNLIMITED = -1
SAME_AS_TOTAL = -2

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLEANUP_POLICIES = ("compact", "delete")


class ConfigType(Enum):
    """Types as DescribeConfigs numbers them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One property: `minimum`/`maximum` are inclusive, `choices` apply to each list element."""

    name: str
    type: ConfigType
    default: str
    doc: str
    synonyms: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    def parse(self, text: str) -> object:
        """The typed value. Raises InvalidConfig, naming the property and what it accepts."""
        return parse_config_value(self, text)


def parse_config_value(definition: ConfigDef, text: str) -> object:
    """Parses `text` by Kafka's rules for the type. Raises InvalidConfig."""
    text = text.strip()
    value: object
    match definition.type:
        case ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise InvalidConfig(f"{definition.name}={text!r}: expected true or false")
            return text.lower() == "true"
        case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
            value = _parse_integer(definition, text)
        case ConfigType.DOUBLE:
            try:
                value = float(text)
            except ValueError:
                raise InvalidConfig(f"{definition.name}={text!r}: expected a number") from None
            # No bound holds against nan: it is neither below nor above anything.
            if value != value:  # noqa: PLR0124
                raise InvalidConfig(f"{definition.name}={text!r}: expected a number")
        case ConfigType.LIST:
            elements = tuple(part.strip() for part in text.split(",") if part.strip())
            for element in elements:
                _check_choice(definition, element)
            return elements
        case _:
            _check_choice(definition, text)
            return text
    if definition.minimum is not None and value < definition.minimum:
        raise InvalidConfig(f"{definition.name}={text}: must be at least {definition.minimum}")
    if definition.maximum is not None and value > definition.maximum:
        raise InvalidConfig(f"{definition.name}={text}: must be at most {definition.maximum}")
    return value


# More digits than any bound has, and few enough that int() is quick on hostile text.
_INTEGER = re.compile(r"[+-]?[0-9]{1,64}")
_INTEGER_BOUNDS = {
    ConfigType.SHORT: 2**15 - 1,
    ConfigType.INT: INT_MAX,
    ConfigType.LONG: LONG_MAX,
}


def _parse_integer(definition: ConfigDef, text: str) -> int:
    # int() alone would also take 1_000 and digits of other scripts, which Kafka refuses.
    if not _INTEGER.fullmatch(text):
        raise InvalidConfig(f"{definition.name}={text!r}: expected a whole number")
    value = int(text)
    bound = _INTEGER_BOUNDS[definition.type]
    if not -bound - 1 <= value <= bound:
        raise InvalidConfig(
            f"{definition.name}={text}: out of the range of {definition.type.name.lower()}"
        )
    return value


def _check_choice(definition: ConfigDef, text: str) -> None:
    if definition.choices and text not in definition.choices:
        raise InvalidConfig(
            f"{definition.name}={text!r}: expected one of {', '.join(definition.choices)}"
        )


def _define(
    name: str,
    config_type: ConfigType,
    default: object,
    doc: str,
    *synonyms: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> ConfigDef:
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return ConfigDef(
        name=name,
        type=config_type,
        default=text,
        doc=doc,
        synonyms=synonyms,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
    )


_B, _S, _I, _L, _D, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)

TOPIC_CONFIGS: Mapping[str, ConfigDef] = {
    definition.name: definition
    for definition in (
        _define(
            "cleanup.policy",
            _LIST,
            "delete",
            "What happens to old segments. Only delete is served yet; compact is refused.",
            "log.cleanup.policy",
            choices=CLEANUP_POLICIES,
        ),
        _define(
            "compression.type",
            _S,
            "producer",
            "Codec that the broker stores. Only producer is served yet: what was sent is kept.",
            "compression.type",
            choices=COMPRESSION_TYPES,
        ),
        _define(
            "compression.gzip.level",
            _I,
            -1,
            "gzip level when the broker compresses.",
            "compression.gzip.level",
            minimum=-1,
            maximum=9,
        ),
        _define(
            "compression.lz4.level",
            _I,
            9,
            "lz4 level when the broker compresses.",
            "compression.lz4.level",
            minimum=1,
            maximum=17,
        ),
        _define(
            "compression.zstd.level",
            _I,
            3,
            "zstd level when the broker compresses.",
            "compression.zstd.level",
            minimum=-131072,
            maximum=22,
        ),
        _define(
            "delete.retention.ms",
            _L,
            86_400_000,
            "How long tombstones of compacted topics are kept, in ms.",
            "log.cleaner.delete.retention.ms",
            minimum=0,
        ),
        _define(
            "file.delete.delay.ms",
            _L,
            60_000,
            "Wait before a removed local segment file is unlinked, in ms.",
            "log.segment.delete.delay.ms",
            minimum=0,
        ),
        _define(
            "flush.messages",
            _L,
            LONG_MAX,
            "Records between forced fsyncs of the log.",
            "log.flush.interval.messages",
            minimum=1,
        ),
        _define(
            "flush.ms",
            _L,
            LONG_MAX,
            "Milliseconds between forced fsyncs of the log.",
            "log.flush.interval.ms",
            minimum=0,
        ),
        _define(
            "follower.replication.throttled.replicas",
            _LIST,
            "",
            "Replicas whose follower traffic is throttled.",
        ),
        _define(
            "index.interval.bytes",
            _I,
            4096,
            "Log bytes between two index entries.",
            "log.index.interval.bytes",
            minimum=0,
        ),
        _define(
            "leader.replication.throttled.replicas",
            _LIST,
            "",
            "Replicas whose leader traffic is throttled.",
        ),
        _define(
            "local.retention.bytes",
            _L,
            SAME_AS_TOTAL,
            "Local bytes kept per partition of a tiered topic; -2 means retention.bytes.",
            "log.local.retention.bytes",
            minimum=-2,
        ),
        _define(
            "local.retention.ms",
            _L,
            SAME_AS_TOTAL,
            "Local age kept of a tiered topic, in ms; -2 means retention.ms.",
            "log.local.retention.ms",
            minimum=-2,
        ),
        _define(
            "max.compaction.lag.ms",
            _L,
            LONG_MAX,
            "Longest time that a record stays uncompacted, in ms.",
            "log.cleaner.max.compaction.lag.ms",
            minimum=1,
        ),
        _define(
            "max.message.bytes",
            _I,
            1_048_588,
            "Largest record batch, in bytes.",
            "message.max.bytes",
            minimum=0,
        ),
        _define(
            "message.timestamp.after.max.ms",
            _L,
            3_600_000,
            "How far a record may be ahead of the broker's clock, in ms.",
            "log.message.timestamp.after.max.ms",
            minimum=0,
        ),
        _define(
            "message.timestamp.before.max.ms",
            _L,
            LONG_MAX,
            "How far a record may be behind the broker's clock, in ms.",
            "log.message.timestamp.before.max.ms",
            minimum=0,
        ),
        _define(
            "message.timestamp.type",
            _S,
            "CreateTime",
            "Whose time a record carries: the producer's or the broker's.",
            "log.message.timestamp.type",
            choices=("CreateTime", "LogAppendTime"),
        ),
        _define(
            "min.cleanable.dirty.ratio",
            _D,
            0.5,
            "Dirty part of the log at which compaction starts.",
            "log.cleaner.min.cleanable.ratio",
            minimum=0,
            maximum=1,
        ),
        _define(
            "min.compaction.lag.ms",
            _L,
            0,
            "Shortest time that a record stays uncompacted, in ms.",
            "log.cleaner.min.compaction.lag.ms",
            minimum=0,
        ),
        _define(
            "min.insync.replicas",
            _I,
            1,
            "Replicas that must have a record of acks=all.",
            "min.insync.replicas",
            minimum=1,
        ),
        _define("preallocate", _B, False, "Preallocate segment files.", "log.preallocate"),
        _define(
            "remote.log.copy.disable",
            _B,
            False,
            "Stop copying to the remote tier; what is there stays readable.",
        ),
        _define(
            "remote.log.delete.on.disable",
            _B,
            False,
            "Delete the remote data when tiering is turned off.",
        ),
        _define(
            "remote.storage.enable", _B, False, "Keep closed segments in the remote tier as well."
        ),
        _define(
            "retention.bytes",
            _L,
            UNLIMITED,
            "Bytes kept per partition over both tiers; -1 is unlimited.",
            "log.retention.bytes",
            minimum=-1,
        ),
        _define(
            "retention.ms",
            _L,
            604_800_000,
            "Age kept over both tiers, in ms; -1 is unlimited.",
            "log.retention.ms",
            "log.retention.minutes",
            "log.retention.hours",
            minimum=-1,
        ),
        _define(
            "segment.bytes",
            _I,
            1_073_741_824,
            "Size at which a segment is closed.",
            "log.segment.bytes",
            minimum=SEGMENT_BYTES_MIN,
        ),
        _define(
            "segment.index.bytes",
            _I,
            10_485_760,
            "Largest offset index of one segment.",
            "log.index.size.max.bytes",
            minimum=4,
        ),
        _define(
            "segment.jitter.ms",
            _L,
            0,
            "Random part taken off segment.ms, in ms.",
            "log.roll.jitter.ms",
            "log.roll.jitter.hours",
            minimum=0,
        ),
        _define(
            "segment.ms",
            _L,
            604_800_000,
            "Age at which a segment is closed, in ms.",
            "log.roll.ms",
            "log.roll.hours",
            minimum=1,
        ),
        _define(
            "unclean.leader.election.enable",
            _B,
            False,
            "Allow a replica that is not in sync to lead.",
            "unclean.leader.election.enable",
        ),
    )
}


def nearest_name(name: str, known: Mapping[str, object]) -> str:
    """`; did you mean x?` if a known name is close, else nothing."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Typed topic configuration; every field is a property of TOPIC_CONFIGS in snake case."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    local_retention_bytes: int = SAME_AS_TOTAL
    local_retention_ms: int = SAME_AS_TOTAL
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    min_insync_replicas: int = 1
    remote_log_copy_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = UNLIMITED
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000

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

    @classmethod
    def resolve(
        cls, topic_properties: Mapping[str, str], broker_defaults: Mapping[str, str] | None = None
    ) -> LogConfig:
        """Builds the view: what the topic sets, else the broker's default, else Kafka's.

        `broker_defaults` is keyed by *topic* property name. Raises InvalidConfig.
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
        config = cls(**values)  # type: ignore[arg-type]  # the table's types match the fields, tested
        config.check(topic_properties)
        _check_no_recompression(topic_properties, defaults)
        return config

    def check(self, named: Mapping[str, str]) -> None:
        """Raises InvalidConfig if properties contradict each other; `named` were set by hand."""
        if self.remote_storage_enable and "compact" in self.cleanup_policy:
            raise InvalidConfig(
                "remote.storage.enable=true is not possible with cleanup.policy=compact"
            )
        # Accepting these and not doing them would be worse than refusing them: a compacted topic
        # that never compacts grows for ever, and one that is deleted by age loses its table.
        if "compact" in self.cleanup_policy:
            raise InvalidConfig(
                "cleanup.policy=compact is not served yet; expected cleanup.policy=delete"
            )
        if "local.retention.ms" in named:
            _check_local_not_beyond_total("ms", self.local_retention_ms, self.retention_ms)
        if "local.retention.bytes" in named:
            _check_local_not_beyond_total("bytes", self.local_retention_bytes, self.retention_bytes)


def _check_no_recompression(*maps: Mapping[str, str]) -> None:
    for properties in maps:
        text = properties.get("compression.type", "producer").strip()
        if text != "producer":
            raise InvalidConfig(
                f"compression.type={text}: the broker does not recompress yet;"
                " expected compression.type=producer"
            )


def _check_local_not_beyond_total(unit: str, local: int, total: int) -> None:
    if local == SAME_AS_TOTAL or total == UNLIMITED:
        return
    if local == UNLIMITED or local > total:
        raise InvalidConfig(
            f"local.retention.{unit}={local} must not exceed retention.{unit}={total}"
        )


def check_topic_properties(properties: Mapping[str, str]) -> None:
    """Raises InvalidConfig for an unknown name or a value out of bounds."""
    for name, text in properties.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfig(f"unknown topic config {name!r}{nearest_name(name, TOPIC_CONFIGS)}")
        definition.parse(text)


def _timestamp_type(parsed: object) -> object:
    return TimestampType.LOG_APPEND_TIME if parsed == "LogAppendTime" else TimestampType.CREATE_TIME


_FIELDS: Mapping[str, Callable[[object], object] | None] = {
    name: (_timestamp_type if name == "message_timestamp_type" else None)
    for name in LogConfig.__dataclass_fields__
}
