"""Key equality leaves out segments that cannot have the key, and is exact for the rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, In, Not

from strandline.spark_lake import scan
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.planner import Skip
from strandline.spark_lake.plan.predicate import Comparison, Operator
from strandline.spark_lake.query import pruning
from strandline.spark_lake.query.arrow_scan import make_query
from strandline.spark_lake.query.row_filter import RowFilter
from strandline.spark_lake.spark.filters import push_down
from strandline.storage.errors import ObjectCorrupt
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

MIB = 1 << 20


@pytest.fixture
def archive(archive: ArchiveBuilder) -> ArchiveBuilder:
    """Four segments of 150 records and 1.3 MiB; the third has no filter."""
    archive.add_topic("t")
    for number in range(4):
        records = make_records(150, base_offset=number * 150, value_bytes=12_000)
        archive.add_segment("t", make_batches(records), key_filter=number != 2)
    return archive


def logs_read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    seen: set[str] = set()
    get = ObjectReader.get

    def noted(self: ObjectReader, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if key.endswith(".log"):
            seen.add(key)
        return get(self, key, start=start, end=end)

    monkeypatch.setattr(ObjectReader, "get", noted)
    return seen


@pytest.mark.parametrize("metas_max", [256, 0])
def test_segments_without_the_key_are_not_read(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch, metas_max: int
) -> None:
    monkeypatch.setattr(pruning, "PLANNED_METAS_MAX", metas_max)
    seen = logs_read(monkeypatch)
    table = scan(
        archive.url, "t", columns=["offset", "key"], filters=[("key", "==", "key-7")]
    ).read_all()
    assert table.to_pylist() == [{"offset": 7, "key": b"key-7"}]
    entries = archive.manifest("t").segments
    assert seen == {entries[0].log_key, entries[2].log_key}


def test_the_plan_says_how_many_segments_the_keys_left_out(archive: ArchiveBuilder) -> None:
    query = make_query(archive.url, "t", filters=[("key", "in", ["key-7", "key-599"])])
    plan = query.plan(query.open())
    assert plan.skipped[Skip.KEYS].segment_count == 1
    assert plan.segments_planned == 3


def test_a_key_that_nobody_has_reads_only_what_has_no_filter(
    archive: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = logs_read(monkeypatch)
    assert scan(archive.url, "t", filters=[("key", "==", "nobody")]).read_all().num_rows == 0
    assert seen == {archive.manifest("t").segments[2].log_key}


def test_a_damaged_filter_is_an_error_not_fewer_rows(archive: ArchiveBuilder) -> None:
    entry = archive.manifest("t").segments[0]
    path = archive.object_path(entry.meta_key)
    content = bytearray(path.read_bytes())
    content[content.index(b"fkls") + 40] ^= 1
    path.write_bytes(content)
    with pytest.raises(ObjectCorrupt, match=entry.meta_key):
        scan(archive.url, "t", filters=[("key", "==", "key-7")]).read_all()


@pytest.mark.parametrize(
    ("one", "keys"),
    [
        (EqualTo(("key",), b"a"), {b"a"}),
        (EqualTo(("key",), bytearray(b"a")), {b"a"}),
        (In(("key",), [b"a", None, b"b"]), {b"a", b"b"}),
    ],
)
def test_key_equality_is_taken_from_spark(one: Filter, keys: set[bytes]) -> None:
    pushdown = push_down([one])
    assert pushdown.left == ()
    assert pushdown.pushed.keys == keys


def test_two_tests_of_the_key_narrow_each_other_and_inequality_stays() -> None:
    pushdown = push_down([In(("key",), [b"a", b"b"]), In(("key",), [b"b", b"c"])])
    assert pushdown.pushed.keys == {b"b"}
    stays = Not(In(("key",), [b"a"]))
    assert push_down([stays]).left == (stays,)


@pytest.mark.parametrize("one", [(Operator.EQUAL, b"a"), (Operator.IN, [b"a", b"c"])])
def test_a_null_key_is_equal_to_nothing_and_different_from_nothing(
    one: tuple[Operator, object],
) -> None:
    batch = pa.record_batch({"key": pa.array([b"a", b"b", None], pa.binary())})

    def left(*, negated: bool) -> list[bytes | None]:
        comparison = Comparison("key", *one, negated=negated)
        kept: list[bytes | None] = (
            RowFilter(comparisons=[comparison]).apply(batch)["key"].to_pylist()
        )
        return kept

    assert left(negated=False) == [b"a"]
    assert left(negated=True) == [b"b"]
