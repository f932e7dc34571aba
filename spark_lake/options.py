"""The options of `spark.read.format("strandline")`: their names, their values, what is refused.

Names and meanings are those of Spark's Kafka source wherever there is one:

    which topics   subscribe | subscribePattern | assign                       exactly one
    where to begin startingTimestamp > startingOffsetsByTimestamp > startingOffsets  (first given)
    where to end   endingTimestamp > endingOffsetsByTimestamp > endingOffsets

A starting timestamp means the *offset* of the first record at or after it, as in Kafka: later
records with smaller timestamps are still read. A filter on column `timestamp` is exact per row.

Ours are `path`, `columns`, `value*`, `schemaRegistry.*`, `splitBytes`, `isolationLevel`,
`includeOpenSegment`, `scanReport`, `engine`, `urlExpiry`, and `s3.*`. Pure: opens nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias
from urllib.parse import urlsplit

from strandline.spark_lake.given_options import (
    GivenOptions,
    duration_ms,
    integer,
    json_object,
    nearest,
)
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import Isolation, TopicPartition

# One split is one Spark task: large enough to outweigh starting it (some 50 ms), small enough to
# spread over executors and to be repeated cheaply.
SPLIT_BYTES = 64 * 1024 * 1024
SPLIT_BYTES_MIN = 1024 * 1024
# The columns of Spark's Kafka source.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS_COLUMN = "headers"
# The bytes of values that do not parse, with valueErrors=corrupt.
CORRUPT_COLUMN = "_corrupt"
# A working day, and what S3 allows at most. Temporary credentials may end earlier.
URL_EXPIRY_S = 12 * 3600
URL_EXPIRY_S_MIN = 60
URL_EXPIRY_S_MAX = 7 * 24 * 3600
# A plan of more tasks than this cannot be meant.
SPLITS_MAX = 1_000_000


class Edge(Enum):
    """An end of what a partition has; the values are Kafka's numbers in JSON options."""

    LATEST = -1
    EARLIEST = -2


@dataclass(frozen=True, slots=True)
class AtOffset:
    """At this very offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """At the offset of the first record whose timestamp is at least this."""

    timestamp_ms: int


class Mode(Enum):
    """How the options are used; ANY is while Spark asks for the schema and does not say."""

    BATCH = "read"
    STREAM = "readStream"
    ANY = "any"


Bound: TypeAlias = Edge | AtOffset | AtTimestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where to begin (or end) in each partition. `named` holds all partitions, or none."""

    option: str
    default: Bound
    named: Mapping[TopicPartition, Bound] = field(default_factory=dict)

    def of(self, partition: TopicPartition) -> Bound:
        """Raises InvalidConfig if partitions are named and this is not among them."""
        if not self.named:
            return self.default
        if partition not in self.named:
            raise InvalidConfig(
                f"option {self.option} must name every partition that is read;"
                f" {partition.topic} partition {partition.partition} is missing"
            )
        return self.named[partition]

    def check_names(self, partitions: Collection[TopicPartition]) -> None:
        """Raises InvalidConfig for a name that is not among `partitions`, those that are read.

        Other topics may be named: one option can serve several queries.
        """
        topics = {one.topic for one in partitions}
        for other in sorted(self.named.keys() - set(partitions)):
            if other.topic in topics:
                raise InvalidConfig(
                    f"option {self.option} names {other.topic} partition {other.partition}, which"
                    " is not read: it must name the partitions that are, and no others"
                )


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics in whose name the pattern is found."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions."""

    partitions: Mapping[str, tuple[int, ...]]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


class Engine(Enum):
    """What decodes in Spark's tasks; the values are those of option engine."""

    AUTO = "auto"
    JVM = "jvm"
    PYTHON = "python"


