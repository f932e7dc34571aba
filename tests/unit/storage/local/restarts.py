"""Logs that were killed or closed, and are opened again."""

from __future__ import annotations

import shutil
from pathlib import Path

from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import LocalLog
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    assert_dense,
    batch,
    fill,
    open_log,
    read_bytes,
)

CONFIG = LogConfig(
    segment_bytes=4000, index_interval_bytes=300, max_message_bytes=1000, file_delete_delay_ms=0
)


def killed(log: LocalLog, target: Path) -> Path:
    """The folder as a killed process leaves it: what was written, without closing anything."""
    shutil.copytree(log.directory, target, dirs_exist_ok=True)
    return target


def reopen(
    directory: Path, *, clean: bool = False, recovery_point: int = 0, config: LogConfig = CONFIG
) -> LocalLog:
    return open_log(directory, clean_shutdown=clean, recovery_point=recovery_point, config=config)


def filled(directory: Path, batch_count: int = 40) -> LocalLog:
    log = open_log(directory, config=CONFIG)
    fill(log, batch_count)
    assert len(log.segments) >= 3
    return log


def goes_on(log: LocalLog) -> None:
    """The log takes new batches, serves everything, and is the same after a clean restart."""
    fill(log, 12)
    assert_dense(log)
    last_ms = NOW_MS + log.end_offset - 1
    found = log.find_timestamp(last_ms)
    assert found is not None
    assert found.offset == log.end_offset - 1
    content, end_offset = read_bytes(log), log.end_offset
    log.close()
    again = reopen(log.directory, clean=True)
    assert not again.recovery_report.problems
    assert again.end_offset == end_offset
    assert read_bytes(again) == content
    again.close()


def with_producers(directory: Path) -> LocalLog:
    log = open_log(directory, config=CONFIG)
    for i in range(40):
        append(log, batch(10, producer_id=i % 3, producer_epoch=0, base_sequence=i // 3 * 10))
    assert len(log.segments) >= 3
    return log
