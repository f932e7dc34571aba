"""Random histories of a table, its topic and everybody who writes them, beside the archive's rows.

    the topic     segments with gaps and with transactions, committed and aborted; retention; new
                  fields and wider types; deleted and made anew
    syncs         that end, that die at any step, that meet another writer at any step, whose
                  commit's answer is lost
    maintenance   that ends, that dies, that meets a sync; with and without retention
    others        expire snapshots and rewrite the table, by pyiceberg
    of Delta      the same, without our maintenance; others compact, write checkpoints and vacuum
    of upserts    the same; the table has the newest record of each key

    python -m tests.unit.spark_lake.table.random_history --minutes 5 --seed 7

At any time the table has what `scan` found in the archive before the table's offsets: each row
once. In the end no file lies there that the table does not name.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import polars as pl
from deltalake import DeltaTable

from strandline.spark_lake import scan
from strandline.spark_lake.table.errors import TableUnavailable
from strandline.spark_lake.table.run import TableRun
from strandline.spark_lake.table.upkeep.maintain import DAY_MS, MaintainSettings
from strandline.spark_lake.table.upkeep.retention import Retention
from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.batch.record import Header, Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder
from tests.unit.spark_lake.table.rig import (
    NoProgress,
    data_files,
    iceberg,
    make_run,
    named_files,
    recreate_topic,
)

STEPS = 20
PARTITIONS = 3
HOUR_MS = 3_600_000
TABLE_POINTS = [point for point in CRASH_POINTS if point.startswith("table.")]
UPKEEP_POINTS = [point for point in CRASH_POINTS if point.startswith("upkeep.")]
SCHEMAS = (
    "id INT, city STRING",
    "id INT, city STRING, nested STRUCT<a: INT>",
    "id BIGINT, city STRING, nested STRUCT<a: INT, b: STRING>, tags ARRAY<STRING>",
    "id BIGINT, nested STRUCT<a: BIGINT, b: STRING>, tags ARRAY<STRING>, price DOUBLE",
)
# A Delta table gets new columns, and nothing else.
DELTA_SCHEMAS = (
    "id BIGINT, city STRING",
    "id BIGINT, city STRING, nested STRUCT<a: INT, b: STRING>",
    "id BIGINT, city STRING, nested STRUCT<a: INT, b: STRING>, tags ARRAY<STRING>",
    "id BIGINT, nested STRUCT<a: INT, b: STRING>, tags ARRAY<STRING>, price DOUBLE",
)
# A field that later programs do not know: it stays in the table, and a scan does not find it.
FORGOTTEN = "city"
# Everything is small, and everything is old.
NOW = MaintainSettings(
    file_bytes=1 << 20, small_files_min=2, expire_age_ms=-DAY_MS, orphan_age_ms=-DAY_MS
)

Place = tuple[str, int, int]


class Row(NamedTuple):
    """A record as a table and the archive must show it; `value` is None for a null value."""

    key: bytes | None
    timestamp: dt.datetime
    headers: list[dict[str, Any]]
    value: str | None


Rows = dict[Place, Row]


class TableHistory:
    """One history; `steps` has what was done, for the message of a test that fails."""

    schemas = SCHEMAS
    more: Mapping[str, Any] = MappingProxyType({})
    keys: Sequence[bytes | None] = (None, b"k1", b"k2")
    partitionings: Sequence[list[str]] = (
        ["day(_timestamp)"],
        ["bucket(2, _key)", "_topic_partition"],
        [],
    )

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.steps: list[str] = []
        self.archive = ArchiveBuilder(folder / "archive")
        self.archive.add_topic("orders", partitions=PARTITIONS)
        self._partition_by = self.random.choice(self.partitionings)
        self._schema_number = 0
        self._ends = [0] * PARTITIONS
        # pyiceberg's writer makes empty lists of null ones, and structs of null ones.
        self._is_rewritten = False
        # What the archive has, or had before retention or the end of the topic.
        self._archived: Rows = {}
        # Of this topic and those of its name before it.
        self._topic_ids = [self._topic_id]
        self._weights: dict[Callable[[], None], int] = {
            self._write: 5,
            self._sync: 2,
            self._sync_dies: 4,
            self._two_writers: 4,
            self._answer_is_lost: 2,
            self._expire: 1,
            self._rewrite: 1,
            self._evolve: 2,
            self._retain: 1,
            self._recreate: 1,
            **self._maintaining(),
        }

    def _maintaining(self) -> dict[Callable[[], None], int]:
        return {
            self._maintain: 1,
            self._maintenance_dies: 2,
            self._maintenance_meets_another: 2,
            self._follow: 1,
        }

    def run(self, steps: int = STEPS) -> None:
        self._write()
        for _ in range(steps):
            (step,) = self.random.choices(list(self._weights), list(self._weights.values()))
            self._do(step)
        self._do(self._sync)
        self._end()

    def _end(self) -> None:
        """Nothing lies there but the table."""
        self._do(self._maintain)
        run = self._new_run()
        findings = run.check(deep=not self._is_rewritten).findings
        assert findings == [], findings
        assert named_files(run) == sorted(data_files(self.archive))
        behind = {one.behind for one in run.check().partitions}
        assert behind <= {0}, behind

    def _do(self, step: Callable[[], None]) -> None:
        self.steps.append(step.__name__)
        step()

    # --- the topic ---------------------------------------------------------------------------

    def _write(self) -> None:
        """A segment of one partition."""
        partition = self.random.randrange(PARTITIONS)
        offset = self._ends[partition]
        batches, aborted = [], []
        for number in range(self.random.randint(1, 5)):
            # Compaction took out the first records; the segment begins where the last one ends.
            base = None if number else offset
            first = offset = offset + self.random.choice([0, 0, 3])
            records = []
            for _ in range(self.random.randint(1, 8)):
                records.append(self._record(offset))
                offset += self.random.choice([1, 1, 1, 4])
            offset = records[-1].offset + 1
            producer = 7 if self.random.random() < 0.4 else -1
            batches.append(
                encode_batch(
                    records,
                    base_offset=base,
                    codec=self.random.choice([Codec.NONE, Codec.ZSTD]),
                    transactional=producer > 0,
                    producer_id=producer,
                    producer_epoch=0 if producer > 0 else -1,
                )
            )
            if producer > 0:
                commits = self.random.random() < 0.5
                batches.append(_marker(offset, producer, commits=commits))
                if not commits:
                    aborted.append(AbortedTransaction(producer, first, offset, offset + 1))
                offset += 1
        self._ends[partition] = offset
        self.archive.add_segment("orders", batches, partition=partition, aborted=aborted)

    def _record(self, offset: int) -> Record:
        value = {
            "id": offset,
            "city": self.random.choice(["x", "y", None]),
            "nested": self.random.choice([None, {"a": 1}, {"a": None, "b": "b"}]),
            "tags": self.random.choice([None, [], ["t"]]),
            "price": self.random.choice([None, 1.5]),
        }
        known = {name: value[name] for name in value if name in self._schema}
        if "b:" not in self._schema and known.get("nested"):
            known["nested"] = {"a": 2}
        is_null = self.random.random() < 0.1
        return Record(
            offset=offset,
            timestamp_ms=self.random.choice([*[START_MS + offset * HOUR_MS] * 5, START_MS, 0, -1]),
            key=self.random.choice(self.keys),
            value=None if is_null else json.dumps(known).encode(),
            headers=self.random.choice([(), (Header("h", b"1"), Header("h", None))]),
        )

    def _evolve(self) -> None:
        self._schema_number = min(self._schema_number + 1, len(self.schemas) - 1)

    def _retain(self) -> None:
        """Moves the log start up, to what the table has at most."""
        self._remember()
        partition = self.random.randrange(PARTITIONS)
        has = self._next_offsets().get(str(self._topic_id), {}).get(partition, 0)
        start = self.archive.manifest("orders", partition).log_start_offset
        if has > start:
            moved = self.random.randint(start, has)
            self.archive.move_log_start("orders", moved, partition=partition)

    def _recreate(self) -> None:
        self._remember()
        recreate_topic(self.archive, partitions=PARTITIONS)
        self._topic_ids.append(self._topic_id)
        self._ends = [0] * PARTITIONS
        self._write()

    # --- writers -----------------------------------------------------------------------------

    def _new_run(self) -> TableRun:
        return make_run(
            self.archive,
            self._schema,
            round_bytes=self.random.choice([1, 1, 500, 1 << 30]),
            file_bytes=self.random.choice([1, 1 << 20]),
            partition_by=self._partition_by,
            new_incarnation=True,
            **self.more,
        )

    def _sync(self) -> None:
        assert self._new_run().sync(NoProgress()).is_complete
        self._verify()

    def _sync_dies(self) -> None:
        """After some rounds, at any step."""
        rounds = iter([False] * self.random.randrange(3))
        self._new_run().sync(NoProgress(), should_stop=lambda: next(rounds, True))
        with simulated_crash(self.random.choice(TABLE_POINTS)), suppress(SimulatedCrash):
            self._new_run().sync(NoProgress())
        self._verify()

    def _two_writers(self) -> None:
        run = self._new_run()
        self._meet(run, self.random.choice(["prepare", "load", "writer", "commit"]))
        # Two that widen the table at once: one is told, and is run again.
        with suppress(TableUnavailable):
            run.sync(NoProgress())
        self._verify()

    def _answer_is_lost(self) -> None:
        run = self._new_run()
        catalog = run.store._catalog  # type: ignore[attr-defined]
        commit, lands = catalog.commit_table, self.random.random() < 0.5

        def lose(table: Any, requirements: Any, updates: Any) -> Any:
            if any(one.action == "add-snapshot" for one in updates):
                catalog.commit_table = commit
                if lands:
                    commit(table, requirements, updates)
                raise TimeoutError("no answer")
            return commit(table, requirements, updates)

        catalog.commit_table = lose
        run.sync(NoProgress())
        self._verify()

    def _maintain(self) -> None:
        if self._exists:
            self._new_run().maintain(None, NOW)
            self._verify()

    def _maintenance_dies(self) -> None:
        if self._exists:
            with simulated_crash(self.random.choice(UPKEEP_POINTS)), suppress(SimulatedCrash):
                self._new_run().maintain(None, NOW)
            self._verify()

    def _maintenance_meets_another(self) -> None:
        """Files of a running sync are young: here only those of days ago are orphans."""
        if self._exists:
            run = self._new_run()
            self._meet(run, self.random.choice(["load", "commit_once"]))
            run.maintain(None, MaintainSettings(file_bytes=1 << 20, small_files_min=2))
            self._verify()

    def _follow(self) -> None:
        if self._exists:
            self._remember()
            self._new_run().maintain(Retention(), NOW)
            starts = [
                self.archive.manifest("orders", one).log_start_offset for one in range(PARTITIONS)
            ]
            gone = [
                place
                for place in self._archived
                if place[0] == self._topic_id and place[2] < starts[place[1]]
            ]
            for place in gone:
                del self._archived[place]
            self._verify()

    def _expire(self) -> None:
        if not self._exists:
            return
        table = iceberg(self._new_run())
        head = table.current_snapshot()
        others = [one.snapshot_id for one in table.snapshots() if one != head]
        if others:
            table.maintenance.expire_snapshots().by_ids(others).commit()

    def _rewrite(self) -> None:
        if self._exists:
            table = iceberg(self._new_run())
            rows = table.scan().to_arrow()
            if rows.num_rows:
                table.overwrite(rows)
                self._is_rewritten = True

    def _meet(self, run: TableRun, step: str) -> None:
        """Another does something before the call of one of the store's methods."""
        store: Any = run.store
        real, calls = getattr(store, step), self.random.randrange(3)
        other = self.random.choice(
            [self._sync, self._sync, self._sync_dies, self._maintain_young, self._rewrite]
        )

        def other_first(*given: Any) -> Any:
            nonlocal calls
            calls -= 1
            if calls < 0:
                setattr(store, step, real)
                self._do(other)
            return real(*given)

        setattr(store, step, other_first)

    def _maintain_young(self) -> None:
        if self._exists:
            settings = MaintainSettings(
                file_bytes=1 << 20, small_files_min=2, expire_age_ms=-DAY_MS
            )
            self._new_run().maintain(None, settings)

    # --- the model ---------------------------------------------------------------------------

    @property
    def _schema(self) -> str:
        return self.schemas[self._schema_number]

    @property
    def _topic_id(self) -> str:
        return str(self.archive.topics["orders"].info.topic_id)

    @property
    def _exists(self) -> bool:
        return self._new_run().store.load() is not None

    def _next_offsets(self) -> dict[str, dict[int, int]]:
        found = self._new_run().store.load()
        if found is None:
            return {}
        return {str(one): dict(ends) for one, ends in found.next_offsets.items()}

    def _remember(self) -> None:
        """Adds the archive's own rows; those that it has lost stay known."""
        options = {"valueFormat": "json", "valueSchema": self._schema}
        columns = ["partition", "offset", "key", "timestamp", "headers", "value"]
        found = scan(self.archive.url, "orders", columns=columns, options=options)
        rows = found.read_all().to_pylist()
        for row in rows:
            place = self._topic_id, row["partition"], row["offset"]
            self._archived[place] = Row(
                row["key"], row["timestamp"], row["headers"] or [], _shown(row["value"])
            )

    def _verify(self) -> None:
        self._remember()
        ends = self._next_offsets()
        if not ends and not self._exists:
            return
        taken = {
            place: row
            for place, row in self._archived.items()
            if place[2] < ends.get(place[0], {}).get(place[1], 0)
        }
        found: list[tuple[Place, Row]] = []
        for row in self._rows():
            record = {name: row.pop(name) for name in list(row) if name[0] == "_"}
            place = record["_topic_id"], record["_topic_partition"], record["_offset"]
            headers = record["_headers"] or []
            found.append((place, Row(record["_key"], record["_timestamp"], headers, _shown(row))))
        assert len(found) == len(dict(found)), "rows are twice"
        assert dict(found) == self._wanted(taken)

    def _wanted(self, taken: Rows) -> Rows:
        """The rows of a table that has taken these records."""
        nothing = _shown({})
        return {place: row._replace(value=row.value or nothing) for place, row in taken.items()}

    def _rows(self) -> Iterator[dict[str, Any]]:
        table = self._new_run().upkeep()
        assert table.load() is not None
        for file in table.live_files():
            for batch in table.read(file):
                yield from batch.to_pylist()