class ValueFormat(Enum):
    """What values are decoded from; the values are those of option valueFormat."""

    RAW = "raw"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class ValueErrors(Enum):
    """What becomes of a value that does not parse."""

    FAIL = "fail"
    NULL = "null"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """How values become columns; see `values/plan.py` for what goes with which format."""

    format: ValueFormat = ValueFormat.RAW
    errors: ValueErrors = ValueErrors.FAIL
    schema: str | None = None
    descriptors: str | None = None
    message: str | None = None
    subject: str | None = None
    registry_url: str | None = None
    registry_auth: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """How to reach S3; what is None comes from the usual AWS chain (environment, profile, role)."""

    endpoint_url: str | None = None
    region: str | None = None
    key: str | None = None
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    anonymous: bool = False
    profile: str | None = None
    requester_pays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """How much one micro-batch of a stream takes; None is no limit."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    # Fewer new offsets than this wait for more, but no longer than `delay_ms_max`.
    offsets_min: int | None = None
    delay_ms_max: int = 15 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """Everything a read was asked for."""

    url: str
    selection: Selection
    start: Bounds
    end: Bounds
    # What to do when a starting timestamp lies behind the last record: an error, or no rows.
    fail_without_match: bool = True
    values: ValueOptions = field(default_factory=ValueOptions)
    # What is decoded, in this order; `includeHeaders` adds the headers where no columns are named.
    columns: tuple[str, ...] = COLUMNS
    fail_on_data_loss: bool = True
    isolation: Isolation = Isolation.READ_COMMITTED
    # Whether the pieces of open segments are read, which are in the bucket after an hour at most.
    include_open_segment: bool = True
    split_bytes: int = SPLIT_BYTES
    splits_min: int = 1
    records_max: int | None = None
    scan_report: str | None = None
    engine: Engine = Engine.AUTO
    # How long tasks may read objects that the driver signed for them.
    url_expiry_s: int = URL_EXPIRY_S
    trigger: TriggerLimits = field(default_factory=TriggerLimits)
    s3: S3Options = field(default_factory=S3Options)

    def __post_init__(self) -> None:
        """Raises InvalidConfig for a partition that would end before it begins."""
        for partition, start in self.start.named.items():
            end = self.end.named.get(partition)
            if _is_behind(start, end):
                raise InvalidConfig(
                    f"options {self.start.option} and {self.end.option}: {partition.topic}"
                    f" partition {partition.partition} would end before it begins"
                )
        if _is_behind(self.start.default, self.end.default):
            raise InvalidConfig(
                f"options {self.start.option} and {self.end.option}: the query would end before it"
                " begins"
            )

    @property
    def open_for(self) -> Isolation | None:
        """How pieces of open segments are read; None: not at all."""
        return self.isolation if self.include_open_segment else None

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode = Mode.BATCH) -> LakeOptions:
        """Raises InvalidConfig, naming the option and the remedy."""
        given = GivenOptions(options)
        _check_mode(given, mode)
        first = Edge.LATEST if mode is Mode.STREAM else Edge.EARLIEST
        return cls(
            url=_url(given),
            selection=_selection(given),
            # As in Spark's Kafka source, a stream begins at the end if nothing else is said.
            start=_bounds(given, "starting", first, Edge.LATEST if mode is Mode.BATCH else None),
            end=_bounds(given, "ending", Edge.LATEST, Edge.EARLIEST),
            fail_without_match=given.one_of(
                "startingOffsetsByTimestampStrategy", {"error": True, "latest": False}, "error"
            ),
            values=_values(given),
            columns=_columns(given),
            fail_on_data_loss=given.boolean("failOnDataLoss", default=True),
            isolation=given.one_of(
                "isolationLevel",
                {
                    "read_committed": Isolation.READ_COMMITTED,
                    "read_uncommitted": Isolation.READ_UNCOMMITTED,
                },
                "read_committed",
            ),
            include_open_segment=given.boolean("includeOpenSegment", default=True),
            split_bytes=given.number("splitBytes", default=SPLIT_BYTES, at_least=SPLIT_BYTES_MIN),
            splits_min=given.number("minPartitions", default=1, at_least=1, at_most=SPLITS_MAX),
            records_max=given.number("maxRecordsPerPartition", default=0, at_least=1) or None,
            scan_report=given.text("scanReport"),
            engine=given.one_of("engine", {one.value: one for one in Engine}, "auto"),
            url_expiry_s=_url_expiry_s(given),
            trigger=_trigger(given),
            s3=S3Options(
                endpoint_url=given.text("s3.endpoint.url"),
                region=given.text("s3.region"),
                key=given.text("s3.key"),
                secret=given.text("s3.secret"),
                token=given.text("s3.token"),
                anonymous=given.boolean("s3.anonymous", default=False),
                profile=given.text("s3.profile"),
                requester_pays=given.boolean("s3.requester.pays", default=False),
            ),
        )


# Options that only one kind of query has.
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def _is_behind(start: Bound, end: Bound | None) -> bool:
    """Whether nothing can be between them; offsets and times cannot be compared."""
    match start, end:
        case AtOffset(first), AtOffset(last):
            return first > last
        case AtTimestamp(first), AtTimestamp(last):
            return first > last
    return False


# --- the parts --------------------------------------------------------------------------------


def _check_mode(given: GivenOptions, mode: Mode) -> None:
    refused = {Mode.BATCH: _STREAM_ONLY, Mode.STREAM: _BATCH_ONLY, Mode.ANY: ()}[mode]
    for name in refused:
        if given.text(name) is not None:
            other = Mode.STREAM if mode is Mode.BATCH else Mode.BATCH
            raise InvalidConfig(f"option {name} works in a query of {other.value} only")


def _trigger(given: GivenOptions) -> TriggerLimits:
    def bound(name: str) -> int | None:
        return given.number(name, default=0, at_least=1) or None

    limits = TriggerLimits(
        offsets_max=bound("maxOffsetsPerTrigger"),
        bytes_max=bound("maxBytesPerTrigger"),
        offsets_min=bound("minOffsetsPerTrigger"),
        delay_ms_max=duration_ms("maxTriggerDelay", given.text("maxTriggerDelay") or "15m"),
    )
    if limits.offsets_min and limits.offsets_max and limits.offsets_min > limits.offsets_max:
        raise InvalidConfig(
            f"option minOffsetsPerTrigger is {limits.offsets_min}, more than maxOffsetsPerTrigger,"
            f" {limits.offsets_max}"
        )
    return limits


def _values(given: GivenOptions) -> ValueOptions:
    options = ValueOptions(
        format=given.one_of("valueFormat", {one.value: one for one in ValueFormat}, "raw"),
        errors=given.one_of("valueErrors", {one.value: one for one in ValueErrors}, "fail"),
        schema=given.text("valueSchema"),
        descriptors=given.text("valueDescriptors"),
        message=given.text("valueMessage"),
        subject=given.text("valueSubject"),
        registry_url=given.text("schemaRegistry.url"),
        registry_auth=given.text("schemaRegistry.auth"),
    )
    for name, formats in _FORMATS_WITH.items():
        if given.text(name) is not None and options.format not in formats:
            raise InvalidConfig(
                f"option {name} means nothing with valueFormat={options.format.value}; it goes with"
                f" {' or '.join(one.value for one in formats)}"
            )
    return options


_REGISTERED = (ValueFormat.JSON, ValueFormat.AVRO, ValueFormat.PROTOBUF)
_FORMATS_WITH = {
    "valueSchema": (ValueFormat.JSON, ValueFormat.AVRO),
    "valueErrors": (ValueFormat.STRING, *_REGISTERED),
    "valueDescriptors": (ValueFormat.PROTOBUF,),
    "valueMessage": (ValueFormat.PROTOBUF,),
    "valueSubject": _REGISTERED,
    "schemaRegistry.url": _REGISTERED,
    "schemaRegistry.auth": _REGISTERED,
}


def _columns(given: GivenOptions) -> tuple[str, ...]:
    with_headers = given.boolean("includeHeaders", default=False)
    corrupt = (CORRUPT_COLUMN,) if _values(given).errors is ValueErrors.CORRUPT else ()
    known = (*COLUMNS, HEADERS_COLUMN, *corrupt)
    text = given.text("columns")
    if text is None:
        return known if with_headers else (*COLUMNS, *corrupt)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in known:
            raise InvalidConfig(
                f"option columns has {name!r}; the nearest column is {nearest(name, known)}"
            )
    if len(set(names)) < len(names):
        raise InvalidConfig(f"option columns names a column twice: {text}")
    return names


def _url(given: GivenOptions) -> str:
    text = given.text("path")
    if text is None:
        raise InvalidConfig(
            "option path is missing: the archive's URL, s3://bucket/prefix or file:///folder"
        )
    if text.startswith("/"):
        text = "file://" + text
    parts = urlsplit(text)
    if parts.scheme in ("s3a", "s3n"):  # what Hadoop calls it
        parts = parts._replace(scheme="s3")
    if parts.scheme == "file" and parts.netloc == "" and parts.path.strip("/"):
        return "file://" + parts.path.rstrip("/")
    if parts.scheme == "s3" and parts.netloc and not parts.query and not parts.fragment:
        return f"s3://{parts.netloc}/{parts.path.strip('/')}".rstrip("/")
    raise InvalidConfig(
        f"option path is {text!r}, it must be s3://bucket/prefix or file:///absolute/folder"
    )


def _selection(given: GivenOptions) -> Selection:
    names = [
        name for name in ("subscribe", "subscribePattern", "assign") if given.text(name) is not None
    ]
    if len(names) != 1:
        raise InvalidConfig(
            "exactly one of the options subscribe, subscribePattern and assign says what is read;"
            f" given: {', '.join(names) or 'none'}"
        )
    if names == ["subscribe"]:
        named = [topic.strip() for topic in (given.text("subscribe") or "").split(",")]
        # Empty names are passed over, as Spark's Kafka source does.
        topics = dict.fromkeys(topic for topic in named if topic)
        if not topics:
            raise InvalidConfig("option subscribe names no topic between its commas")
        return Subscribe(tuple(topics))
    if names == ["subscribePattern"]:
        return SubscribePattern(_pattern(given.text("subscribePattern") or ""))
    return Assign(_assignment(given.text("assign") or ""))


def _url_expiry_s(given: GivenOptions) -> int:
    text = given.text("urlExpiry")
    if text is None:
        return URL_EXPIRY_S
    seconds = duration_ms("urlExpiry", text) // 1000
    if not URL_EXPIRY_S_MIN <= seconds <= URL_EXPIRY_S_MAX:
        raise InvalidConfig(f"option urlExpiry is {text!r}, it must be from 1m to 7d")
    return seconds


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidConfig(f"option subscribePattern is no regular expression: {error}") from error
    return text


def _assignment(text: str) -> dict[str, tuple[int, ...]]:
    example = '{"topic": [0, 1]}'
    partitions_by_topic: dict[str, tuple[int, ...]] = {}
    for topic, partitions in json_object("assign", text, example).items():
        if not isinstance(partitions, list) or not all(
            type(partition) is int and partition >= 0 for partition in partitions
        ):
            raise InvalidConfig(f"option assign for {topic} is {partitions!r}, expected {example}")
        if not partitions:
            raise InvalidConfig(
                f"option assign names no partition of {topic}: leave the topic out, or subscribe it"
            )
        partitions_by_topic[topic] = tuple(dict.fromkeys(partitions))
    if not partitions_by_topic:
        raise InvalidConfig(f"option assign names no topic, expected {example}")
    return partitions_by_topic


def _bounds(given: GivenOptions, which: str, default: Edge, refused: Edge | None) -> Bounds:
    """The bounds of one end; `refused` is the edge that would leave nothing to read."""
    name = f"{which}Timestamp"
    if (text := given.text(name)) is not None:
        return Bounds(option=name, default=AtTimestamp(integer(name, text)))
    name = f"{which}OffsetsByTimestamp"
    if (text := given.text(name)) is not None:
        return Bounds(option=name, default=default, named=_named(name, text, AtTimestamp))
    name = f"{which}Offsets"
    text = given.text(name) or default.name.lower()
    for edge in Edge:
        if text.lower() != edge.name.lower():
            continue
        if edge is refused:
            raise InvalidConfig(f"option {name} may not be {text.lower()} in a batch query")
        return Bounds(option=name, default=edge)

    def bound(offset: int) -> Bound:
        for edge in Edge:
            if offset != edge.value:
                continue
            if edge is refused:
                raise InvalidConfig(
                    f"option {name} may not hold {offset} ({edge.name.lower()}) in a batch query"
                )
            return edge
        if offset < 0:
            raise InvalidConfig(f"option {name} holds the offset {offset}")
        return AtOffset(offset)

    return Bounds(option=name, default=default, named=_named(name, text, bound))


def _named(name: str, text: str, bound: Callable[[int], Bound]) -> dict[TopicPartition, Bound]:
    example = '{"topic": {"0": 23, "1": 42}}'
    named: dict[TopicPartition, Bound] = {}
    for topic, numbers in json_object(name, text, example).items():
        if not isinstance(numbers, dict):
            raise InvalidConfig(f"option {name} for {topic} is {numbers!r}, expected {example}")
        for partition, number in numbers.items():
            if not partition.isdecimal() or type(number) is not int:
                raise InvalidConfig(
                    f"option {name} for {topic} holds {partition!r}: {number!r}, expected {example}"
                )
            named[TopicPartition(topic, int(partition))] = bound(number)
    if not named:
        raise InvalidConfig(f"option {name} names no partition, expected {example}")
    return named
