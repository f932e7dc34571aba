"""Tables of the newest record of each key, beside a dict that the same records were put into."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.cli import main
from strandline.spark_lake.table.engines import local_engine
from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.run import TableRun
from strandline.spark_lake.table.store import WrittenFile
from strandline.spark_lake.table.upkeep.plan import (
    GETS_OF_KEYS,
    GETS_OF_REWRITTEN,
    Rewriting,
)
from strandline.spark_lake.table.upsert import UpsertBuffers
from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import CorruptRecords, InvalidConfig
from strandline.storage.records.batch.record import Record
from strandline.storage.records.compression import Codec
from tests.support.heavy import all_but, first
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.position_deletes import delete_row
from tests.unit.spark_lake.table.rig import NoProgress, iceberg, make_run, named_files, sync
from tests.unit.spark_lake.table.test_continuous import Counted
from tests.unit.spark_lake.values.valued_archive import avro, record_of

pytestmark = pytest.mark.slow

SCHEMA = "id BIGINT, tags ARRAY<STRUCT<a: INT>>"
UPSERT = {"mode": "upsert"}
TABLE_POINTS = [point for point in CRASH_POINTS if point.startswith("table.")]
KEYS = 12

State = dict[tuple[int, bytes], int]


class ChangingArchive:
    """Records of few keys in two partitions, and what a table of them must have."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.archive = ArchiveBuilder(folder)
        self.archive.add_topic("orders", partitions=2)
        self.state: State = {}
        self._random = random.Random(seed)
        self._ends = [0, 0]

    def add(self, count: int = 20) -> None:
        for partition in (0, 1):
            start = self._ends[partition]
            records = []
            for offset in range(start, start + count):
                key = b"k%d" % self._random.randrange(KEYS)
                is_deleted = self._random.random() < 0.3
                records.append(
                    Record(
                        offset=offset,
                        timestamp_ms=START_MS + offset,
                        key=key,
                        value=None if is_deleted else self.value(offset),
                        headers=(),
                    )
                )
                if is_deleted:
                    self.state.pop((partition, key), None)
                else:
                    self.state[partition, key] = offset
            self._ends[partition] += count
            self.archive.add_segment("orders", make_batches(records), partition=partition)

    def value(self, offset: int) -> bytes:
        return json.dumps({"id": offset, "tags": [None, [], [{"a": 1}]][offset % 3]}).encode()


def state_of(run: TableRun) -> State:
    rows = iceberg(run).scan().to_arrow().to_pylist()
    found = {(row["_topic_partition"], row["_key"]): row["_offset"] for row in rows}
    assert len(found) == len(rows)
    assert all(row["id"] == row["_offset"] for row in rows)
    return found


def check_is_clean(run: TableRun, row_count: int) -> None:
    report = run.check(deep=True)
    assert report.findings == []
    assert report.deep_rows == row_count


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_a_table_has_the_newest_record_of_each_key_and_none_of_a_deleted_one(
    tmp_path: Path, seed: int
) -> None:
    changing = ChangingArchive(tmp_path / "archive", seed)
    for _ in range(4):
        changing.add()
        sync(changing.archive, SCHEMA, **UPSERT)
        run = make_run(changing.archive, SCHEMA, **UPSERT)
        assert state_of(run) == changing.state
        check_is_clean(run, len(changing.state))
    assert sync(changing.archive, SCHEMA, **UPSERT).commits == 0


@pytest.mark.parametrize(
    "point", all_but(["table.before-commit", "table.after-commit"], TABLE_POINTS)
)
def test_after_a_death_at_any_step_the_next_sync_has_the_newest_records(
    tmp_path: Path, point: str
) -> None:
    changing = ChangingArchive(tmp_path / "archive", 7)
    changing.add()
    sync(changing.archive, SCHEMA, **UPSERT)
    changing.add()
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        sync(changing.archive, SCHEMA, **UPSERT)
    sync(changing.archive, SCHEMA, **UPSERT)
    assert state_of(make_run(changing.archive, SCHEMA, **UPSERT)) == changing.state


