"""Random archives of every kind of record, random questions about them, and the plain answer.

archive   topics of several partitions: codecs, transactions (committed, aborted, across segment
          borders), control batches, gaps, batches that compaction emptied, both kinds of
          timestamps, times out of order, nulls, headers, manifest pages, a log start within a
          segment, pieces of an open segment with a transaction that has no end yet
question  topics, bounds of every kind, filters, columns, isolation, cuts
answer    the rows of a list in memory, picked one by one
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

from strandline.storage.model import AbortedTransaction, EpochStart, TimestampType
from strandline.storage.records.batch.batch import HEADER
from strandline.storage.records.batch.record import Header, Record, encode_batch, with_crc
from strandline.storage.records.compression import Codec
from strandline.storage.remote import keys
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.interface import checksum
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import Section
from strandline.storage.tiering.copy.inspection import Offsets, inspect_records
from strandline.storage.tiering.copy.segment_sections import sections_of
from strandline.storage.tiering.copy.segment_walk import AdaptiveWalk
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder

KEYS = (None, b"", b"\x00", b"k1", b"k2", "é".encode(), b"K1", b"k1 ", b"k" * 300)
VALUES = (None, b"", b"x", b"value")
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
TRANSACTION_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record of the log, as the model has it."""

    topic: str
    partition: int
    record: Record
    timestamp_ms: int
    timestamp_type: int
    is_aborted: bool
    is_undecided: bool
    is_open: bool

    def column(self, name: str) -> Any:
        match name:
            case "key" | "value" | "offset":
                return getattr(self.record, name)
            case "timestamp":
                return self.timestamp_ms
            case "timestampType":
                return self.timestamp_type
            case "headers":
                pairs = [{"key": one.key, "value": one.value} for one in self.record.headers]
                return pairs or None
        return getattr(self, name)


@dataclass
class _Batch:
    """One batch on its way into a log; control and emptied batches have no rows."""

    content: bytes
    end_offset: int
    rows: list[Row] = field(default_factory=list)
    producer_id: int = -1


