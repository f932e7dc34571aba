"""How many chunks are read ahead at a time, by what GETs have brought."""

from __future__ import annotations

import pytest

from strandline.storage.remote.download.width import (
    FEW,
    LOOK_BACK,
    SAMPLE_BYTES_MIN,
    DownloadWidth,
)

MOST = 10
CHUNK_BYTES = 8 * 1024 * 1024


def _told(*took_s: float) -> DownloadWidth:
    width = DownloadWidth()
    for each_s in took_s:
        width.note(CHUNK_BYTES, each_s)
    return width


def test_as_many_as_there_may_be_where_nothing_is_known() -> None:
    width = DownloadWidth()
    assert width.of(MOST) == MOST
    width.note(SAMPLE_BYTES_MIN - 1, 0.001)
    width.note(CHUNK_BYTES, 0.0)
    assert width.of(MOST) == MOST, "that says nothing about a chunk"


@pytest.mark.parametrize(
    ("first_byte_s", "connection_bytes_per_s", "most"),
    [(0.03, 90e6, MOST), (0.15, 90e6, MOST), (0.005, 400e6, 6), (0.001, 1.2e9, FEW)],
)
def test_a_store_gets_as_many_as_its_distance_asks_for(
    first_byte_s: float, connection_bytes_per_s: float, most: int
) -> None:
    width = _told(first_byte_s + CHUNK_BYTES / connection_bytes_per_s)
    assert width.of(MOST) == most


def test_no_more_than_there_may_be() -> None:
    assert _told(0.001).of(2) == 2


def test_those_that_wait_for_each_other_do_not_make_more_of_them() -> None:
    alone_s = 0.008
    width = _told(alone_s, *([FEW * alone_s] * 10 * LOOK_BACK))
    assert width.of(MOST) == FEW


def test_a_store_that_has_become_slower_gets_more_again() -> None:
    width = _told(0.008, *([0.3] * (LOOK_BACK - 2)))
    assert width.of(MOST) == FEW, "a few say nothing yet"
    for _ in range(LOOK_BACK):
        width.note(CHUNK_BYTES, 0.3)
    assert width.of(MOST) == MOST


def test_one_quick_answer_is_believed_at_once() -> None:
    width = _told(*([0.3] * 2 * LOOK_BACK))
    assert width.of(MOST) == MOST
    width.note(CHUNK_BYTES, 0.008)
    assert width.of(MOST) == FEW
