"""Report files of option `scanReport`: the plan of a query, and the reads of its tasks.

    <folder>/<scan id>.plan.json             written when the query is planned
    <folder>/<scan id>.task-<split>.json     written by each task when it ends, early ends included

The folder must be one that driver and executors share: on a single machine any, on a cluster a
mounted one. A task that Spark runs twice writes the same file twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strandline.spark_lake.plan.planner import ScanPlan, Skip
from strandline.storage.clock import SystemClock
from strandline.storage.errors import CorruptFile, InvalidConfig
from strandline.storage.files import make_directory, write_atomically
from strandline.storage.plurals import counted, human_bytes

_PLAN_SUFFIX = ".plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The planned amounts of a query, and the totals."""

    planned_ms: int
    plan: str
    splits: int
    segments_planned: int
    segments_total: int
    # Pruned by the planner: whole segments, and chunks of others.
    segments_pruned: int
    chunks_pruned: int
    bytes_planned: int
    bytes_total: int
    requests: int
    bytes_read: int


@dataclass(slots=True, kw_only=True)
class TaskReport:
    """The amounts that one task reads, `.meta` objects included; counted while it runs.

    Segments are named, because a large one is read by several tasks and is still one.
    """

    rows: int = 0
    segments_read: list[str] = field(default_factory=list)
    segments_skipped: list[str] = field(default_factory=list)  # without a wanted chunk
    chunks_skipped: int = 0
    requests: int = 0
    bytes_read: int = 0

    def fields(self) -> dict[str, int]:
        """As numbers, for one line of log."""
        return asdict(self) | {
            "segments_read": len(self.segments_read),
            "segments_skipped": len(self.segments_skipped),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """One query: its plan and the sums over its tasks (planning's own requests included)."""

    scan_id: str
    plan: PlanReport
    tasks_ended: int
    rows: int
    segments_read: int
    segments_skipped: int
    chunks_skipped: int
    requests: int
    bytes_read: int

    def __str__(self) -> str:
        share = self.bytes_read / self.plan.bytes_total if self.plan.bytes_total else 0.0
        return (
            f"{counted(self.rows, 'row')} from {self.segments_read:,} of"
            f" {counted(self.plan.segments_total, 'segment')},"
            f" {human_bytes(self.bytes_read)} of {human_bytes(self.plan.bytes_total)}"
            f" ({share:.1%}),"
            f" {counted(self.requests, 'request')}"
        )


class ReportWriter:
    """Writer of the report files of one scan; picklable."""

    def __init__(self, folder: str, scan_id: str) -> None:
        self._folder = report_folder(folder)
        self._scan_id = scan_id

    def write_plan(self, plan: ScanPlan, *, requests: int, bytes_read: int) -> None:
        """Raises DiskError."""
        pruned = [why for why in (Skip.KEYS, Skip.CHUNKS) if why in plan.skipped]
        report = PlanReport(
            planned_ms=SystemClock().now_ms(),
            plan=str(plan),
            splits=len(plan.splits),
            segments_planned=plan.segments_planned,
            segments_total=plan.segments_total,
            segments_pruned=sum(plan.skipped[why].segment_count for why in pruned),
            chunks_pruned=sum(plan.skipped[why].chunk_count for why in pruned),
            bytes_planned=plan.bytes_planned,
            bytes_total=plan.bytes_total,
            requests=requests,
            bytes_read=bytes_read,
        )
        make_directory(self._folder, sync=False)
        self._write(f"{self._scan_id}{_PLAN_SUFFIX}", asdict(report))

    def write_task(self, split_index: int, report: TaskReport) -> None:
        """Raises DiskError."""
        make_directory(self._folder, sync=False)
        self._write(f"{self._scan_id}.task-{split_index}.json", asdict(report))

    def _write(self, name: str, fields: Mapping[str, object]) -> None:
        write_atomically(self._folder / name, json.dumps(fields).encode(), sync=False)


def report_folder(text: str) -> Path:
    """The folder of option scanReport. Raises InvalidConfig unless it is a local, absolute one."""
    folder = Path(text.removeprefix("file://"))
    if "://" in str(text).removeprefix("file://") or not folder.is_absolute():
        raise InvalidConfig(f"option scanReport is {text!r}, it must be an absolute local folder")
    return folder


def read_scan_reports(folder: str | Path) -> tuple[ScanReport, ...]:
    """Returns the scans that reported into `folder`, in the order they were planned.

    Raises CorruptFile for a file that is no report.
    """
    where = report_folder(str(folder))
    scans = [
        _read_scan(where, path.name.removesuffix(_PLAN_SUFFIX))
        for path in where.glob(f"*{_PLAN_SUFFIX}")
    ]
    return tuple(sorted(scans, key=lambda scan: scan.plan.planned_ms))


def _read_scan(where: Path, scan_id: str) -> ScanReport:
    plan = PlanReport(**_load(where / f"{scan_id}{_PLAN_SUFFIX}"))
    tasks = [TaskReport(**_load(path)) for path in where.glob(f"{scan_id}.task-*.json")]
    read = {name for task in tasks for name in task.segments_read}
    skipped = {name for task in tasks for name in task.segments_skipped} - read
    return ScanReport(
        scan_id=scan_id,
        plan=plan,
        tasks_ended=len(tasks),
        rows=sum(task.rows for task in tasks),
        segments_read=len(read),
        segments_skipped=plan.segments_pruned + len(skipped),
        chunks_skipped=plan.chunks_pruned + sum(task.chunks_skipped for task in tasks),
        requests=plan.requests + sum(task.requests for task in tasks),
        bytes_read=sum(task.bytes_read for task in tasks),
    )


def _load(path: Path) -> dict[str, Any]:  # JSON of our own dataclasses, which check the names
    try:
        fields = json.loads(path.read_bytes())
        return dict(fields)
    except (OSError, ValueError, TypeError) as error:
        raise CorruptFile(f"{path} is no scan report: {error}") from error
