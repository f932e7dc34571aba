"""A Delta table in a bucket: what the store must do for commits that two writers make at once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import S3Bucket
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.rig import NoProgress, every, make_run
from tests.unit.spark_lake.table.test_rejected import NUMBERED, parses

pytestmark = [pytest.mark.slow, pytest.mark.s3]


def rows_of(url: str, options: dict[str, str]) -> list[tuple[int, int]]:
    table = DeltaTable(url, storage_options=options).to_pyarrow_table()
    rows = pa.table(table).select(["_topic_partition", "_offset"]).to_pylist()
    return sorted((row["_topic_partition"], row["_offset"]) for row in rows)


def test_of_two_syncs_into_a_bucket_each_row_is_there_once(
    orders: ArchiveBuilder, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {
        "format": "delta",
        "on_error": "reject",
        "warehouse": f"s3://{s3_bucket.name}/tables",
    }
    access = {"s3.endpoint.url": s3_bucket.endpoint_url, "s3.region": "us-east-1"}
    first = make_run(orders, NUMBERED, access, **how)
    commit = first.store.commit

    def second_is_first(*given: Any) -> None:
        monkeypatch.setattr(first.store, "commit", commit)
        make_run(orders, NUMBERED, access, **how).sync(NoProgress())
        commit(*given)

    monkeypatch.setattr(first.store, "commit", second_is_first)
    assert first.sync(NoProgress()).lost_rounds == 1
    options = {
        "AWS_ENDPOINT_URL": s3_bucket.endpoint_url,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    kept = [one for one in range(80) if parses(one)]
    others = [one for one in range(80) if not parses(one)]
    assert rows_of(f"{how['warehouse']}/lake/orders", options) == every(kept)
    assert rows_of(f"{how['warehouse']}/lake/orders_rejected", options) == every(others)
