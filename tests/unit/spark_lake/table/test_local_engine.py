"""Engine `local`: several workers sync one round."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest

from strandline.spark_lake.table.engines import local_engine
from strandline.storage.errors import ObjectCorrupt
from strandline.storage.records.batch.record import Record
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.rig import (
    add_rows,
    data_files,
    every,
    iceberg,
    make_run,
    rows_of,
    sync,
)

pytestmark = pytest.mark.slow

# All that is archived, in as few files as there are workers.
ROUND: dict[str, Any] = {"round_bytes": 1 << 30, "partition_by": []}


@pytest.fixture(autouse=True)
def _a_worker_for_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "SUITED_BYTES_MIN", 1)
    monkeypatch.setattr(local_engine, "default_threads", lambda: 2)


def test_each_worker_writes_the_rows_of_its_share_in_the_order_of_the_archive(
    orders: ArchiveBuilder,
) -> None:
    add_rows(orders, base=80)
    assert sync(orders, **ROUND).commits == 1
    assert rows_of(make_run(orders)) == every(range(120))
    parts = []
    for path in sorted(data_files(orders)):
        rows = pq.read_table(path).select(["_topic_partition", "_offset"])
        parts.append([tuple(row.values()) for row in rows.to_pylist()])
    assert sorted(parts) == [
        [(0, offset) for offset in range(120)],
        [(1, offset) for offset in range(120)],
    ]


def test_workers_upsert_different_partitions_of_the_topic(orders: ArchiveBuilder) -> None:
    more = {**ROUND, "partition_by": ["_topic_partition"]}
    sync(orders, mode="upsert", **more)
    assert {partition for partition, _ in rows_of(make_run(orders, mode="upsert"))} == {0, 1}
    table = iceberg(make_run(orders, mode="upsert")).scan().to_arrow()
    keys = list(
        zip(
            table.column("_topic_partition").to_pylist(),
            table.column("_key").to_pylist(),
            strict=True,
        )
    )
    assert len(keys) == len(set(keys)) > 2


def test_an_error_of_one_worker_ends_the_others_and_no_file_is_left(
    orders: ArchiveBuilder,
) -> None:
    bad = Record(offset=80, timestamp_ms=START_MS, key=b"k", value=b"{no json")
    orders.add_segment("orders", make_batches([bad]), partition=1)
    with pytest.raises(ObjectCorrupt, match="80"):
        sync(orders, **ROUND)
    assert data_files(orders) == []
