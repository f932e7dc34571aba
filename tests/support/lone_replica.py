"""Appends of a lone replica: its owner moves the high watermark with each of them."""

from __future__ import annotations

from strandline.storage.local.log.log import AppendInfo, AppendOrigin, LocalLog
from strandline.storage.tiering.log.unified_log import UnifiedLog


def append_alone(
    log: LocalLog | UnifiedLog,
    records: memoryview,
    *,
    leader_epoch: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> AppendInfo:
    """Appends, and moves the high watermark to the end."""
    info = log.append(records, leader_epoch=leader_epoch, origin=origin)
    local = log.local if isinstance(log, UnifiedLog) else log
    local.advance_high_watermark(local.end_offset)
    return info