def test_a_file_that_was_rewritten_meanwhile_is_upserted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = ChangingArchive(tmp_path / "archive", 3)
    changing.add()
    sync(changing.archive, SCHEMA, **UPSERT)
    changing.add()
    run = make_run(changing.archive, SCHEMA, **UPSERT, round_bytes=1 << 30)
    commit = run.store.commit

    def another_is_first(*given: Any) -> None:
        monkeypatch.setattr(run.store, "commit", commit)
        table = iceberg(make_run(changing.archive, SCHEMA, **UPSERT))
        table.overwrite(table.scan().to_arrow())
        commit(*given)

    monkeypatch.setattr(run.store, "commit", another_is_first)
    assert run.sync(NoProgress()).lost_rounds == 1
    assert state_of(run) == changing.state
    assert all(Path(path).exists() for path in named_files(run))


def test_a_row_that_another_engine_deletes_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = ChangingArchive(tmp_path / "archive", 3)
    changing.add()
    sync(changing.archive, SCHEMA, **UPSERT)
    before = state_of(make_run(changing.archive, SCHEMA, **UPSERT))
    changing.add(1)
    run = make_run(changing.archive, SCHEMA, **UPSERT, round_bytes=1 << 30)
    commit = run.store.commit

    def deleted_first(*given: Any) -> None:
        monkeypatch.setattr(run.store, "commit", commit)
        table = iceberg(make_run(changing.archive, SCHEMA, **UPSERT))
        for one in table.scan().plan_files():
            delete_row(table, one.file, 0)
            table = table.refresh()
        commit(*given)

    monkeypatch.setattr(run.store, "commit", deleted_first)
    with pytest.raises(TableRefused, match="has deletes of another engine"):
        run.sync(NoProgress())
    assert len(state_of(run)) == len(before) - len(named_files(run))


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_check_finds_rows_that_are_not_the_newest_of_their_key(
    tmp_path: Path, table_format: str
) -> None:
    more = {"format": table_format}
    changing = ChangingArchive(tmp_path / "archive", 5)
    changing.add()
    sync(changing.archive, SCHEMA, **UPSERT, **more)
    early = make_run(changing.archive, SCHEMA, **more).store.load()
    assert early is not None
    changing.add()
    run = make_run(changing.archive, SCHEMA, **more)
    # Behind, and so right.
    assert [one.behind for one in run.check(deep=True).partitions] == [20, 20]
    # As if a sync had lost its rows: the table says that it has them.
    pretended = make_run(changing.archive, SCHEMA, **UPSERT, **more)
    topic_id = changing.archive.topics["orders"].info.topic_id
    assert pretended.store.load() is not None
    pretended.store.commit([], early.advanced(topic_id, {0: 40, 1: 40}, commit_id="lost"))
    findings = run.check().findings
    assert sum("key has a newer record" in one for one in findings) == 2


ENVELOPE = "op STRING, after STRUCT<id: BIGINT, city: STRING>"
AVRO_ROW = record_of(id="long", city=["null", "string"])
AVRO_ENVELOPE = record_of(op="string", after=["null", {**AVRO_ROW, "name": "Value"}])


