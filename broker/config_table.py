"""Every broker key with an effect: name, type, default, bounds, meaning.

The defaults of topics (`log.segment.bytes` for `segment.bytes`) are not written down a second
time: they are made from `TOPIC_CONFIGS`. Loading, DescribeConfigs and docs/configuration.md all
read this table; `config_foreign.py` has the keys of Kafka that are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from strandline.broker.listeners import parse_connection_overrides, parse_metrics_listener
from strandline.storage.log_config import (
    INT_MAX,
    LONG_MAX,
    TOPIC_CONFIGS,
    ConfigDef,
    ConfigType,
    parse_config_value,
)

MIB = 1024 * 1024
HOUR_MS = 3_600_000
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfigDef(ConfigDef):
    """A broker key. `nullable` ones may be empty, which means unset.

    `dynamic` ones can be altered while the broker runs. `topic_property` names the topic property
    whose default this key sets, `scale` turns the key's unit into that property's.
    """

    section: str
    nullable: bool = False
    dynamic: bool = False
    # For texts with a form of their own: raises InvalidConfig.
    check: Callable[[str], object] | None = None
    topic_property: str | None = None
    scale: int = 1

    @property
    def field_name(self) -> str:
        """The field of BrokerConfig that holds the key's value."""
        return self.name.removeprefix("strandline.").replace(".", "_")

    def parse(self, text: str) -> object:
        """The typed value, None for an empty nullable key. Raises InvalidConfig."""
        if self.nullable and not text.strip():
            return None
        value = parse_config_value(self, text)
        if self.check is not None:
            self.check(text.strip())
        return value


NETWORK = "Identity and listeners"
CONNECTIONS = "Connections and requests"
TOPICS = "Topics"
LOG = "Log folders and background work"
TIER = "Remote tier"
GROUPS = "Consumer groups"
TOPIC_DEFAULTS = "Defaults of topics"
SECTIONS = (NETWORK, CONNECTIONS, TOPICS, GROUPS, LOG, TIER, TOPIC_DEFAULTS)

_B, _S, _I, _H, _L, _D, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.SHORT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)


def _key(
    section: str,
    name: str,
    config_type: ConfigType,
    default: object,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    dynamic: bool = False,
    check: Callable[[str], object] | None = None,
    choices: tuple[str, ...] = (),
) -> BrokerConfigDef:
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return BrokerConfigDef(
        section=section,
        name=name,
        type=config_type,
        default="" if default is None else text,
        doc=doc,
        minimum=minimum,
        maximum=maximum,
        nullable=default is None,
        dynamic=dynamic,
        check=check,
        choices=choices,
    )


def _own_keys() -> Iterator[BrokerConfigDef]:
    yield from _network_keys()
    yield from _connection_keys()
    yield from _topic_keys()
    yield from _group_keys()
    yield from _consumer_group_keys()
    yield from _log_keys()
    yield from _tier_keys()


def _network_keys() -> Iterator[BrokerConfigDef]:
    yield _key(
        NETWORK,
        "node.id",
        _I,
        1,
        "Number of this broker in its cluster. Kafka has no default; a lone broker needs none.",
        minimum=0,
    )
    yield _key(
        NETWORK, "broker.id", _I, None, "Older name of node.id; both must agree.", minimum=-1
    )
    yield _key(NETWORK, "broker.rack", _S, None, "Rack (zone) that Metadata tells clients.")
    # Kafka listens on every interface. A broker that cannot ask for a password yet must not.
    yield _key(
        NETWORK,
        "listeners",
        _LIST,
        "PLAINTEXT://127.0.0.1:9092",
        "Where to listen: NAME://host:port, comma separated. An empty host or 0.0.0.0 means every"
        " interface, port 0 any free port. Only PLAINTEXT for now, therefore the default is this"
        " machine alone.",
    )
    yield _key(
        NETWORK,
        "advertised.listeners",
        _LIST,
        None,
        "What clients are told to connect to: NAME://host:port. Unset: the listeners, an empty host"
        " replaced by this machine's name.",
    )
    yield _key(
        NETWORK,
        "listener.security.protocol.map",
        _LIST,
        "PLAINTEXT:PLAINTEXT",
        "Protocol of each listener name, as NAME:PROTOCOL; names in use must be PLAINTEXT.",
    )