class DeltaHistory(TableHistory):
    """Of a Delta table."""

    schemas = DELTA_SCHEMAS
    more = MappingProxyType({"format": "delta"})
    partitionings = (["day(_timestamp)"], ["_topic_partition"], [])

    def _maintaining(self) -> dict[Callable[[], None], int]:
        return {}

    def _end(self) -> None:
        self._expire()
        self._verify()
        findings = self._new_run().check(deep=True).findings
        assert findings == [], findings
        named = {path.removeprefix("file://") for path in self._table.file_uris()}
        stored = {path for path in data_files(self.archive) if "/_delta_log/" not in path}
        assert named == stored, stored - named

    def _answer_is_lost(self) -> None:
        commit, lands = DeltaTable.create_write_transaction, self.random.random() < 0.5

        def lose(table: DeltaTable, *given: Any, **how: Any) -> None:
            DeltaTable.create_write_transaction = commit  # type: ignore[method-assign]
            if lands:
                commit(table, *given, **how)
            raise TimeoutError("no answer")

        DeltaTable.create_write_transaction = lose  # type: ignore[assignment,method-assign]
        try:
            self._new_run().sync(NoProgress())
        finally:
            DeltaTable.create_write_transaction = commit  # type: ignore[method-assign]
        self._verify()

    def _expire(self) -> None:
        if self._exists:
            table = self._table
            table.create_checkpoint()
            table.cleanup_metadata()
            table.vacuum(
                retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
            )

    def _rewrite(self) -> None:
        if self._exists:
            self._table.optimize.compact()

    def _maintain_young(self) -> None:
        self._rewrite()

    @property
    def _table(self) -> DeltaTable:
        return DeltaTable(f"{self.archive.url}-tables/lake/orders")

    def _rows(self) -> Iterator[dict[str, Any]]:
        place = f"{self.archive.path}-tables/lake/orders"
        yield from pl.read_delta(place).to_dicts()