@pytest.mark.parametrize(
    ("kind", "table_format"),
    all_but(
        [("plain", "iceberg"), ("payload", "delta"), ("avro", "iceberg")],
        product(["plain", "payload", "avro"], ["iceberg", "delta"]),
    ),
)
def test_debeziums_envelope_gives_the_rows_after_its_events(
    tmp_path: Path, kind: str, table_format: str
) -> None:
    """Plain as of a converter without schemas, payload with them, Avro as of a registry's."""
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("orders")

    def event(op: str, after: dict[str, Any] | None) -> bytes:
        made = {"op": op, "before": None, "after": after}
        if kind == "avro":
            return avro(made, AVRO_ENVELOPE)
        return json.dumps({"schema": {}, "payload": made} if kind == "payload" else made).encode()

    events = [
        (b"1", event("r", {"id": 1, "city": "a"})),
        (b"2", event("c", {"id": 2, "city": "b"})),
        (b"1", event("u", {"id": 1, "city": None})),
        (b"2", event("d", None)),
        (b"2", None),
        (b"3", event("c", {"id": 3, "city": "c"})),
    ]

    def add(base: int, some: list[tuple[bytes, bytes | None]]) -> None:
        records = [
            Record(offset=base + n, timestamp_ms=START_MS, key=key, value=value)
            for n, (key, value) in enumerate(some)
        ]
        archive.add_segment("orders", make_batches(records))

    schema = {
        "plain": ENVELOPE,
        "payload": f"payload STRUCT<{ENVELOPE.replace(' ', ': ', 1).replace('after ', 'after: ')}>",
        "avro": json.dumps(AVRO_ENVELOPE),
    }[kind]
    options = {"valueFormat": "avro" if kind == "avro" else "json"}
    more: dict[str, Any] = {"mode": "debezium", "format": table_format, "options": options}
    add(0, events)
    sync(archive, schema, **more)
    run = make_run(archive, schema, **more)
    table = run.upkeep()
    assert table.load() is not None
    rows = [r for file in table.live_files() for b in table.read(file) for r in b.to_pylist()]
    assert sorted((row["_key"], row["id"], row["city"]) for row in rows) == [
        (b"1", 1, None),
        (b"3", 3, "c"),
    ]
    check_is_clean(run, 2)
    add(6, [(b"x", event("t", None))])
    with pytest.raises(CorruptRecords, match=r"offset 6 of orders partition 0 .* op t has no row"):
        sync(archive, schema, **more)


def test_values_without_an_envelope_are_refused(tmp_path: Path) -> None:
    changing = ChangingArchive(tmp_path / "archive", 3)
    changing.add()
    with pytest.raises(InvalidConfig, match="needs values with the fields after and op"):
        sync(changing.archive, "id BIGINT", mode="debezium")


def test_what_cannot_be_upserted_is_refused(tmp_path: Path) -> None:
    changing = ChangingArchive(tmp_path / "archive", 3)
    changing.add()
    sync(changing.archive, SCHEMA, **UPSERT)
    with pytest.raises(TableRefused, match="made with --mode upsert, which stays"):
        sync(changing.archive, SCHEMA)
    with pytest.raises(InvalidConfig, match="exclude each other"):
        make_run(changing.archive, SCHEMA, {"valueErrors": "null"}, **UPSERT)
    with pytest.raises(InvalidConfig, match="--partition-by _topic_partition"):
        make_run(changing.archive, SCHEMA, **UPSERT, partition_by=["day(_timestamp)"])
    keyless = [Record(offset=20, timestamp_ms=START_MS, key=None, value=changing.value(20))]
    changing.archive.add_segment("orders", make_batches(keyless))
    with pytest.raises(CorruptRecords, match=r"offset 20 of orders partition 0 .* no key"):
        sync(changing.archive, SCHEMA, **UPSERT)