def _connection_keys() -> Iterator[BrokerConfigDef]:
    yield _key(
        CONNECTIONS,
        "socket.request.max.bytes",
        _I,
        100 * MIB,
        "Largest request, in bytes; a larger one closes its connection.",
        minimum=1,
    )
    yield _key(
        CONNECTIONS,
        "connections.max.idle.ms",
        _L,
        600_000,
        "An idle connection is closed after this many ms; negative: never.",
    )
    yield _key(
        CONNECTIONS,
        "max.connections",
        _I,
        INT_MAX,
        "Open connections at one time; further ones are closed at once.",
        minimum=0,
        dynamic=True,
    )
    yield _key(
        CONNECTIONS,
        "max.connections.per.ip",
        _I,
        INT_MAX,
        "Open connections from one address at one time; further ones are closed at once.",
        minimum=0,
        dynamic=True,
    )
    yield _key(
        CONNECTIONS,
        "max.connections.per.ip.overrides",
        _S,
        "",
        "max.connections.per.ip of single addresses: 10.0.0.1:100,10.0.0.2:20.",
        dynamic=True,
        check=parse_connection_overrides,
    )
    yield _key(
        CONNECTIONS,
        "quota.window.num",
        _I,
        11,
        "Windows over which a client's rate is taken for its quota.",
        minimum=1,
        maximum=1000,
    )
    yield _key(
        CONNECTIONS,
        "quota.window.size.seconds",
        _I,
        1,
        "Length of one of these windows.",
        minimum=1,
        maximum=3600,
    )
    yield _key(
        CONNECTIONS,
        "strandline.metrics.listener",
        _S,
        None,
        "Where /metrics, /healthz and /readyz are served over HTTP: http://host:port. Unset:"
        " nowhere. There is no password: choose an address that only the monitoring reaches.",
        check=parse_metrics_listener,
    )
    yield _key(
        CONNECTIONS,
        "strandline.metrics.partitions.max",
        _I,
        10_000,
        "Partitions, and committed offsets, that /metrics lists one by one; further ones only"
        " count in the totals.",
        minimum=0,
    )
    yield _key(
        CONNECTIONS,
        "fetch.max.bytes",
        _I,
        55 * MIB,
        "Largest answer to a fetch, in bytes; one batch is sent even if larger.",
        minimum=1024,
    )
    yield _key(
        CONNECTIONS,
        "max.incremental.fetch.session.cache.slots",
        _I,
        1000,
        "Incremental fetch sessions kept; further clients send full fetches.",
        minimum=0,
    )


def _topic_keys() -> Iterator[BrokerConfigDef]:
    yield _key(
        TOPICS,
        "num.partitions",
        _I,
        1,
        "Partitions of a topic that is created without a count.",
        minimum=1,
    )
    yield _key(
        TOPICS,
        "default.replication.factor",
        _H,
        1,
        "Replicas of a topic that is created without a count; one broker can hold only one.",
        minimum=1,
        maximum=1,
    )
    yield _key(
        TOPICS,
        "auto.create.topics.enable",
        _B,
        True,
        "Create a topic when a client that allows it asks for its metadata.",
    )
    yield _key(TOPICS, "delete.topic.enable", _B, True, "Allow DeleteTopics.")
    yield _key(
        TOPICS,
        "producer.id.expiration.ms",
        _I,
        86_400_000,
        "An idle producer's sequence numbers are forgotten after this many ms.",
        minimum=1,
        dynamic=True,
    )


def _group_keys() -> Iterator[BrokerConfigDef]:
    yield _key(
        GROUPS,
        "group.min.session.timeout.ms",
        _I,
        6000,
        "Shortest session timeout that a member may ask for, in ms.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "group.max.session.timeout.ms",
        _I,
        1_800_000,
        "Longest session timeout that a member may ask for, in ms.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "group.initial.rebalance.delay.ms",
        _I,
        3000,
        "How long the first rebalance of an empty group waits for further members, in ms.",
        minimum=0,
    )
    yield _key(
        GROUPS,
        "group.max.size",
        _I,
        INT_MAX,
        "Members that a group may have; further ones are refused.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "offsets.topic.num.partitions",
        _I,
        50,
        "Partitions of __consumer_offsets when it is created; the first group creates it.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "offsets.topic.segment.bytes",
        _I,
        100 * MIB,
        "segment.bytes of __consumer_offsets when it is created.",
        minimum=MIB,
    )
    yield _key(
        GROUPS,
        "offsets.retention.minutes",
        _I,
        10_080,
        "Offsets are forgotten this many minutes after their group lost its last member, or after"
        " the commit where a consumer assigns its partitions itself.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "offsets.retention.check.interval.ms",
        _L,
        600_000,
        "Ms between two looks for offsets to forget.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "offset.metadata.max.bytes",
        _I,
        4096,
        "Longest text that a consumer may commit beside an offset.",
        minimum=0,
    )


