"""Requests, writes and memory of a compaction step do not grow with the archive."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.model import NO_TIMESTAMP, AbortedTransaction
from strandline.storage.records.batch.record import Record, encode_batch
from strandline.storage.records.txn_index import encode_entries
from strandline.storage.remote.manifest import manifest as manifest_module
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.compaction_mark import CompactionMark
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.segment.meta import Section
from strandline.storage.tiering.rewrite import compaction
from strandline.storage.tiering.rewrite.compaction import (
    INDEXES_PER_STEP,
    borders_of,
    is_worth_compacting,
)
from strandline.storage.tiering.rewrite.merging import RUN_SEGMENTS_MAX
from tests.support.archived_segments import archive_segment
from tests.unit.storage.remote.manifests import EMPTY, entry
from tests.unit.storage.tiering.harness import (
    COMPACTED,
    GRACE_MS,
    ID_PARTITION,
    TOPIC,
    TOPIC_ID,
    Rig,
    asynchronous,
)

# Each segment has one record, and every key is in two of them.
RUN = 2
PAGE = r"/manifest/"
ROOT = r"manifest\.json$"


def put_segments(rig: Rig, count: int, *, with_aborts: bool = False) -> None:
    """An archive that nobody has compacted yet: one sealed page of all but the last."""
    entries: list[SegmentEntry] = []
    for offset in range(count):
        record = Record(
            offset=offset, timestamp_ms=offset, key=b"%d" % (offset % (count // 2)), value=b"x" * 50
        )
        aborted = AbortedTransaction(
            producer_id=1, first_offset=offset, last_offset=offset, last_stable_offset=offset + 1
        )
        index = {Section.TXN_INDEX: encode_entries([aborted])} if with_aborts else {}
        log = encode_batch([record])
        entries.append(archive_segment(rig.memory, ID_PARTITION, log, sections=index).entry)
    manifest = Manifest(
        topic=TOPIC, topic_id=TOPIC_ID, partition=0, segments=tuple(entries)
    ).with_leader_epoch(1)
    manifest_store.commit(
        rig.memory, None, manifest, root_entries_max=count - 1, page_entries=count - 1
    )


def make_rig(folder: Path) -> Rig:
    """Runs are of two segments; the archive is compacted as soon as there is one."""
    log_bytes = len(encode_batch([Record(offset=0, timestamp_ms=0, key=b"100", value=b"x" * 50)]))
    config = replace(COMPACTED, segment_bytes=RUN * log_bytes + 10, min_cleanable_dirty_ratio=0.5)
    return Rig(folder, config=config)


def compacted_manifest(rig: Rig) -> Manifest | None:
    manifest = rig.manifest
    return None if manifest is None or manifest.compaction is None else manifest


def record_count(rig: Rig) -> int:
    manifest = rig.manifest
    assert manifest is not None
    pages = [
        entry for page in manifest.pages for entry in manifest_store.read_page(rig.memory, page)
    ]
    return sum(entry.record_count for entry in (*pages, *manifest.segments))


async def begin(folder: Path, segments: int, *, with_aborts: bool = False) -> Rig:
    rig = make_rig(folder)
    put_segments(rig, segments, with_aborts=with_aborts)
    await rig.open()
    return rig


@pytest.mark.slow
@asynchronous
async def test_a_page_is_written_once_for_many_runs(tmp_path: Path) -> None:
    segments = 256
    rig = await begin(tmp_path, segments)
    before = rig.memory.count_requests("put", PAGE)
    while compacted_manifest(rig) is None:
        await rig.manager.step_each()
    runs = segments // RUN
    pages = rig.memory.count_requests("put", PAGE) - before
    assert pages <= runs // 64 + 2
    manifest = compacted_manifest(rig)
    assert manifest is not None
    assert manifest.segment_count <= runs + 1
    # Every key once.
    assert record_count(rig) == segments // 2
    rig.executors.shutdown()


@pytest.mark.slow
@asynchronous
async def test_a_round_waits_while_too_much_waits_for_its_grace_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks_max = 10
    monkeypatch.setattr(manifest_module, "MARKS_MAX", marks_max)
    monkeypatch.setattr(compaction, "RUNS_PER_COMMIT_MAX", 1)
    rig = await begin(tmp_path, 60)
    waits = marks = 0
    while compacted_manifest(rig) is None:
        more = await rig.manager.step_each()
        assert rig.manifest is not None
        marks = max(marks, len(rig.manifest.deleting))
        if not more:
            waits += 1
            assert waits < 30
            rig.pass_ms(GRACE_MS)
    # The bound may be passed by the run that reaches it, and the page that it lies in.
    assert marks <= marks_max + RUN + 1
    assert waits > 3
    assert record_count(rig) == 30
    rig.executors.shutdown()


@asynchronous
async def test_a_step_reads_a_few_indexes_of_aborted_transactions_at_most(tmp_path: Path) -> None:
    rig = await begin(tmp_path, 3 * INDEXES_PER_STEP, with_aborts=True)
    most = total = 0
    for _ in range(10):
        before = rig.memory.count_requests("get", r"\.meta$")
        await rig.manager.step_each()
        read = rig.memory.count_requests("get", r"\.meta$") - before
        most, total = max(most, read), total + read
    # Two requests for one index: where it lies, and itself.
    assert most <= 2 * INDEXES_PER_STEP <= 64
    assert total >= 3 * INDEXES_PER_STEP
    rig.manager.close()
    rig.executors.shutdown()


def test_a_run_is_of_a_bounded_number_of_segments(tmp_path: Path) -> None:
    rig = make_rig(tmp_path)
    log = encode_batch([Record(offset=0, timestamp_ms=0, key=b"1", value=b"x")])
    first = archive_segment(rig.memory, ID_PARTITION, log).entry
    entries = [
        replace(first, base_offset=offset, end_offset=offset + 1)
        for offset in range(5 * RUN_SEGMENTS_MAX)
    ]
    manifest = Manifest(topic=TOPIC, topic_id=TOPIC_ID, partition=0, segments=tuple(entries))
    borders = sorted(borders_of(manifest, entries, span_ms_max=None))
    assert borders == [n * RUN_SEGMENTS_MAX for n in range(5)]
    rig.executors.shutdown()


def test_a_run_spans_no_more_than_retention_allows_a_merge() -> None:
    times_ms = (0, 10, 20, 35, 36, 37, 90)
    entries = [entry(10 * n, 10 * n + 10, time_ms=time_ms) for n, time_ms in enumerate(times_ms)]
    manifest = replace(EMPTY, segments=tuple(entries))
    assert sorted(borders_of(manifest, entries, span_ms_max=29)) == [0, 30, 60]


def test_one_segment_is_compacted_again_if_a_merge_put_new_records_into_it(tmp_path: Path) -> None:
    rig = make_rig(tmp_path)
    log = encode_batch([Record(offset=0, timestamp_ms=0, key=b"1", value=b"x")])
    first = archive_segment(rig.memory, ID_PARTITION, log).entry
    entry = replace(first, base_offset=0, end_offset=10)
    manifest = Manifest(topic=TOPIC, topic_id=TOPIC_ID, partition=0, segments=(entry,))

    def is_worth(cleaned_offset: int) -> bool:
        mark = CompactionMark(cleaned_offset=cleaned_offset, horizon_offset=0, horizon_ms=0)
        return is_worth_compacting(manifest.with_compaction(mark), rig.config, now_ms=0)

    # Copied as the cleaner left it; merged over the border of what was clean; and clean.
    assert [is_worth(cleaned_offset) for cleaned_offset in (0, 5, 10)] == [False, True, False]
    assert not is_worth_compacting(manifest, rig.config, now_ms=0)
    rig.executors.shutdown()


def four_segments(rig: Rig) -> Manifest:
    """Each has ten offsets, and is a second younger than the one before."""
    log = encode_batch([Record(offset=0, timestamp_ms=0, key=b"1", value=b"x")])
    first = archive_segment(rig.memory, ID_PARTITION, log).entry
    entries = (
        replace(first, base_offset=n * 10, end_offset=n * 10 + 10, min_timestamp_ms=n * 1000)
        for n in range(4)
    )
    return Manifest(topic=TOPIC, topic_id=TOPIC_ID, partition=0, segments=tuple(entries))


def test_the_archive_is_compacted_when_enough_of_it_came_after_the_last_round(
    tmp_path: Path,
) -> None:
    rig = make_rig(tmp_path)
    manifest = four_segments(rig)

    def is_worth(cleaned_offset: int, ratio: float) -> bool:
        mark = CompactionMark(cleaned_offset=cleaned_offset, horizon_offset=0, horizon_ms=0)
        config = replace(rig.config, min_cleanable_dirty_ratio=ratio)
        return is_worth_compacting(manifest.with_compaction(mark), config, now_ms=0)

    assert [is_worth(clean, 0.5) for clean in (0, 10, 20, 30, 40)] == [True, True] + 3 * [False]
    assert [is_worth(clean, 0.0) for clean in (30, 40)] == [True, False]
    rig.executors.shutdown()


def test_no_record_of_the_archive_waits_longer_than_the_compaction_lag_allows(
    tmp_path: Path,
) -> None:
    rig = make_rig(tmp_path)
    manifest = four_segments(rig)
    config = replace(rig.config, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000)

    def is_worth(cleaned_offset: int, now_ms: int, last_round_ms: int = NO_TIMESTAMP) -> bool:
        mark = CompactionMark(cleaned_offset=cleaned_offset, horizon_offset=0, horizon_ms=0)
        return is_worth_compacting(
            manifest.with_compaction(mark), config, now_ms=now_ms, last_round_ms=last_round_ms
        )

    # The oldest record after the last round is of 3000.
    assert [is_worth(30, now_ms) for now_ms in (8000, 8001)] == [False, True]
    assert [is_worth(30, now_ms, 7000) for now_ms in (12000, 12001)] == [False, True]
    assert not is_worth(40, 100_000)
    rig.executors.shutdown()


@asynchronous
async def test_without_room_for_its_files_a_round_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_rig(tmp_path) as rig:
        put_segments(rig, 12)
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
            await rig.crash()
            await rig.settle()
            assert rig.manifest is not None
            assert rig.manifest.segment_count == 12
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.manifest.segment_count < 12
