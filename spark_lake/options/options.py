"""Options of `spark.read.format("strandline")`: their names, values and checks.

Names and meanings are those of Spark's Kafka source where it has the option:

    which topics   subscribe | subscribePattern | assign                       exactly one
    where to begin startingTimestamp > startingOffsetsByTimestamp > startingOffsets  (first given)
    where to end   endingTimestamp > endingOffsetsByTimestamp > endingOffsets

A starting timestamp means the *offset* of the first record at or after it, as in Kafka: later
records with smaller timestamps are still read. A filter on column `timestamp` is exact per row.

Ours are `path`, `columns`, `value*`, `schemaRegistry.*`, `splitBytes`, `isolationLevel`,
`includeOpenSegment`, `scanReport`, `engine`, `urlExpiry`, and `s3.*`. Which topics, where to begin
and end, and how values are read are groups with files of their own (`selection_options.py`,
`bound_options.py`, `value_options.py`). Pure: opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import SplitResult, unquote, urlsplit

from strandline.spark_lake.options.bound_options import Bounds, Edge, is_behind, parse_bounds
from strandline.spark_lake.options.given_options import (
    GivenOptions,
    duration_ms,
    nearest,
)
from strandline.spark_lake.options.selection_options import Selection, parse_selection
from strandline.spark_lake.options.value_options import ValueErrors, ValueOptions, parse_values
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import Isolation
from strandline.storage.urls import check_no_password

# One split is one Spark task: large enough to outweigh starting it (some 50 ms), small enough to
# spread over executors and to be repeated cheaply.
SPLIT_BYTES = 64 * 1024 * 1024
SPLIT_BYTES_MIN = 1024 * 1024
# The columns of Spark's Kafka source.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS_COLUMN = "headers"
# The bytes of values that do not parse, with valueErrors=corrupt.
CORRUPT_COLUMN = "_corrupt"
# The bytes of every value, and why one does not parse: columns of tables only, whose rows may be
# refused for other reasons, too (`table/columns.py`).
RAW_COLUMN = "_raw"
REASON_COLUMN = "_reason"
# A working day, and what S3 allows at most. Temporary credentials may end earlier.
URL_EXPIRY_S = 12 * 3600
URL_EXPIRY_S_MIN = 60
URL_EXPIRY_S_MAX = 7 * 24 * 3600
# More tasks than this must be a mistake.
SPLITS_MAX = 1_000_000


class ReadMode(Enum):
    """The kind of query; ANY while Spark asks for the schema without naming the kind."""

    BATCH = "read"
    STREAM = "readStream"
    ANY = "any"


class Engine(Enum):
    """The reader in Spark's tasks; the values are those of option engine."""

    AUTO = "auto"
    JVM = "jvm"
    PYTHON = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Access to S3; None takes the usual AWS chain (environment, profile, role)."""

    endpoint_url: str | None = None
    region: str | None = None
    # On each machine that reads.
    ca_file: str | None = None
    key: str | None = None
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    anonymous: bool = False
    profile: str | None = None
    requester_pays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """Limits of a micro-batch; None is no limit."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    # With fewer new offsets a trigger waits for more, for `delay_ms_max` at most.
    offsets_min: int | None = None
    delay_ms_max: int = 15 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """The parsed options of one read."""

    url: str
    selection: Selection
    start: Bounds
    end: Bounds
    # Whether a starting timestamp after the last record is an error, or no rows.
    fail_without_match: bool = True
    values: ValueOptions = field(default_factory=ValueOptions)
    # The decoded columns in order; `includeHeaders` adds the headers if no columns are named.
    columns: tuple[str, ...] = COLUMNS
    fail_on_data_loss: bool = True
    isolation: Isolation = Isolation.READ_COMMITTED
    # Whether to read pieces of open segments, which are in the bucket after an hour at most.
    include_open_segment: bool = True
    # None: sized for the tasks that run at once, or SPLIT_BYTES where their number is unknown.
    split_bytes: int | None = None
    splits_min: int = 1
    records_max: int | None = None
    scan_report: str | None = None
    engine: Engine = Engine.AUTO
    # Lifetime of presigned URLs.
    url_expiry_s: int = URL_EXPIRY_S
    trigger: TriggerLimits = field(default_factory=TriggerLimits)
    s3: S3Options = field(default_factory=S3Options)

    def __post_init__(self) -> None:
        """Raises InvalidConfig for a partition that would end before it begins."""
        for partition, start in self.start.named.items():
            end = self.end.named.get(partition)
            if is_behind(start, end):
                raise InvalidConfig(
                    f"options {self.start.option} and {self.end.option}: {partition.topic}"
                    f" partition {partition.partition} would end before it begins"
                )
        if is_behind(self.start.default, self.end.default):
            raise InvalidConfig(
                f"options {self.start.option} and {self.end.option}: the query would end before it"
                " begins"
            )

    @property
    def open_for(self) -> Isolation | None:
        """The isolation for pieces of open segments; None if they are not read."""
        return self.isolation if self.include_open_segment else None

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: ReadMode = ReadMode.BATCH) -> LakeOptions:
        """Raises InvalidConfig, naming the option and the remedy."""
        given = GivenOptions(options)
        _check_mode(given, mode)
        first = Edge.LATEST if mode is ReadMode.STREAM else Edge.EARLIEST
        return cls(
            url=_url(given),
            selection=parse_selection(given),
            # As in Spark's Kafka source, a stream starts at the end by default.
            start=parse_bounds(
                given, "starting", first, Edge.LATEST if mode is ReadMode.BATCH else None
            ),
            end=parse_bounds(given, "ending", Edge.LATEST, Edge.EARLIEST),
            fail_without_match=given.one_of(
                "startingOffsetsByTimestampStrategy", {"error": True, "latest": False}, "error"
            ),
            values=parse_values(given),
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
            split_bytes=given.number("splitBytes", default=0, at_least=SPLIT_BYTES_MIN) or None,
            splits_min=given.number("minPartitions", default=1, at_least=1, at_most=SPLITS_MAX),
            records_max=given.number("maxRecordsPerPartition", default=0, at_least=1) or None,
            scan_report=given.text("scanReport"),
            engine=given.one_of("engine", {one.value: one for one in Engine}, "auto"),
            url_expiry_s=_url_expiry_s(given),
            trigger=_trigger(given),
            s3=S3Options(
                endpoint_url=_endpoint(given),
                region=given.text("s3.region"),
                ca_file=given.text("s3.ca.file"),
                key=given.text("s3.access.key"),
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


# --- the parts --------------------------------------------------------------------------------


def _check_mode(given: GivenOptions, mode: ReadMode) -> None:
    refused = {ReadMode.BATCH: _STREAM_ONLY, ReadMode.STREAM: _BATCH_ONLY, ReadMode.ANY: ()}[mode]
    for name in refused:
        if given.text(name) is not None:
            other = ReadMode.STREAM if mode is ReadMode.BATCH else ReadMode.BATCH
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


def _columns(given: GivenOptions) -> tuple[str, ...]:
    with_headers = given.boolean("includeHeaders", default=False)
    corrupt = (CORRUPT_COLUMN,) if parse_values(given).errors is ValueErrors.CORRUPT else ()
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
    # A plain path: no character of it is special.
    is_folder = text.startswith("/")
    if not is_folder:
        check_no_password("option path", text)
    parts = SplitResult("file", "", text, "", "") if is_folder else urlsplit(text)
    # In a URL `%20` is a space, as for the broker. A URL cut at `#` names another archive.
    path = parts.path if is_folder else unquote(parts.path)
    if not parts.query and not parts.fragment:
        if parts.scheme == "file" and parts.netloc in ("", "localhost") and path.strip("/"):
            return "file://" + path.rstrip("/")
        # s3a and s3n are Hadoop's schemes.
        if parts.scheme in ("s3", "s3a", "s3n") and parts.netloc:
            return f"s3://{parts.netloc}/{path.strip('/')}".rstrip("/")
    raise InvalidConfig(
        f"option path is {text!r}, it must be s3://bucket/prefix or file:///absolute/folder"
    )


def _endpoint(given: GivenOptions) -> str | None:
    text = given.text("s3.endpoint.url")
    if text is not None:
        check_no_password("option s3.endpoint.url", text)
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfig(
                f"option s3.endpoint.url is {text!r}, it must be http://host:port or https://host"
            )
    return text


def _url_expiry_s(given: GivenOptions) -> int:
    text = given.text("urlExpiry")
    if text is None:
        return URL_EXPIRY_S
    seconds = duration_ms("urlExpiry", text) // 1000
    if not URL_EXPIRY_S_MIN <= seconds <= URL_EXPIRY_S_MAX:
        raise InvalidConfig(f"option urlExpiry is {text!r}, it must be from 1m to 7d")
    return seconds
