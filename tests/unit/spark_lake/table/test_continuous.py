"""Syncs that go on, syncs that end at a time, and what their progress bar is told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strandline.spark_lake.table.continuous import sync_at_intervals
from strandline.spark_lake.table.errors import CommitConflict, TableRefused, TableUnavailable
from strandline.spark_lake.table.sync import SyncReport
from strandline.storage.clock import SystemClock
from strandline.storage.errors import StrandlineError, UnknownTopic
from strandline.storage.records.batch.record import Record
from tests.unit.spark_lake.archive_builder import START_MS, ArchiveBuilder, make_batches
from tests.unit.spark_lake.table.rig import (
    add_rows,
    data_files,
    every,
    make_run,
    named_files,
    rows_of,
    sync,
)

HOUR_MS = 3_600_000

pytestmark = pytest.mark.slow


@dataclass
class Counted:
    """A progress bar that remembers."""

    total: int = 0
    done: int = 0
    steps: list[int] = field(default_factory=list)

    def begin(self, what: str, total: int) -> None:
        self.total = total

    def advance(self, count: int) -> None:
        self.done += count
        self.steps.append(count)


def test_a_continuous_sync_follows_the_archive_and_survives_an_outage(
    orders: ArchiveBuilder,
) -> None:
    stop = threading.Event()
    outages: list[StrandlineError] = []
    reports: list[SyncReport] = []
    count = 0

    def sync_once() -> SyncReport:
        nonlocal count
        count += 1
        if count == 2:
            raise TableUnavailable("the catalog is away")
        if count == 3:
            add_rows(orders, base=80)
        return sync(orders)

    def on_sync(report: SyncReport) -> None:
        reports.append(report)
        if len(reports) == 3:
            stop.set()

    sync_at_intervals(
        sync_once, interval_s=0.001, stop=stop, on_sync=on_sync, on_wait=outages.append
    )
    assert [one.rows for one in reports] == [160, 80, 0]
    assert [str(one) for one in outages] == ["the catalog is away"]
    assert rows_of(make_run(orders)) == every(range(120))


def test_a_continuous_sync_waits_for_its_topic_and_a_single_one_does_not(tmp_path: Path) -> None:
    archive = ArchiveBuilder(tmp_path / "archive")
    archive.add_topic("others")
    stop = threading.Event()
    told: list[str] = []
    reports: list[SyncReport] = []
    with pytest.raises(UnknownTopic, match=r"has no topic orders; .* first records"):
        sync(archive)

    def on_wait(error: StrandlineError) -> None:
        told.append(str(error))
        if len(told) == 2:
            archive.add_topic("orders", partitions=2)
            add_rows(archive, base=0)

    def on_sync(report: SyncReport) -> None:
        reports.append(report)
        stop.set()

    sync_at_intervals(
        lambda: sync(archive), interval_s=0.001, stop=stop, on_sync=on_sync, on_wait=on_wait
    )
    assert len(told) == 2
    assert all("has no topic orders" in one for one in told)
    assert [one.rows for one in reports] == [80]


def test_a_continuous_sync_ends_when_its_topic_is_deleted() -> None:
    answers = iter((SyncReport(table="lake.orders"), UnknownTopic("has no topic orders any more")))

    def sync_once() -> SyncReport:
        answer = next(answers)
        if isinstance(answer, UnknownTopic):
            raise answer
        return answer

    with pytest.raises(UnknownTopic):
        sync_at_intervals(
            sync_once,
            interval_s=0.001,
            stop=threading.Event(),
            on_sync=lambda _: None,
            on_wait=lambda _: None,
        )


def test_what_an_interval_cannot_mend_ends_a_continuous_sync(orders: ArchiveBuilder) -> None:
    def sync_once() -> SyncReport:
        raise TableRefused("another topic")

    with pytest.raises(TableRefused):
        sync_at_intervals(
            sync_once,
            interval_s=0.001,
            stop=threading.Event(),
            on_sync=lambda _: None,
            on_wait=lambda _: None,
        )


def test_a_sync_that_is_told_to_stop_ends_after_the_round_that_runs(orders: ArchiveBuilder) -> None:
    asked = iter((False, False, True))
    run = make_run(orders)
    report = run.sync(Counted(), should_stop=lambda: next(asked))
    assert (report.commits, report.is_complete) == (2, False)
    assert len(rows_of(run)) == report.rows == 80
    assert sync(orders).is_complete
    assert rows_of(run) == every(range(80))


def test_a_round_that_slept_for_days_writes_its_files_anew(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter((0, 3 * 24 * HOUR_MS))
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: next(moments, 0))
    report = sync(orders)
    assert report.lost_rounds == 1
    assert rows_of(make_run(orders)) == every(range(80))
    assert named_files(make_run(orders)) == sorted(data_files(orders))


def test_a_commit_that_slept_for_days_before_it_is_tried_again_writes_its_files_anew(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance takes files that no commit names for orphans, once they are old."""
    now_ms = 0
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: now_ms)
    run = make_run(orders, round_bytes=1 << 30)
    commit = run.store.commit

    def sleep(*_: object) -> None:
        nonlocal now_ms
        monkeypatch.setattr(run.store, "commit", commit)
        for path in data_files(orders):
            Path(path).unlink()
        now_ms = 3 * 24 * HOUR_MS
        raise CommitConflict("another commit was first")

    monkeypatch.setattr(run.store, "commit", sleep)
    assert run.sync(Counted()).lost_rounds == 1
    assert rows_of(run) == every(range(80))
    assert named_files(run) == sorted(data_files(orders))


def test_a_bounded_sync_ends_before_its_time_and_a_later_one_goes_on(
    orders: ArchiveBuilder,
) -> None:
    until = {"endingTimestamp": str(START_MS + 25 * HOUR_MS)}
    sync(orders, options=until)
    assert rows_of(make_run(orders)) == every(range(25))
    assert sync(orders, options=until).commits == 0
    sync(orders)
    assert rows_of(make_run(orders)) == every(range(80))


def test_the_progress_bar_is_full_also_where_offsets_have_no_record(
    orders: ArchiveBuilder,
) -> None:
    compacted = [
        Record(offset=offset, timestamp_ms=START_MS, key=b"k", value=b"{}", headers=())
        for offset in range(80, 200, 7)
    ]
    orders.add_segment("orders", make_batches(compacted))
    shown = Counted()
    make_run(orders).sync(shown)
    assert shown.done == shown.total == 80 + orders.manifest("orders").end_offset
    assert len(shown.steps) > 2