class RandomArchive:
    """`rows` is all that a reader of uncommitted records gets, in the order of a scan."""

    def __init__(self, folder: Path, source: random.Random, *, value_bytes: int = 40) -> None:
        self.random = source
        self.value_bytes = value_bytes
        self.archive = ArchiveBuilder(folder)
        self.rows: list[Row] = []
        # The first and the last time of each chunk, where a wrong comparison shows.
        self.edges_ms: list[int] = []
        self.ends: dict[tuple[str, int], tuple[int, int]] = {}
        for topic in ("A", "a", "b.c"):
            partitions = source.randint(1, 3)
            self.archive.add_topic(topic, partitions=partitions)
            for partition in range(partitions):
                self.ends[topic, partition] = (0, 0)
                if source.random() < 0.9:
                    self._fill(topic, partition)

    # --- one partition -----------------------------------------------------------------------

    def _fill(self, topic: str, partition: int) -> None:
        batches, aborted, undecided = self._log(topic, partition)
        log_start = HEADER.unpack_from(batches[0].content)[0]
        self.archive.move_log_start(topic, log_start, partition=partition)
        cuts = sorted(self.random.sample(range(1, len(batches)), min(4, len(batches) - 1)))
        pieces_from = cuts.pop() if self.random.random() < 0.6 or undecided is not None else None
        bounds = [0, *cuts, pieces_from or len(batches)]
        if undecided is not None:
            # Nothing at or above the first undecided record is in a closed segment.
            first = next(n for n, one in enumerate(batches) if one.end_offset > undecided)
            bounds = [*[one for one in bounds if one < first], min(first, bounds[-1])]
        bounds = list(dict.fromkeys(bounds))
        for start, end in itertools.pairwise(bounds):
            self._segment(topic, partition, batches[start:end], aborted)
        if pieces_from is not None:
            self._pieces(topic, partition, batches[bounds[-1] :])
        manifest = self.archive.manifest(topic, partition)
        if len(manifest.segments) > 2 and self.random.random() < 0.5:
            self.archive.seal_page(topic, self.random.randint(1, 2), partition=partition)
        # The log start as well within a segment as at its border.
        first_kept = log_start
        if bounds[-1] and self.random.random() < 0.3:
            first_kept = self.random.randint(log_start, batches[bounds[-1] - 1].end_offset - 1)
            self.archive.move_log_start(topic, first_kept, partition=partition)
        open_from = batches[bounds[-1] - 1].end_offset if bounds[-1] else log_start
        end = batches[-1].end_offset if pieces_from is not None else open_from
        start = first_kept
        self.ends[topic, partition] = (start, end)
        for batch in batches:
            for row in batch.rows:
                offset = row.record.offset
                if start <= offset < end:
                    self.rows.append(
                        Row(
                            topic=topic,
                            partition=partition,
                            record=row.record,
                            timestamp_ms=row.timestamp_ms,
                            timestamp_type=row.timestamp_type,
                            is_aborted=any(
                                one.producer_id == batch.producer_id
                                and one.first_offset <= offset <= one.last_offset
                                for one in aborted
                            ),
                            is_undecided=undecided is not None and offset >= undecided,
                            is_open=offset >= open_from,
                        )
                    )

    def _log(
        self, topic: str, partition: int
    ) -> tuple[list[_Batch], list[AbortedTransaction], int | None]:
        """Batches of this partition, what was aborted in them, and from where all is undecided."""
        source = self.random
        offset = source.choice([0, 0, 17])
        batches: list[_Batch] = []
        begun: dict[int, int] = {}
        aborted: list[AbortedTransaction] = []
        for _ in range(source.randint(6, 40)):
            chance = source.random()
            if begun and chance < 0.2:
                producer, first = begun.popitem()
                commits = source.random() < 0.5
                batches.append(_marker(offset, producer, commits=commits))
                if not commits:
                    aborted.append(AbortedTransaction(producer, first, offset, offset + 1))
            elif chance < 0.25:
                batches.append(_emptied(offset, offset + source.randint(0, 9)))
            else:
                is_transactional = topic != "b.c" and source.random() < TRANSACTION_SHARE
                producer = source.choice([7, 8]) if is_transactional else -1
                if producer > 0:
                    begun.setdefault(producer, offset)
                batches.append(self._batch(topic, partition, offset, producer))
            offset = batches[-1].end_offset
        keeps_open = source.random() < 0.4
        while begun and not keeps_open:
            producer, first = begun.popitem()
            batches.append(_marker(offset, producer, commits=True))
            offset += 1
        return batches, aborted, min(begun.values()) if begun else None

    def _batch(self, topic: str, partition: int, offset: int, producer: int) -> _Batch:
        source = self.random
        kind = source.choice([TimestampType.CREATE_TIME] * 4 + [TimestampType.LOG_APPEND_TIME])
        records = []
        for _ in range(source.choice([1, 3, 12, 30])):
            near = START_MS + offset * 1000
            odd = [START_MS + source.randint(-60_000, 600_000), -1, 0]
            # One topic has its times in order and no transactions: whole chunks are wanted of it.
            at = near if topic == "b.c" else source.choice([near] * 8 + odd)
            headers = [
                (),
                (),
                (Header("trace", b"1"), Header("trace", None)),
                (Header("", b""), Header("é", source.randbytes(3))),
            ]
            value = source.choice([*VALUES, source.randbytes(self.value_bytes)])
            records.append(
                Record(
                    offset=offset,
                    timestamp_ms=at,
                    key=source.choice(KEYS),
                    value=value,
                    headers=source.choice(headers),
                )
            )
            offset += source.choice([1, 1, 1, 1, 3])
        content = encode_batch(
            records,
            codec=source.choice(list(Codec)),
            timestamp_type=kind,
            transactional=producer > 0,
            producer_id=producer,
            producer_epoch=0 if producer > 0 else -1,
        )
        latest_ms = max(one.timestamp_ms for one in records)
        rows = [
            Row(
                topic=topic,
                partition=partition,
                record=one,
                timestamp_ms=latest_ms if kind else one.timestamp_ms,
                timestamp_type=int(kind),
                is_aborted=False,
                is_undecided=False,
                is_open=False,
            )
            for one in records
        ]
        return _Batch(content, records[-1].offset + 1, rows, producer)

    def _segment(
        self,
        topic: str,
        partition: int,
        batches: Sequence[_Batch],
        aborted: Sequence[AbortedTransaction],
    ) -> None:
        content = b"".join(one.content for one in batches)
        start, end = HEADER.unpack_from(content)[0], batches[-1].end_offset
        facts = inspect_records(
            memoryview(content),
            base_offset=start,
            end_offset=end,
            walk=AdaptiveWalk(),
            offsets=Offsets.SOME,
        )
        # As the copier writes them: whatever touches the segment, wherever its marker lies.
        touching = [one for one in aborted if one.first_offset < end and one.last_offset >= start]
        self.edges_ms += [
            ms for one in facts.chunks for ms in (one.bounds.min_ms, one.bounds.max_ms)
        ]
        epochs = (EpochStart(0, start),)
        made = sections_of(facts, leader_epochs=epochs, aborted=touching, producer_snapshot=None)
        if self.random.random() < 0.2:
            made.pop(Section.KEY_FILTER, None)  # as where it would spare nothing
        meta = segment_meta.encode(made)
        manifest = self.archive.manifest(topic, partition)
        names = keys.segment_keys(
            manifest.topic_id_partition,
            base_offset=start,
            leader_epoch=0,
            unique=keys.new_unique(),
        )
        self.archive.store.put(names.log_key, content)
        self.archive.store.put(names.meta_key, meta)
        entry = SegmentEntry(
            base_offset=start,
            end_offset=end,
            leader_epochs=epochs,
            size_bytes=len(content),
            record_count=facts.record_count,
            min_timestamp_ms=facts.bounds.min_ms,
            max_timestamp_ms=facts.bounds.max_ms,
            log_key=names.log_key,
            meta_key=names.meta_key,
            log_crc32c=facts.crc32c,
            meta_size_bytes=len(meta),
            meta_crc32c=checksum(meta),
            has_transactions=facts.transactional_batch_count > 0,
            uploaded_ms=START_MS,
        )
        self.archive.save(replace(manifest, revision=manifest.revision + 1).with_segment(entry))

    def _pieces(self, topic: str, partition: int, batches: Sequence[_Batch]) -> None:
        while batches:
            count = self.random.randint(1, len(batches))
            self.archive.add_piece(
                topic,
                [one.content for one in batches[:count]],
                partition=partition,
                is_told=self.random.random() < 0.7,
            )
            batches = batches[count:]