def _consumer_group_keys() -> Iterator[BrokerConfigDef]:
    """Groups of the new protocol (KIP-848)."""
    yield _key(
        GROUPS,
        "group.consumer.session.timeout.ms",
        _I,
        45_000,
        "A member of the new group protocol is out of its group after this many ms of silence.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "group.consumer.min.session.timeout.ms",
        _I,
        45_000,
        "Shortest group.consumer.session.timeout.ms that is accepted.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "group.consumer.max.session.timeout.ms",
        _I,
        60_000,
        "Longest group.consumer.session.timeout.ms that is accepted.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "group.consumer.heartbeat.interval.ms",
        _I,
        5000,
        "Members of the new group protocol are told to send a heartbeat every so many ms; they"
        " learn of a rebalance with it.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "group.consumer.min.heartbeat.interval.ms",
        _I,
        5000,
        "Shortest group.consumer.heartbeat.interval.ms that is accepted.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "group.consumer.max.heartbeat.interval.ms",
        _I,
        15_000,
        "Longest group.consumer.heartbeat.interval.ms that is accepted.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "group.consumer.max.size",
        _I,
        INT_MAX,
        "Members that a group of the new protocol may have; further ones are refused.",
        minimum=1,
    )
    yield _key(
        GROUPS,
        "group.consumer.assignors",
        _LIST,
        "uniform,range",
        "Assignors of the new group protocol; the first one is for members that ask for none."
        " There are `uniform` and `range`; Kafka's class names mean the same.",
    )
    yield _key(
        GROUPS,
        "group.consumer.regex.refresh.interval.ms",
        _I,
        600_000,
        "Regular expressions that members subscribe to are looked up again after this many ms;"
        " sooner, after ten seconds, if topics came or went.",
        minimum=10_000,
    )
    yield _key(
        GROUPS,
        "group.consumer.migration.policy",
        _S,
        "bidirectional",
        "Whether a group of classic consumers goes over to the new protocol when a member that"
        " speaks it joins (`upgrade`), and back when the last such member is gone (`downgrade`).",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )


def _log_keys() -> Iterator[BrokerConfigDef]:
    # Not Kafka's /tmp/kafka-logs: /tmp is emptied when the machine starts.
    yield _key(
        LOG,
        "log.dir",
        _S,
        "strandline-data",
        "Folder of the logs if log.dirs is unset, relative to the working directory.",
    )
    yield _key(
        LOG,
        "log.dirs",
        _LIST,
        None,
        "Folders of the logs, comma separated; a new partition goes where there are fewest.",
    )
    yield _key(
        LOG,
        "num.recovery.threads.per.data.dir",
        _I,
        2,
        "Logs of one folder that are opened at the same time at start-up, or recovered.",
        minimum=1,
        maximum=256,
    )
    yield _key(
        LOG,
        "log.retention.check.interval.ms",
        _L,
        300_000,
        "Ms between two looks for segments to delete.",
        minimum=1,
    )
    yield _key(
        LOG,
        "log.initial.task.delay.ms",
        _L,
        30_000,
        "Ms after the start before background work on logs begins.",
        minimum=0,
    )
    yield from _cleaner_keys()


