"""Old clients are told borders of segments in both tiers, newest first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from strandline.storage.tiering.log.segment_starts import offsets_before
from strandline.storage.tiering.log.unified_log import UnifiedLog


def a_log(
    *, log_start: int = 0, local: tuple[int, ...] = (), remote: tuple[int, ...] = (), paged: int = 0
) -> UnifiedLog:
    """Segments of ten offsets whose largest timestamp is that of their last offset.

    `local` and `remote` are base offsets; the archive has `paged` offsets in sealed pages.
    """
    segments = [
        SimpleNamespace(base_offset=b, end_offset=b + 10, size_bytes=1, max_timestamp_ms=b + 9)
        for b in local
    ]
    entries = [
        SimpleNamespace(base_offset=b, end_offset=b + 10, max_timestamp_ms=b + 9) for b in remote
    ]
    pages = [SimpleNamespace(max_timestamp_ms=paged - 1)] if paged else []
    manifest = SimpleNamespace(segments=entries, pages=pages)
    log = SimpleNamespace(
        log_start_offset=log_start,
        local=SimpleNamespace(segments=segments),
        remote=SimpleNamespace(manifest=manifest) if remote or paged else None,
    )
    return cast(UnifiedLog, log)


@pytest.mark.parametrize(
    ("log", "timestamp_ms", "expected"),
    [
        (a_log(local=(20, 30), remote=(0, 10, 20)), None, [40, 30, 20, 10, 0]),
        (a_log(local=(20, 30), remote=(0, 10, 20)), 25, [10, 0]),
        (a_log(local=(20, 30), remote=(0, 10, 20)), 8, []),
        (a_log(local=(30,), remote=(10, 20), paged=10), None, [40, 30, 20, 10, 0]),
        (a_log(local=(30,), remote=(10, 20), paged=10), 12, [0]),
        (a_log(log_start=15, local=(20, 30), remote=(0, 10)), None, [40, 30, 20, 15]),
        (a_log(log_start=35, local=(30,), remote=(10, 20)), None, [40, 35]),
        (a_log(log_start=40), None, [40]),
    ],
)
def test_segments_that_were_complete_at_a_time_begin_in_either_tier(
    log: UnifiedLog, timestamp_ms: int | None, expected: list[int]
) -> None:
    found = offsets_before(log, timestamp_ms, end_offset=40, now_ms=1000, count_max=100)
    assert found == expected
