"""The cache of chunks on disk: bounded, survives a restart, and costs no read when it fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandline.storage.errors import DiskError
from strandline.storage.remote.reader.disk_chunk_cache import DROPS_MAX, DiskChunkCache
from strandline.storage.remote.segment.index import ChunkKey
from tests.unit.storage.remote.reader.chunks import content


def key(number: int) -> ChunkKey:
    return ChunkKey("some/log", number * 1000, number * 1000 + 1000)


# --- disk ------------------------------------------------------------------------------------


def stored(cache: DiskChunkCache, number: int) -> bytes | None:
    target = bytearray(1000)
    return bytes(target) if cache.load(key(number), memoryview(target)) else None


def test_chunks_on_disk_survive_a_restart(tmp_path: Path) -> None:
    cache = DiskChunkCache(tmp_path / "cache", 10_000)
    for number in range(3):
        cache.store(key(number), memoryview(content(number)))
    again = DiskChunkCache(tmp_path / "cache", 10_000)
    assert [stored(again, number) for number in range(4)] == [*map(content, range(3)), None]
    assert again.size_bytes == 3000


def test_the_folder_never_grows_above_its_bound(tmp_path: Path) -> None:
    cache = DiskChunkCache(tmp_path, 3500)
    for number in range(10):
        cache.store(key(number), memoryview(content(number)))
        stored(cache, 0)
    assert cache.size_bytes == 3000 == sum(p.stat().st_size for p in tmp_path.iterdir())
    assert [n for n in range(10) if stored(cache, n)] == [0, 8, 9]
    cache.store(ChunkKey("big", 0, 5000), memoryview(bytes(5000)))
    assert cache.size_bytes == 3000


def test_the_folder_never_has_more_files_than_its_bound(tmp_path: Path) -> None:
    """Chunks of tiny segments: their bytes would never be too many."""
    cache = DiskChunkCache(tmp_path, 10**9, files_max=3)
    for number in range(10):
        cache.store(key(number), memoryview(content(number)))
        stored(cache, 0)
    assert len(list(tmp_path.iterdir())) == 3
    assert [n for n in range(10) if stored(cache, n)] == [0, 8, 9]


def test_what_is_left_of_an_earlier_process_holds_up_neither_a_start_nor_a_read(
    tmp_path: Path,
) -> None:
    """However much it is: it goes a little with each chunk, and the bound holds for new ones."""
    left = 3 * DROPS_MAX
    for number in range(left):
        (tmp_path / f"{number}.chunk").touch()
    cache = DiskChunkCache(tmp_path, 10**9, files_max=2)
    assert len(list(tmp_path.iterdir())) == left
    for remaining in (2 * DROPS_MAX, DROPS_MAX):
        assert stored(cache, 0) is None
        assert len(list(tmp_path.iterdir())) == remaining
        cache.store(key(0), memoryview(content(0)))
    cache.store(key(0), memoryview(content(0)))
    assert stored(cache, 0) == content(0)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_smaller_bound_after_a_restart_is_kept_by_dropping_the_oldest(tmp_path: Path) -> None:
    cache = DiskChunkCache(tmp_path, 10_000)
    for number in range(5):
        cache.store(key(number), memoryview(content(number)))
        path = max(tmp_path.iterdir(), key=lambda p: p.stat().st_mtime_ns)
        os.utime(path, ns=(number * 10**9, number * 10**9))
    again = DiskChunkCache(tmp_path, 2000)
    assert [n for n in range(5) if stored(again, n)] == [3, 4]


def test_half_written_and_foreign_files_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "x.chunk.tmp").write_bytes(b"half")
    (tmp_path / "README").write_bytes(b"not ours")
    cache = DiskChunkCache(tmp_path, 10_000)
    assert stored(cache, 0) is None
    assert cache.size_bytes == 0
    assert [path.name for path in tmp_path.iterdir()] == ["README"]


def test_a_short_or_lost_file_is_a_miss(tmp_path: Path) -> None:
    cache = DiskChunkCache(tmp_path, 10_000)
    for number in range(2):
        cache.store(key(number), memoryview(content(number)))
    first, second = sorted(tmp_path.iterdir(), key=lambda p: p.stat().st_mtime_ns)
    first.write_bytes(b"short")
    second.unlink()
    assert [stored(cache, number) for number in range(2)] == [None, None]
    assert cache.size_bytes == 0
    cache.store(key(0), memoryview(content(0)))
    assert stored(cache, 0) == content(0)


def test_a_failing_disk_costs_the_cache_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    cache = DiskChunkCache(folder, 10_000)
    folder.rmdir()
    for number in range(3):
        cache.store(key(number), memoryview(content(number)))
        assert stored(cache, number) is None
    assert [record.message for record in caplog.records] == ["chunk cache on disk failed"]


def test_a_folder_that_cannot_be_made_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiskError):
        DiskChunkCache(tmp_path / "file" / "cache", 1000)