def _cleaner_keys() -> Iterator[BrokerConfigDef]:
    yield _key(
        LOG,
        "log.cleaner.enable",
        _B,
        True,
        "Compact the topics with cleanup.policy=compact, __consumer_offsets among them. Without it"
        " they only grow.",
    )
    yield _key(
        LOG,
        "log.cleaner.threads",
        _I,
        1,
        "Logs compacted at the same time, each in a process of its own.",
        minimum=0,
        maximum=1000,
    )
    yield _key(
        LOG,
        "log.cleaner.io.max.bytes.per.second",
        _D,
        "1.7976931348623157E308",
        "Most bytes per second that all compaction reads and writes together.",
        minimum=1,
        dynamic=True,
    )
    yield _key(
        LOG,
        "log.cleaner.dedupe.buffer.size",
        _L,
        128 * MIB,
        "Memory for keys during compaction over all threads, in bytes: 24 a key. What does not fit"
        " is done in further passes. At least 1 MiB a thread.",
        minimum=MIB,
        dynamic=True,
    )
    yield _key(
        LOG,
        "log.cleaner.io.buffer.size",
        _I,
        512 * 1024,
        "Memory to read and write with during compaction over all threads, in bytes; it grows for"
        " larger batches.",
        minimum=0,
        dynamic=True,
    )
    yield _key(
        LOG,
        "log.cleaner.io.buffer.load.factor",
        _D,
        "0.9",
        "How full the memory for keys may become, 0 to 1; the fuller, the slower a look-up.",
        minimum=0.01,
        maximum=0.99,
        dynamic=True,
    )
    yield _key(
        LOG,
        "log.cleaner.backoff.ms",
        _L,
        15_000,
        "Ms between two looks for a log to compact, when there was none.",
        minimum=0,
        dynamic=True,
    )


def _tier_keys() -> Iterator[BrokerConfigDef]:
    yield _key(
        TIER,
        "remote.log.storage.system.enable",
        _B,
        False,
        "Turn the remote tier on; topics still ask for it with remote.storage.enable. Needs"
        " strandline.remote.url.",
    )
    yield _key(
        TIER,
        "strandline.remote.url",
        _S,
        None,
        "Where the remote tier lies: s3://bucket/prefix or file:///folder. Credentials come by the"
        " usual AWS chain.",
    )
    yield _key(
        TIER,
        "strandline.remote.s3.endpoint.url",
        _S,
        None,
        "Address of an S3-compatible server, such as http://127.0.0.1:4566; unset: AWS.",
    )
    yield _key(
        TIER,
        "strandline.remote.s3.region",
        _S,
        None,
        "Region of the bucket; unset: AWS_REGION and the like, else us-east-1.",
    )
    yield _key(
        TIER,
        "remote.log.manager.task.interval.ms",
        _L,
        30_000,
        "Ms between two looks for segments to copy; a closing segment wakes the copier at once.",
        minimum=1,
    )
    yield _key(
        TIER,
        "remote.log.manager.copier.thread.pool.size",
        _I,
        10,
        "Segments copied at the same time.",
        minimum=1,
        maximum=1000,
    )
    yield _key(
        TIER,
        "remote.log.reader.threads",
        _I,
        10,
        "Requests to the object store at the same time on behalf of readers.",
        minimum=1,
        maximum=1000,
    )
    yield _key(
        TIER,
        "remote.log.reader.max.pending.tasks",
        _I,
        100,
        "Remote reads waiting for a thread; further fetches get an empty answer.",
        minimum=1,
    )
    for way, what in (("copy", "sent to"), ("fetch", "read from")):
        yield _key(
            TIER,
            f"remote.log.manager.{way}.max.bytes.per.second",
            _L,
            LONG_MAX,
            f"Bytes per second {what} the remote tier by this broker, over the quota's windows.",
            minimum=1,
            dynamic=True,
        )
        yield _key(
            TIER,
            f"remote.log.manager.{way}.quota.window.num",
            _I,
            11,
            f"Windows that the rate of the {way} quota is measured over.",
            minimum=1,
        )
        yield _key(
            TIER,
            f"remote.log.manager.{way}.quota.window.size.seconds",
            _I,
            1,
            f"Seconds that a window of the {way} quota lasts.",
            minimum=1,
        )
    yield _key(
        TIER,
        "remote.log.manager.task.retry.backoff.ms",
        _I,
        500,
        "Ms before the first repetition of what failed; each further wait is twice as long.",
        minimum=0,
    )
    yield _key(
        TIER,
        "remote.log.manager.task.retry.backoff.max.ms",
        _I,
        30_000,
        "Longest such wait, in ms.",
        minimum=0,
    )
    yield _key(
        TIER,
        "remote.log.manager.task.retry.jitter",
        ConfigType.DOUBLE,
        0.2,
        "Part of such a wait that is left to chance, so that partitions spread.",
        minimum=0,
        maximum=0.5,
    )
    yield _key(
        TIER,
        "remote.fetch.max.wait.ms",
        _I,
        500,
        "Longest wait of a fetch for the remote tier, in ms; the download goes on.",
        minimum=1,
        dynamic=True,
    )
    yield _key(
        TIER,
        "remote.list.offsets.request.timeout.ms",
        _L,
        30_000,
        "Longest wait of ListOffsets for the remote tier, in ms.",
        minimum=1,
        dynamic=True,
    )
    yield _key(
        TIER,
        "strandline.remote.chunk.bytes",
        _I,
        8 * MIB,
        "Bytes of a segment that are fetched at a time, rounded up to about a mebibyte.",
        minimum=64 * 1024,
        maximum=256 * MIB,
    )
    yield _key(
        TIER,
        "strandline.remote.cache.memory.bytes",
        _L,
        128 * MIB,
        "Memory for chunks of remote segments.",
        minimum=0,
    )
    yield _key(
        TIER,
        "strandline.remote.cache.disk.bytes",
        _L,
        0,
        "Disk space for chunks of remote segments, which then outlive a restart; 0: none.",
        minimum=0,
    )
    yield _key(
        TIER,
        "strandline.remote.cache.directory",
        _S,
        None,
        "Folder of the chunks on disk; unset: remote-cache in the first log folder.",
    )
    yield _key(
        TIER,
        "strandline.remote.delete.grace.ms",
        _L,
        HOUR_MS,
        "Ms between taking a segment out of the manifest and deleting its objects, so that readers"
        " who planned with the older manifest still find them.",
        minimum=0,
    )
    yield _key(
        TIER,
        "strandline.remote.groups.upload.ms",
        _L,
        60_000,
        "Ms between two writes of changed group offsets to the bucket, from where a restore takes"
        " them.",
        minimum=1,
    )
    yield _key(
        TIER,
        "strandline.remote.orphan.grace.ms",
        _L,
        24 * HOUR_MS,
        "Objects that no manifest names are deleted when they are older than this many ms, and than"
        " two copies and the delete grace may take.",
        minimum=1,
    )
    yield _key(
        TIER,
        "strandline.remote.orphan.check.interval.ms",
        _L,
        24 * HOUR_MS,
        "Ms between two looks for objects that no manifest names; each lists the whole archive.",
        minimum=1,
    )
    yield _key(
        TIER,
        "strandline.remote.replica.poll.ms",
        _L,
        10_000,
        "Ms between two looks of a read-only replica at the archive that it serves.",
        minimum=10,
    )
    yield _key(
        TIER,
        "strandline.remote.merge.target.bytes",
        _L,
        64 * MIB,
        "Adjacent small segments are merged in the remote tier into objects of up to this size; 0:"
        " never. One is held on the local disk while it is made.",
        minimum=0,
        maximum=1024 * MIB,
    )
    yield _key(
        TIER,
        "strandline.remote.copy.timeout.ms",
        _L,
        900_000,
        "A copy of one segment that takes longer is given up and tried again, in ms.",
        minimum=1,
    )