def _marker(offset: int, producer: int, *, commits: bool) -> _Batch:
    key = b"\0\0\0\1" if commits else bytes(4)
    content = encode_batch(
        [Record(offset=offset, timestamp_ms=START_MS, key=key, value=bytes(6))],
        producer_id=producer,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    return _Batch(content, offset + 1)


def _emptied(first: int, last: int) -> _Batch:
    """What compaction leaves of a batch whose records are all gone."""
    batch = bytearray(HEADER.pack(first, 49, 0, 2, 0, 0, last - first, 0, 0, 5, 0, 0, 0))
    return _Batch(bytes(with_crc(batch)), last + 1)


# --- questions ----------------------------------------------------------------------------------

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The arguments of `scan`; `has` is the plain answer's judgement of a row."""

    columns: tuple[str, ...] | None
    filters: tuple[tuple[str, str, Any], ...]
    options: Mapping[str, Any]
    topics: frozenset[tuple[str, int]]
    bounds: Mapping[tuple[str, int], tuple[int, int]]

    def answer(self, rows: Sequence[Row]) -> list[Row]:
        committed = self.options.get("isolationLevel") != "read_uncommitted"
        with_open = self.options.get("includeOpenSegment", True)
        return [
            row
            for row in rows
            if (row.topic, row.partition) in self.topics
            and not (committed and (row.is_aborted or row.is_undecided))
            and (with_open or not row.is_open)
            and self._is_within(row)
            and all(_holds(row, *one) for one in self.filters)
        ]

    def _is_within(self, row: Row) -> bool:
        start, end = self.bounds.get((row.topic, row.partition), (0, 2**62))
        return start <= row.record.offset < end


def _holds(row: Row, column: str, symbol: str, wanted: Any) -> bool:
    found = row.column(column)
    if found is None:
        return False
    if symbol in ("in", "not in"):
        return bool((found in wanted) == (symbol == "in"))
    if isinstance(wanted, dt.datetime):
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        found = epoch + dt.timedelta(milliseconds=found)
    return _OPERATORS[symbol](found, wanted)


class Questions:
    """Random questions about one archive."""

    def __init__(
        self,
        asked: RandomArchive,
        source: random.Random,
        *,
        records_max: Sequence[int] = (1, 7, 50),
    ) -> None:
        """`records_max`: what maxRecordsPerPartition may be."""
        self._asked = asked
        self._records_max = records_max
        self.random = source

    def next(self) -> Question:
        source = self.random
        options: dict[str, Any] = {}
        topics = self._topics(options)
        for name, values in {
            "isolationLevel": ["read_uncommitted", "read_committed"],
            "includeOpenSegment": [False, True],
            "maxRecordsPerPartition": self._records_max,
            "minPartitions": [2, 9],
        }.items():
            if source.random() < 0.3:
                options[name] = source.choice(values)
        columns = None
        if source.random() < 0.5:
            columns = tuple(source.sample(COLUMNS, source.randint(1, len(COLUMNS))))
        elif source.random() < 0.5:
            options["includeHeaders"] = True
        return Question(
            columns=columns,
            filters=tuple(self._filter() for _ in range(source.choice([0, 1, 1, 2, 3]))),
            topics=topics,
            bounds=self._bounds(options, topics),
            options=options,
        )

    def of_times(self) -> Question:
        """From one edge of a chunk to another, of everything: most of it needs no reading."""
        first, last = sorted(self.random.choice(self._asked.edges_ms) for _ in range(2))
        symbols = self.random.choice([(">=", "<"), (">", "<=")])
        return Question(
            columns=("topic", "partition", "offset"),
            filters=(("timestamp", symbols[0], first), ("timestamp", symbols[1], last)),
            options={"subscribePattern": "."},
            topics=frozenset(self._asked.ends),
            bounds={},
        )

    def _topics(self, options: dict[str, Any]) -> frozenset[tuple[str, int]]:
        """Every way to say which; the partitions that are read."""
        known = sorted(self._asked.ends)
        match self.random.randrange(3):
            case 0:
                names = self.random.sample(["A", "a", "b.c"], self.random.randint(1, 3))
                options["subscribe"] = ",".join(names)
                return frozenset(one for one in known if one[0] in names)
            case 1:
                pattern, names = self.random.choice(
                    [(".*", ["A", "a", "b.c"]), ("[ab]", ["a", "b.c"]), ("^A$", ["A"])]
                )
                options["subscribePattern"] = pattern
                return frozenset(one for one in known if one[0] in names)
        chosen = self.random.sample(known, self.random.randint(1, len(known)))
        assigned: dict[str, list[int]] = {}
        for topic, partition in chosen:
            assigned.setdefault(topic, []).append(partition)
        options["assign"] = assigned
        return frozenset(chosen)

    def _bounds(
        self, options: dict[str, Any], topics: frozenset[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        source = self.random
        bounds: dict[tuple[str, int], tuple[int, int]] = {}
        if source.random() < 0.6:
            return bounds
        # What is not there, and so outside of what may be read, is passed over.
        options["failOnDataLoss"] = False
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for topic, partition in sorted(topics):
            first, last = self._asked.ends[topic, partition]
            one, other = sorted(source.randint(max(0, first - 5), last + 5) for _ in range(2))
            starts.setdefault(topic, {})[str(partition)] = one
            ends.setdefault(topic, {})[str(partition)] = other
            bounds[topic, partition] = (one, other)
        options["startingOffsets"], options["endingOffsets"] = starts, ends
        return bounds

    def _filter(self) -> tuple[str, str, Any]:
        source = self.random
        column = source.choice(["key", "key", "timestamp", "timestamp", "offset", *COLUMNS[1:-1]])
        if column in ("key", "topic", "partition", "offset") and source.random() < 0.3:
            values = [self._value(column) for _ in range(source.randint(0, 3))]
            return column, source.choice(["in", "in", "not in"]), values
        return column, source.choice(list(_OPERATORS)), self._value(column)

    def _value(self, column: str) -> Any:
        source = self.random
        match column:
            case "key":
                return source.choice([*KEYS[1:], b"nobody"])
            case "value":
                return source.choice([b"", b"x", b"value", b"w"])
            case "topic":
                return source.choice(["A", "a", "b.c", "c"])
            case "partition" | "timestampType":
                return source.randint(-1, 3)
            case "offset":
                return source.choice([source.randint(-3, 500), 2**63 - 1, -(2**63)])
        edge = source.choice(self._asked.edges_ms)
        some = START_MS + source.randint(-70_000, 700_000)
        milliseconds = source.choice([edge, edge, some, -1, 0, 1])
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(
            milliseconds=milliseconds, microseconds=source.choice([0, 0, 1, -1, 999])
        )
        return source.choice([milliseconds, moment])


def told(row: Row, columns: Sequence[str]) -> dict[str, Any]:
    """The row as `scan` gives it, with the timestamp in milliseconds."""
    return {name: row.column(name) for name in columns}


def described(question: Question) -> str:
    """For whoever reads a failure."""
    options = json.dumps(dict(question.options))
    return f"columns={question.columns} filters={question.filters} options={options}"


def rows_of(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        if "timestamp" in row:
            row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
        if row.get("headers") is not None:
            row["headers"] = [dict(one) for one in row["headers"]]
    return rows
