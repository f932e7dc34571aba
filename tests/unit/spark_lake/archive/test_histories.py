"""Random histories of an archive under a stream, against a plain model: each record exactly once.

    the archive   records are written; pieces of the open segment go up, grow together, go away;
                  segments are closed, archived later, merged, compressed anew, put into pages;
                  retention moves the log start up to what was read; the topic gets partitions
    the stream    triggers with and without limits, runs over what is available now, restarts with
                  other options, crashes after the offsets were written and after the rows were
    the store     lies now and then: what is there does not exist, manifests are older ones, names
                  are left out of lists

What is replaced is deleted at once: a batch that was planned before it either has the same rows or
fails, and is planned again, as Spark does it after a restart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from strandline.spark_lake import scan
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.spark_lake.spark.stream import StrandlineStreamReader, StreamDataLost
from strandline.storage.errors import InvalidConfig, ObjectNotFound, TierUnavailable
from strandline.storage.records.compression import Codec
from strandline.storage.remote.keys import tail_key
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.open_segment import TailPart
from tests.support.heavy import first
from tests.unit.spark_lake.archive_builder import (
    START_MS,
    ArchiveBuilder,
    ArchivedTopic,
    make_batches,
    make_records,
)
from tests.unit.spark_lake.stream_steps import Json, through_json

Row = tuple[int, int, bytes | None]

STEPS = 120
# What happens, and how often beside the others: a few pieces before a segment is closed.
WEIGHTS = {
    "write": 4,
    "piece": 5,
    "grow": 2,
    "close": 1,
    "archive": 2,
    "merge": 1,
    "recompress": 1,
    "seal": 1,
    "retain": 1,
    "more": 1,
}
BATCHES_MAX = 200


class QuietBuilder(ArchiveBuilder):
    """Makes entries, and saves no manifest."""

    def save(self, manifest: Manifest) -> None:
        self.topics[manifest.topic].manifests[manifest.partition] = manifest


@dataclass
class Log:
    """What the broker has of one partition; offsets from 0 on."""

    end: int = 0
    open_base: int = 0
    closed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def archive_end(self) -> int:
        return self.closed[0][0] if self.closed else self.open_base

    def segment_end(self, offset: int) -> int:
        return next((end for _, end in self.closed if end > offset), self.end)


class Broker:
    """Writes the archive of topic `t`, step by step, as random as told."""

    def __init__(self, folder: Path, source: random.Random) -> None:
        self.archive = ArchiveBuilder(folder)
        self.archive.add_topic("t", partitions=1)
        self.random = source
        self.logs = {0: Log()}
        # Nothing at or above these may be deleted: the stream has not committed it.
        self.read_up_to: dict[int, int] = {}

    def step(self) -> None:
        partition = self.random.choice(list(self.logs))
        log = self.logs[partition]
        manifest = self.archive.manifest("t", partition)
        (what,) = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        match what:
            case "write":
                log.end += self.random.randint(1, 30)
            case "piece" if log.end > self._uploaded(log, manifest):
                self._upload_piece(partition)
            case "grow" if self._may_grow_together(log, manifest.tail[-2:]):
                self._grow_together(partition)
            case "close" if log.end > log.open_base:
                log.closed.append((log.open_base, log.end))
                log.open_base = log.end
            case "archive" if log.closed:
                self.archive_next(partition)
            case "merge" if len(manifest.segments) > 1:
                first = self.random.randrange(len(manifest.segments) - 1)
                self._replace(partition, manifest.segments[first : first + 2])
            case "recompress" if manifest.segments:
                self._replace(partition, [self.random.choice(manifest.segments)])
            case "seal" if len(manifest.segments) > 2:
                self.archive.seal_page("t", 1, partition=partition)
            case "retain":
                limit = min(self.read_up_to.get(partition, 0), manifest.end_offset)
                if limit > manifest.log_start_offset:
                    start = self.random.randint(manifest.log_start_offset, limit)
                    self.archive.move_log_start("t", start, partition=partition)
            case "more" if len(self.logs) < 3:
                known = self.archive.topics["t"]
                count = len(self.logs) + 1
                known.info = replace(known.info, partition_count=count)
                self.archive.store.put(known.info.key, known.info.encode())
                # It may have an archive before the stream hears of it.
                end = self.random.choice([0, 0, 20])
                self.logs[count - 1] = Log(end, end, [(0, end)] if end else [])
                if end:
                    self.archive_next(count - 1)

    def archive_next(self, partition: int) -> None:
        """The next closed segment goes up; its pieces go, and those behind it stay."""
        start, end = self.logs[partition].closed.pop(0)
        tail = self.archive.manifest("t", partition).tail
        self.archive.add_segment("t", batches(partition, start, end), partition=partition)
        kept = {part.key for part in self.archive.manifest("t", partition).tail}
        self._delete([part.key for part in tail if part.key not in kept])

    def readable(self, partition: int) -> tuple[int, int]:
        """From the log start to where the archive ends, with the pieces behind it."""
        manifest = self.archive.manifest("t", partition)
        end = max(manifest.end_offset, manifest.log_start_offset)
        if manifest.tail and manifest.tail[0].base_offset == end:
            end = manifest.tail[-1].end_offset
        return manifest.log_start_offset, end

    def _uploaded(self, log: Log, manifest: Manifest) -> int:
        return manifest.tail[-1].end_offset if manifest.tail else log.archive_end

    def _upload_piece(self, partition: int) -> None:
        """No piece reaches over the end of a segment."""
        log, manifest = self.logs[partition], self.archive.manifest("t", partition)
        start = self._uploaded(log, manifest)
        end = self.random.randint(start + 1, log.segment_end(start))
        self._save_tail(partition, manifest.tail, start, end)

    def _may_grow_together(self, log: Log, parts: Sequence[TailPart]) -> bool:
        return len(parts) == 2 and parts[1].end_offset <= log.segment_end(parts[0].base_offset)

    def _grow_together(self, partition: int) -> None:
        tail = self.archive.manifest("t", partition).tail
        self._save_tail(partition, tail[:-2], tail[-2].base_offset, tail[-1].end_offset)

    def _save_tail(self, partition: int, kept: Sequence[TailPart], start: int, end: int) -> None:
        manifest = self.archive.manifest("t", partition)
        replaced = replace(manifest, tail=tuple(kept))
        gone = [part.key for part in manifest.tail if part not in kept]
        self.archive.topics["t"].manifests[partition] = replaced
        made = self.archive.add_piece("t", batches(partition, start, end), partition=partition)
        assert made.key.startswith(
            tail_key(manifest.topic_id_partition, base_offset=start, leader_epoch=0, unique="")[:-6]
        )
        self._delete(gone)

    def _replace(self, partition: int, old: Sequence[SegmentEntry]) -> None:
        manifest = self.archive.manifest("t", partition)
        quiet = QuietBuilder(self.archive.path)
        start, end = old[0].base_offset, old[-1].end_offset
        begun = Manifest(
            topic="t",
            topic_id=manifest.topic_id,
            partition=partition,
            log_start_offset=start,
        )
        quiet.topics["t"] = ArchivedTopic(self.archive.topics["t"].info, {partition: begun})
        codec = self.random.choice([Codec.NONE, Codec.ZSTD, Codec.LZ4])
        new = quiet.add_segment("t", batches(partition, start, end, codec), partition=partition)
        self.archive.save(manifest.with_replacement(old, new, marked_ms=START_MS))
        self._delete([key for one in old for key in (one.log_key, one.meta_key)])

    def _delete(self, keys: Sequence[str]) -> None:
        self.archive.store.delete(list(keys))


def batches(partition: int, start: int, end: int, codec: Codec = Codec.NONE) -> list[bytes]:
    """The same records at the same offsets, whatever they are cut into."""
    records = [record(partition, offset) for offset in range(start, end)]
    return make_batches(records, per_batch=7, codec=codec)


def record(partition: int, offset: int) -> Any:
    return make_records(1, base_offset=offset, seed=partition + 1)[0]


# What a stream may end with when the store lies, and nothing else.
LIES = (StreamDataLost, ObjectNotFound, InvalidConfig)


class LyingStore:
    """What readers are told while `lies` is true: now and then not what there is."""

    def __init__(self, source: random.Random, patch: pytest.MonkeyPatch) -> None:
        self.random = source
        self.lies = False
        self.told = 0
        self._older: dict[str, list[bytes]] = {}
        self._get = ObjectReader.get
        self._list = ObjectReader.list_folders

        def get(reader: ObjectReader, key: str, *, start: int = 0, end: int | None = None) -> bytes:
            if end is not None:
                return self._get(reader, key, start=start, end=end)
            return self.get(reader, key)

        def list_folders(reader: ObjectReader, prefix: str) -> list[str]:
            return self.names(reader, prefix)

        patch.setattr(ObjectReader, "get", get)
        patch.setattr(ObjectReader, "list_folders", list_folders)

    def get(self, reader: ObjectReader, key: str) -> bytes:
        if self._lies():
            raise ObjectNotFound(key, "read", "a lie")
        content = self._get(reader, key)
        if not key.endswith(("manifest.json", "topic.json")):
            return content
        older = self._older.setdefault(key, [])
        if older and self._lies():
            return self.random.choice(older)
        older[:] = [*older, content][-5:]
        return content

    def names(self, reader: ObjectReader, at: str) -> list[str]:
        names = self._list(reader, at)
        return [name for name in names if not self._lies()]

    def _lies(self) -> bool:
        told = self.lies and self.random.random() < 0.04
        self.told += told
        return told


class Stream:
    """A stream as Spark runs it: offsets are written, then rows, then the commit."""

    def __init__(
        self, broker: Broker, source: random.Random, store: LyingStore | None = None
    ) -> None:
        self.broker = broker
        self.random = source
        self.store = store
        self.reader = self.opened()
        self.at = through_json(self.reader.initialOffset())
        self.planned: Json | None = None  # written to the checkpoint and not committed
        self.seen: list[Row] | None = None  # rows of that batch that reached the sink
        self.rows: list[Row] = []

    def opened(self, **more: str) -> StrandlineStreamReader:
        options = {"path": self.broker.archive.url, "subscribe": "t"}
        options["startingOffsets"] = "earliest"
        match self.random.randrange(4):
            case 0:
                options["maxOffsetsPerTrigger"] = str(self.random.randint(1, 60))
            case 1:
                options["maxBytesPerTrigger"] = str(self.random.randint(1, 4000))
        match self.random.randrange(6):
            case 0:
                options["minPartitions"] = "3"
            case 1:
                options["maxRecordsPerPartition"] = str(self.random.randint(1, 40))
            case 2:
                options["includeOpenSegment"] = "false"
        source = StrandlineDataSource({**options, **more})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StrandlineStreamReader)
        return reader

    def step(self) -> None:
        if self.random.random() < 0.3:
            self.reader = self.opened()  # a restart
        try:
            if self.random.random() < 0.3:
                self.run_over_what_is_available()
            else:
                self.batch()
        except LIES:
            assert self.store is not None
            self.reader = self.opened()  # the query ended with an error, and is started again

    def run_over_what_is_available(self) -> None:
        reader = self.reader = self.opened()
        reader.prepareForTriggerAvailableNow()
        ends = {partition: self.broker.readable(partition)[1] for partition in self.broker.logs}
        begun, before = self.planned is None, self.offsets()
        for _ in range(BATCHES_MAX):
            if not self.batch():
                break
        else:
            pytest.fail("the run does not end")
        self.reader = self.opened()
        if begun and self.planned is None:
            for partition, end in self.offsets().items():
                # It may have read further from pieces of what is closed now and on its way.
                assert end <= max(ends.get(partition, 0), before.get(partition, 0)), (end, ends)

    def batch(self) -> bool:
        """One micro-batch; whether there was one and it was committed."""
        if self.planned is None:
            limit = self.reader.getDefaultReadLimit()
            end = through_json(self.reader.latestOffset(self.at, limit))
            if end == self.at:
                return False
            self.planned, self.seen = end, None
            if self.random.random() < 0.1:
                return False  # a crash behind the offsets
        self.somewhat_later()
        try:
            splits = self.reader.partitions(self.at, self.planned)
            self.somewhat_later()
            found = [row for one in splits for row in rows_of(self.reader, one)]
        except (ObjectNotFound, TierUnavailable):
            return False  # a restart plans it anew
        assert self.seen is None or found == self.seen
        if self.random.random() < 0.1:
            self.seen = found
            return False  # a crash behind the rows: the sink has them under this batch's number
        self.rows += found
        self.at, self.planned = self.planned, None
        self.broker.read_up_to = self.offsets()
        return True

    def offsets(self) -> dict[int, int]:
        return {int(number): end for number, end in self.at["offsets"].get("t", {}).items()}

    def somewhat_later(self) -> None:
        for _ in range(self.random.choice([0, 0, 2, 8])):
            self.broker.step()


def rows_of(reader: StrandlineStreamReader, split: Any) -> list[Row]:
    return [
        (row["partition"], row["offset"], row["value"])
        for batch in reader.read(split)
        for row in batch.select(["partition", "offset", "value"]).to_pylist()
    ]


def expected(partition: int, start: int, end: int) -> list[Row]:
    return [(partition, offset, record(partition, offset).value) for offset in range(start, end)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, range(6)))
def test_each_record_comes_once_whatever_happens_to_the_archive(tmp_path: Path, seed: int) -> None:
    live(tmp_path, random.Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, range(6)))
def test_each_record_comes_once_whatever_the_store_says(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(seed)
    store = LyingStore(source, monkeypatch)
    live(tmp_path, source, store)
    assert store.told > 20


def live(folder: Path, source: random.Random, store: LyingStore | None = None) -> None:
    """One history, to its end, where everything has come once."""
    broker = Broker(folder, source)
    for _ in range(5):
        broker.step()
    stream = Stream(broker, source, store)
    for _ in range(STEPS):
        broker.step()
        if source.random() < 0.6:
            if store is not None:
                store.lies = True
            stream.step()
            if store is not None:
                store.lies = False
        if source.random() < 0.1:
            table = scan(broker.archive.url, "t", columns=["partition", "offset", "value"])
            found = [tuple(row.values()) for row in table.read_all().to_pylist()]
            ranges = [(one, *broker.readable(one)) for one in sorted(broker.logs)]
            assert found == [row for one in ranges for row in expected(*one)]
    for partition, log in broker.logs.items():
        while log.closed:
            broker.archive_next(partition)
    stream.reader = stream.opened(includeOpenSegment="true")
    source.random = lambda: 0.5  # type: ignore[method-assign]  # no more crashes
    broker.step = lambda: None  # type: ignore[method-assign]
    for _ in range(BATCHES_MAX):
        if not stream.batch():
            break
    assert stream.planned is None
    ends = {partition: broker.readable(partition)[1] for partition in broker.logs}
    assert stream.offsets() == ends
    by_partition = sorted(stream.rows)
    assert by_partition == [
        row for one, end in sorted(ends.items()) for row in expected(one, 0, end)
    ]