# Synonyms whose unit is not that of the topic property. Kafka's default then sits on the key with
# the coarsest unit (168 hours), and the finer ones are unset.
_SCALES = {".hours": HOUR_MS, ".minutes": MINUTE_MS}


def _topic_default_keys() -> Iterator[BrokerConfigDef]:
    """One broker key per synonym of a topic property, in the order of precedence."""
    for topic in TOPIC_CONFIGS.values():
        for synonym in topic.synonyms:
            scale = next((s for suffix, s in _SCALES.items() if synonym.endswith(suffix)), 1)
            carries_default = synonym == topic.synonyms[-1]
            default = topic.default
            if carries_default and scale != 1:
                default = str(int(topic.default) // scale)
            yield BrokerConfigDef(
                section=TOPIC_DEFAULTS,
                name=synonym,
                type=topic.type if scale == 1 else ConfigType.INT,
                default=default if carries_default else "",
                doc=topic.doc if scale == 1 else f"{topic.synonyms[0]} in another unit.",
                minimum=topic.minimum,
                maximum=topic.maximum,
                choices=topic.choices,
                nullable=not carries_default,
                # As in Kafka: milliseconds can be altered, hours are for files.
                dynamic=synonym == topic.synonyms[0],
                topic_property=topic.name,
                scale=scale,
            )


BROKER_CONFIGS: Mapping[str, BrokerConfigDef] = {
    definition.name: definition for definition in (*_own_keys(), *_topic_default_keys())
}