@pytest.mark.parametrize("table_format", [{}, {"format": "delta"}])
def test_a_plan_bounds_what_an_upsert_reads_and_rewrites_of_its_table(
    tmp_path: Path, table_format: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    changing = ChangingArchive(tmp_path / "archive", 3)
    changing.add()
    plan = make_run(changing.archive, SCHEMA, **UPSERT, **table_format).plan()
    assert plan.rewriting == Rewriting(file_count=0, size_bytes=0, partition_count=0)
    assert (plan.gets_max, plan.puts_max) == (plan.gets, plan.puts)
    sync(changing.archive, SCHEMA, **UPSERT, **table_format)
    # The table knows that it is upserted.
    run = make_run(changing.archive, SCHEMA, **table_format, round_bytes=1 << 30)
    assert run.plan().gets_max == 0
    records = [Record(offset=20, timestamp_ms=START_MS, key=b"k1", value=changing.value(20))]
    changing.archive.add_segment("orders", make_batches(records), partition=1)
    plan = run.plan()
    assert run.store.load() is not None
    (file,) = run.store.files_by("_topic_partition")[1]
    assert plan.rewriting == Rewriting(file_count=1, size_bytes=file.size_bytes, partition_count=1)
    assert plan.commits == 1
    assert plan.rewritten_bytes_max == file.size_bytes
    assert (plan.gets, plan.gets_max) == (1 + GETS_OF_KEYS, 1 + GETS_OF_KEYS + GETS_OF_REWRITTEN)
    assert plan.puts_max == plan.puts + 1
    assert plan.cost_max({"GET": 1000, "PUT": 0}) == plan.gets_max
    given = ["--remote", changing.archive.url, "--topic", "orders", "--table", "lake.orders"]
    given += [f"--{name}={value}" for name, value in table_format.items()]
    assert main(["table", "plan", *given]) == 0
    said = capsys.readouterr().out
    assert "estimated: each commit reads the keys of 1 file of" in said
    assert "if each commit rewrites them all" in said
    with pytest.raises(TableRefused, match="made with --mode upsert, which stays"):
        make_run(changing.archive, ENVELOPE, mode="debezium", **table_format).plan()


# Of the rows of an upsert, as they are decoded; a batch of the lake has 2 MiB.
MEMORY_BYTES = 5_000_000


def compressed(folder: Path, segment_count: int) -> ArchiveBuilder:
    """4 MB of values of each segment, in a hundredth of the bytes; all keys are different."""
    archive = ArchiveBuilder(folder)
    archive.add_topic("orders", partitions=2)
    for partition in (0, 1):
        for number in range(segment_count):
            records = [
                Record(
                    offset=offset,
                    timestamp_ms=START_MS,
                    key=b"%d" % offset,
                    value=json.dumps({"id": offset, "text": "x" * 4000}).encode(),
                )
                for offset in range(number * 1000, (number + 1) * 1000)
            ]
            batches = make_batches(records, per_batch=100, codec=Codec.ZSTD)
            entry = archive.add_segment("orders", batches, partition=partition)
            assert entry.size_bytes < 4_000_000 / 50
    return archive


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.heavy
def test_a_round_ends_where_its_decoded_rows_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Its archived bytes say nothing of them."""
    monkeypatch.setattr(local_engine, "BUFFERS_BYTES_MAX", MEMORY_BYTES)
    monkeypatch.setattr(local_engine, "SUITED_BYTES_MIN", 1)
    monkeypatch.setattr(local_engine, "default_threads", lambda: workers)
    sizes: list[int] = []
    finish = UpsertBuffers.finish

    def measured(buffers: UpsertBuffers) -> Iterator[WrittenFile]:
        sizes.append(buffers.size_bytes)
        return finish(buffers)

    monkeypatch.setattr(UpsertBuffers, "finish", measured)
    archive = compressed(tmp_path / "archive", segment_count=3)
    shown = Counted()
    more: dict[str, Any] = {**UPSERT, "round_bytes": 1 << 30, "file_bytes": 1 << 20}
    run = make_run(archive, "id BIGINT, text STRING", **more)
    report = run.sync(shown)
    assert report.is_complete
    assert report.commits >= 3
    assert len(sizes) == report.commits * workers
    assert max(sizes) < MEMORY_BYTES / workers + 3_000_000
    assert shown.done == shown.total == 6000
    offsets = range(3000)
    assert state_of(run) == {(p, b"%d" % one): one for p in (0, 1) for one in offsets}
    check_is_clean(run, 6000)


@pytest.mark.parametrize("point", all_but(["table.after-commit"], TABLE_POINTS))
def test_after_a_death_the_next_sync_goes_on_where_a_full_round_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(local_engine, "BUFFERS_BYTES_MAX", MEMORY_BYTES)
    archive = compressed(tmp_path / "archive", segment_count=2)
    more: dict[str, Any] = {**UPSERT, "round_bytes": 1 << 30}
    schema = "id BIGINT, text STRING"
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        sync(archive, schema, **more)
    sync(archive, schema, **more)
    run = make_run(archive, schema, **more)
    assert len(state_of(run)) == 4000
    check_is_clean(run, 4000)
