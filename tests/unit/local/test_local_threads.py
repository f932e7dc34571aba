"""flush and searches by time run in worker threads while the loop appends, rolls and deletes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.storage.log_config import LogConfig
from tests.unit.local.builders import NOW_MS, append, assert_dense, batch, open_log


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
            log.purge_deleted(NOW_MS + config.file_delete_delay_ms)

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
