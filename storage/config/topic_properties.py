"""The table of Kafka's topic properties: names, types, defaults and bounds.

Validation, DescribeConfigs and the generated documentation read it; `LogConfig` is the typed view.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from strandline.storage.config.definition import LONG_MAX, ConfigDef, ConfigType, nearest_name
from strandline.storage.errors import InvalidConfig

# Kafka 4.0 raised the floor of segment.bytes: smaller segments are dust in the object store.
SEGMENT_BYTES_MIN = 1024 * 1024
UNLIMITED = -1
SAME_AS_TOTAL = -2
SAME_AS_LOCAL = -1

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLEANUP_POLICIES = ("compact", "delete")

# Those that S3 gives to single objects; what must be restored before it can be read comes last.
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
OBJECT_TAGS_MAX = 10

# A partition and a broker.
_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")


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
            "What happens to old records: delete by age and size, compact (keep the latest of each"
            " key), or both.",
            "log.cleanup.policy",
            choices=CLEANUP_POLICIES,
        ),
        _define(
            "compression.type",
            _S,
            "producer",
            "Codec of what is stored; producer keeps what was sent, others make the broker"
            " decompress and compress each batch that has another one.",
            "compression.type",
            choices=COMPRESSION_TYPES,
        ),
        _define(
            "compression.gzip.level",
            _I,
            -1,
            "gzip level when the broker compresses; -1 is the library's default, 0 is refused.",
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
            "log.flush.scheduler.interval.ms",
            minimum=0,
        ),
        _define(
            "follower.replication.throttled.replicas",
            _LIST,
            "",
            "Replicas whose follower traffic is throttled: * or partition:broker,...",
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
            "Replicas whose leader traffic is throttled: * or partition:broker,...",
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
            "Replicas that must have a record of acks=all, of those that there are.",
            "min.insync.replicas",
            minimum=1,
        ),
        _define("preallocate", _B, False, "Preallocate segment files.", "log.preallocate"),
        _define(
            "remote.copy.lag.bytes",
            _L,
            -1,
            "A closed segment may be copied when so many newer bytes are in the local log, or when"
            " remote.copy.lag.ms allows it; 0: at once, -1: as many as are kept locally.",
            "log.remote.copy.lag.bytes",
            minimum=-1,
        ),
        _define(
            "remote.copy.lag.ms",
            _L,
            0,
            "A closed segment may be copied when its newest record is so old, in ms, or when"
            " remote.copy.lag.bytes allows it; 0: at once, -1: as old as what is kept locally, or"
            " at once where both are -1 and all is kept locally.",
            "log.remote.copy.lag.ms",
            minimum=-1,
        ),
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
            "Age at which a segment is closed, in ms, also while nothing is written to it.",
            "log.roll.ms",
            "log.roll.hours",
            minimum=1,
        ),
        _define(
            "strandline.remote.object.tags",
            _LIST,
            "",
            "Tags of the topic's segment objects, as key=value; S3 takes ten at most.",
            "strandline.remote.object.tags",
        ),
        _define(
            "strandline.remote.storage.class",
            _S,
            "DEFAULT",
            "S3 storage class of the topic's segments from now on; DEFAULT: the bucket's. Manifests"
            " and indexes stay in the bucket's default class. GLACIER and DEEP_ARCHIVE have to be"
            " restored by hand before they can be read.",
            "strandline.remote.storage.class",
            choices=STORAGE_CLASSES,
        ),
        _define(
            "strandline.remote.active.segment.upload.ms",
            _L,
            3_600_000,
            "Records of the segment that is still written are in the remote tier at most this many"
            " ms later, for a restore and the lake; -1: only closed segments go there.",
            "strandline.remote.active.segment.upload.ms",
            minimum=-1,
        ),
        _define(
            "strandline.remote.compression.type",
            _S,
            "producer",
            "Codec of the topic's batches in the remote tier, from now on: producer leaves them as"
            " they are, zstd rewrites those that become smaller. Records, offsets and times stay;"
            " bytes do not.",
            "strandline.remote.compression.type",
            choices=("producer", "zstd"),
        ),
        _define(
            "strandline.remote.compression.zstd.level",
            _I,
            3,
            "zstd level of such batches.",
            "strandline.remote.compression.zstd.level",
            minimum=-131072,
            maximum=22,
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


def check_topic_properties(properties: Mapping[str, str]) -> None:
    """Raises InvalidConfig for an unknown name or a value out of bounds."""
    for name, text in properties.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfig(f"unknown topic config {name!r}{nearest_name(name, TOPIC_CONFIGS)}")
        definition.parse(text)


def check_throttled_replicas(properties: Mapping[str, str]) -> None:
    """Raises InvalidConfig unless they are `*` or `partition:broker,...`, as in Kafka.

    For topics that are made or altered alone: here they throttle nothing, so a topic that has
    something else from before this was looked at is no reason not to start.
    """
    for side in ("follower", "leader"):
        name = f"{side}.replication.throttled.replicas"
        elements = [part.strip() for part in properties.get(name, "").split(",") if part.strip()]
        if elements != ["*"] and not all(map(_THROTTLED_REPLICA.fullmatch, elements)):
            raise InvalidConfig(
                f"{name}={properties[name]!r}: expected * or partition:broker,partition:broker,..."
            )
