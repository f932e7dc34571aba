"""A log folder stopped at every single step on its way to the disk, and opened again.

The steps are those of storage/files.py: every file that is made, written, cut, synced, renamed or
removed. Two kinds of stop: the process dies, and all that was written stays; or the power fails,
and of what was not synced any part may be missing: bytes of a file whose fsync is to come, and
whole files of a folder whose fsync is to come.
"""

from __future__ import annotations

import builtins
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strandline.storage import files
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.records.batch.marker import MarkerType
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    assert_dense,
    batch,
    fill,
    marker,
    open_log,
    read_bytes,
)

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=150, file_delete_delay_ms=0)


class Stopped(BaseException):
    """The machine stops here."""


class Disk:
    """Counts steps, stops before one of them, and knows which bytes and names were synced."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at
        self.steps = 0
        self.is_counting = True
        self.synced_bytes: dict[Path, int] = {}
        # In the order in which they were made: a journal keeps that, so some first ones stay.
        self.unsynced_names: list[Path] = []

    def step(self) -> None:
        if self.is_counting:
            if self.steps == self.stop_at:
                self.is_counting = False
                raise Stopped
            self.steps += 1

    def synced(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_file():
            self.synced_bytes[path] = os.fstat(descriptor).st_size
        else:
            self.unsynced_names = [name for name in self.unsynced_names if name.parent != path]

    def made(self, path: Path) -> None:
        """A file with this name is there from now on, if it was not."""
        if not path.exists():
            self.unsynced_names.append(path)

    def renamed(self, source: Path, target: Path) -> None:
        self.made(target)
        if source in self.unsynced_names:
            self.unsynced_names.remove(source)
        if source in self.synced_bytes:
            self.synced_bytes[target] = self.synced_bytes.pop(source)
        else:
            self.synced_bytes.pop(target, None)

    def lose_unsynced(self, folder: Path, chance: random.Random) -> None:
        """What a power failure may leave of the files."""
        names = [path for path in self.unsynced_names if path.is_relative_to(folder)]
        for path in names[chance.randint(0, len(names)) :]:
            path.unlink(missing_ok=True)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != ".lock":
                size = path.stat().st_size
                kept = self.synced_bytes.get(path, 0)
                if size > kept:
                    # File systems that allocate late lose all of it more often than a part.
                    os.truncate(path, chance.choice([kept, chance.randint(kept, size)]))


@contextmanager
def disk_that_stops(stop_at: int) -> Iterator[Disk]:
    """Puts a step in front of every call that storage/files.py makes to change the disk."""
    disk = Disk(stop_at)
    real_replace = Path.replace

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*arguments: Any, **named: Any) -> Any:
            disk.step()
            return call(*arguments, **named)

        return stepping

    def fsync(descriptor: int) -> None:
        disk.step()
        disk.synced(descriptor)

    def replace(source: Path, target: Path) -> Path:
        disk.step()
        disk.renamed(source, Path(target))
        return real_replace(source, target)

    def opened(path: Path | str, flags: int, *arguments: Any) -> int:
        if flags & os.O_CREAT and not Path(path).exists():
            disk.step()
            disk.made(Path(path))
        return real_open(path, flags, *arguments)

    def open_file(path: Path | str, *arguments: Any, **named: Any) -> Any:
        disk.step()
        if "w" in arguments or "wb" in arguments:
            disk.made(Path(path))
        return builtins.open(path, *arguments, **named)

    real_open = os.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", counted(os.write))
        patch.setattr(os, "ftruncate", counted(os.ftruncate))
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "open", opened)
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "unlink", counted(Path.unlink))
        patch.setattr(files, "open", open_file, raising=False)
        yield disk


@dataclass
class Run:
    """What a history tried, and what it was told had worked."""

    attempted: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    synced_offset: int = 0
    # Where the records of the idempotent producer end, and its next sequence there.
    sequences: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    # The first offset and the one of its marker, of every transaction that was aborted.
    aborted: list[tuple[int, int]] = field(default_factory=list)
    log: LocalLog | None = None

    def append(
        self, log: LocalLog, records: memoryview, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> None:
        """Appends a batch under an epoch that grows now and then."""
        self.attempted.append(b"")
        try:
            log.append(records, leader_epoch=len(self.attempted) // 4, origin=origin)
        finally:
            self.attempted[-1] = bytes(records)
        self.acknowledged += 1


def run_history(seed: int, dirs: LogDirs, run: Run) -> None:
    """Appends of all sizes, aborts, flushes, rolls, checkpoints; the same for the same seed."""
    chance = random.Random(seed)
    log = run.log = dirs.create_log(PARTITION, TOPIC_ID, CONFIG)
    for _ in range(10):
        match chance.choice(["append"] * 6 + ["flush", "roll", "checkpoint", "abort"]):
            case "flush":
                log.flush()
                run.synced_offset = log.recovery_point
            case "roll":
                log.roll()
            case "checkpoint":
                dirs.write_checkpoints({})
            case "abort":
                first = log.end_offset
                sequence = len(run.aborted)
                records = batch(
                    producer_id=8, producer_epoch=0, base_sequence=sequence, transactional=True
                )
                run.append(log, records, AppendOrigin.COORDINATOR)
                run.aborted.append((first, first + 1))
                run.append(log, marker(MarkerType.ABORT, producer_id=8), AppendOrigin.COORDINATOR)
            case _:
                count = chance.randint(1, 4)
                sequence = run.sequences[-1][1]
                records = batch(
                    timestamps_ms=[NOW_MS + chance.randint(0, 500) for _ in range(count)],
                    value_bytes=chance.choice([0, 20, 300]),
                    producer_id=7,
                    producer_epoch=0,
                    base_sequence=sequence,
                )
                run.sequences.append((log.end_offset + count, sequence + count))
                run.append(log, records)


def open_dirs(folder: Path) -> LogDirs:
    return LogDirs.open([folder], node_id=1, cluster_id="c", clock=ManualClock(NOW_MS))


def stop_and_open(folder: Path, seed: int, stop_at: int, *, power_fails: bool) -> bool:
    """One stop and what must hold after it; False if the history has no such step."""
    run = Run()
    dirs = open_dirs(folder)
    is_stopped = False
    with disk_that_stops(stop_at) as disk:
        try:
            run_history(seed, dirs, run)
        except Stopped:
            is_stopped = True
        disk.is_counting = False
        for directory in dirs.directories:
            directory.unlock()
        if power_fails:
            disk.lose_unsynced(folder / str(PARTITION), random.Random(seed * 1000 + stop_at))
    again = open_dirs(folder)
    found = again.load(lambda _key, _topic_id: CONFIG).get(PARTITION)
    where = f"seed {seed}, step {stop_at}, power fails: {power_fails}"
    if found is None:
        assert run.acknowledged == 0, where
        again.close()
        return is_stopped
    content = read_bytes(found)
    whole = b"".join(run.attempted)
    assert whole.startswith(content), f"something was invented: {where}"
    assert found.end_offset >= run.synced_offset, f"synced records are gone: {where}"
    if not power_fails:
        safe = sum(map(len, run.attempted[: run.acknowledged]))
        assert len(content) >= safe, f"acknowledged records are gone: {where}"
    assert_dense(found)
    entry = found.producers.entries.get(7)
    sequence = max(after for end, after in run.sequences if end <= found.end_offset)
    assert (entry.next_sequence if entry else 0) == sequence, where
    aborted = [(one.first_offset, one.last_offset) for one in found.aborted_transactions(0, 2**62)]
    assert aborted == [one for one in run.aborted if one[1] < found.end_offset], where
    fill(found, 2, record_count=2)
    assert_dense(found)
    again.close()
    return is_stopped


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "power_fails"), [(1, False), (0, True), (1, True)])
def test_no_step_loses_what_was_acknowledged_and_synced(seed: int, power_fails: bool) -> None:
    stop_at = 0
    with tempfile.TemporaryDirectory(prefix="crash-steps-") as root:
        folder = Path(root) / "data"
        while stop_and_open(folder, seed, stop_at, power_fails=power_fails):
            shutil.rmtree(folder)
            stop_at += 1
    assert stop_at > 20, stop_at


def test_a_flush_that_does_not_sync_the_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that the disk of these tests loses names."""
    monkeypatch.setattr(files, "sync_directory", lambda _path: None)
    with pytest.raises(AssertionError, match="synced records are gone"):
        test_no_step_loses_what_was_acknowledged_and_synced(seed=1, power_fails=True)


def test_a_last_write_torn_at_any_byte_leaves_the_batches_before_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "whole", config=LogConfig())
    ends = [0]
    for count in (1, 3, 2):
        log.append(batch(count), leader_epoch=0)
        ends.append(log.size_bytes)
    log.close()
    path = log.active_segment.log_path
    content = path.read_bytes()
    for cut in range(len(content) + 1):
        folder = tmp_path / "torn"
        folder.mkdir()
        (folder / path.name).write_bytes(content[:cut])
        again = open_log(folder, config=LogConfig(), clean_shutdown=False)
        whole = max(end for end in ends if end <= cut)
        assert read_bytes(again) == content[:whole]
        assert again.recovery_report.bytes_cut == cut - whole
        shutil.rmtree(folder)
