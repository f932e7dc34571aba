"""flush and searches by time run in worker threads while the loop appends, rolls and deletes.

And logs are closed by several threads, or by one where there are no more.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import LocalLog
from tests.unit.storage.local.builders import (
    NOW_MS,
    TOPIC_ID,
    append,
    assert_dense,
    batch,
    fill,
    open_log,
)
from tests.unit.storage.local.log_folders import CONFIG, T0, T1, T2, kill, load_all, open_dirs


@pytest.mark.slow
def test_flushing_and_searching_beside_the_loop_disturb_nothing(tmp_path: Path) -> None:
    config = LogConfig(
        segment_bytes=6000, index_interval_bytes=100, message_timestamp_after_max_ms=10**9
    )
    log = open_log(tmp_path, config=config)
    append(log, batch(10))
    done = threading.Event()
    points: list[int] = []

    def flush() -> None:
        while not done.is_set():
            log.flush()
            point = log.recovery_point
            assert point <= log.end_offset
            points.append(point)

    def search() -> None:
        while not done.is_set():
            end_offset = log.end_offset
            found = log.find_timestamp(NOW_MS + end_offset - 1)
            assert found is not None
            assert found.offset == end_offset - 1
            log.purge_deleted(config.file_delete_delay_ms / 1000)

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(flush), pool.submit(flush), pool.submit(search)]
        try:
            for _ in range(1500):
                times = [NOW_MS + log.end_offset + i for i in range(10)]
                append(log, batch(timestamps_ms=times))
                if len(log.segments) > 6:
                    log.delete_segments(log.segments[:2])
        finally:
            done.set()
        for worker in workers:
            worker.result(timeout=30)
    assert points == sorted(points) or len(points) > 1
    assert_dense(log)
    log.flush()
    assert log.recovery_point == log.end_offset
    assert all(segment.is_durable for segment in log.segments[:-1])


def test_logs_are_closed_and_marked_as_clean_also_without_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path)
    load_all(dirs)
    for log in dirs.create_logs((T0, T1, T2), TOPIC_ID, CONFIG):
        assert isinstance(log, LocalLog)
        fill(log, 3)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        dirs.close()
    again = open_dirs(tmp_path)
    assert all(log.recovery_report.clean_shutdown for log in load_all(again).values())
    assert [log.recovery_point for log in again.logs.values()] == [30, 30, 30]
    again.close()


@pytest.mark.parametrize("thread_count", [0, 1])
def test_logs_are_recovered_with_the_threads_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread_count: int
) -> None:
    """Also in two folders, and with none at all."""
    paths = tmp_path / "a", tmp_path / "b"
    dirs = open_dirs(*paths)
    for log in dirs.create_logs((T0, T1, T2), TOPIC_ID, CONFIG):
        assert isinstance(log, LocalLog)
        fill(log, 3)
    kill(dirs)
    begin, begun = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(begun) == thread_count:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    again = open_dirs(*paths)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        again.load(lambda _partition, _topic_id: CONFIG, threads_per_directory=2)
    assert {key: log.end_offset for key, log in again.logs.items()} == {T0: 30, T1: 30, T2: 30}
    again.close()
