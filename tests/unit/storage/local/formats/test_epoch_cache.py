"""Leader epochs of a log: which wrote an offset, and what truncation forgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.errors import CorruptFile
from strandline.storage.local.formats.epoch_cache import LeaderEpochCache
from strandline.storage.model import EpochStart

# --- leader epochs -------------------------------------------------------------------------------


def lineage(path: Path) -> LeaderEpochCache:
    cache = LeaderEpochCache(path / "leader-epoch-checkpoint")
    for epoch, start in ((0, 0), (3, 120), (4, 200)):
        cache.assign(epoch, start)
    cache.write(sync=False)
    return cache


def test_epochs_are_kept_in_kafkas_text_form(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    assert cache.path.read_text() == "0\n3\n0 0\n3 120\n4 200\n"
    assert LeaderEpochCache.open(cache.path).starts == cache.starts


def test_epochs_end_where_the_next_one_begins(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    answers = {epoch: tuple(cache.end_offset_for(epoch, 260)) for epoch in range(-1, 6)}
    assert answers == {
        -1: (-1, -1),
        0: (0, 120),
        1: (0, 120),
        2: (0, 120),
        3: (3, 200),
        4: (4, 260),
        5: (-1, -1),
    }


def test_an_offset_has_the_epoch_that_wrote_it(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    assert [cache.epoch_for(offset) for offset in (0, 119, 120, 199, 200, 999)] == [
        0,
        0,
        3,
        3,
        4,
        4,
    ]


def test_an_older_or_equal_epoch_changes_nothing(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    cache.assign(4, 300)
    cache.assign(2, 300)
    assert cache.latest_epoch == 4
    assert len(cache.starts) == 3


def test_epochs_that_wrote_nothing_are_dropped(tmp_path: Path) -> None:
    cache = lineage(tmp_path)
    cache.assign(7, 200)
    assert cache.starts == (EpochStart(0, 0), EpochStart(3, 120), EpochStart(7, 200))


@pytest.mark.parametrize(
    ("end_offset", "epochs"), [(0, []), (1, [0]), (120, [0]), (121, [0, 3]), (201, [0, 3, 4])]
)
def test_truncating_the_end_forgets_epochs_that_begin_there(
    tmp_path: Path, end_offset: int, epochs: list[int]
) -> None:
    cache = lineage(tmp_path)
    cache.truncate_from_end(end_offset)
    assert [start.epoch for start in LeaderEpochCache.open(cache.path).starts] == epochs
    assert cache.latest_epoch == (epochs[-1] if epochs else -1)


@pytest.mark.parametrize(
    ("start_offset", "starts"),
    [
        (0, [(0, 0), (3, 120), (4, 200)]),
        (119, [(0, 119), (3, 120), (4, 200)]),
        (120, [(3, 120), (4, 200)]),
        (150, [(3, 150), (4, 200)]),
        (999, [(4, 999)]),
    ],
)
def test_truncating_the_start_forgets_epochs_that_end_there(
    tmp_path: Path, start_offset: int, starts: list[tuple[int, int]]
) -> None:
    cache = lineage(tmp_path)
    cache.truncate_from_start(start_offset)
    assert list(map(tuple, cache.starts)) == starts
    cache.write(sync=False)
    assert LeaderEpochCache.open(cache.path).starts == cache.starts
    # What ended before it is told to have ended there: nobody has read on wrongly until then.
    assert cache.end_offset_for(0, 999).start_offset == (
        starts[1][1] if start_offset < 120 else starts[0][1]
    )


def test_a_lineage_that_goes_back_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n3 100\n2 200\n")
    with pytest.raises(CorruptFile):
        LeaderEpochCache.open(path)