class UpsertHistory(TableHistory):
    """Of a table of the newest records."""

    more = MappingProxyType({"mode": "upsert"})
    keys = (b"k1", b"k2", b"k3", b"k4")
    partitionings = (["_topic_partition"], ["_topic_partition", "day(_timestamp)"])

    def _wanted(self, taken: Rows) -> Rows:
        newest: dict[tuple[int, bytes | None], Place] = {}
        for place in sorted(taken, key=lambda one: (self._topic_ids.index(one[0]), one[2])):
            newest[place[1], taken[place].key] = place
        return {place: taken[place] for place in newest.values() if taken[place].value is not None}


def _shown(value: dict[str, Any] | None) -> str | None:
    if value is None:
        return None
    known = {name: part for name, part in value.items() if name != FORGOTTEN}
    return json.dumps(_without_nulls(known), sort_keys=True)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return value


def _marker(offset: int, producer: int, *, commits: bool) -> bytes:
    key = b"\0\0\0\1" if commits else bytes(4)
    end = Record(offset=offset, timestamp_ms=START_MS, key=key, value=bytes(6), headers=())
    return encode_batch(
        [end], producer_id=producer, producer_epoch=0, transactional=True, control=True
    )


HISTORIES = (TableHistory, UpsertHistory, TableHistory, DeltaHistory)


def main() -> None:
    parser = argparse.ArgumentParser(description="Random histories of tables, for minutes.")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    ends_s = time.monotonic() + given.minutes * 60
    seed = given.seed
    while time.monotonic() < ends_s:
        folder = Path(tempfile.mkdtemp(prefix="table-history-"))
        history = HISTORIES[seed % len(HISTORIES)](folder, seed)
        try:
            history.run()
        except Exception:
            print(f"seed {seed}, in {folder}: {history.steps}", file=sys.stderr)
            raise
        shutil.rmtree(folder)
        print(f"seed {seed}: {len(history.steps)} steps", flush=True)
        seed += 1


if __name__ == "__main__":
    main()
