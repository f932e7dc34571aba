"""The store in a folder: what it writes at once, sweeps up, and says of a disk that fails."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import crc32c
import pytest

from strandline.storage.clock import SystemClock
from strandline.storage.errors import (
    AccessDenied,
    ObjectNotFound,
    PreconditionFailed,
    StoreFull,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.object_store import local_directory
from strandline.storage.remote.object_store.interface import FileBody, IfMatches
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from tests.support.manual_clock import ManualClock

# --- a folder --------------------------------------------------------------------------------


def swap_from_another_process(root: Path, etag: str) -> str:
    store = LocalDirectoryStore(root)
    try:
        return store.put("a", os.urandom(10), condition=IfMatches(etag)).etag
    except PreconditionFailed:
        return ""


@pytest.mark.slow
def test_processes_that_swap_an_object_in_a_folder_exclude_each_other(tmp_path: Path) -> None:
    store = LocalDirectoryStore(tmp_path)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        for _ in range(5):
            etag = store.put("a", os.urandom(10)).etag
            winners = [
                got
                for got in pool.starmap(swap_from_another_process, [(tmp_path, etag)] * 8)
                if got
            ]
            assert winners == [store.head("a").etag]


def test_rewriting_the_same_bytes_gives_another_etag(tmp_path: Path) -> None:
    store = LocalDirectoryStore(tmp_path)
    assert store.put("a", b"x").etag != store.put("a", b"x").etag


def test_remains_of_a_killed_upload_are_no_object_and_are_swept_up(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now_ms())
    store = LocalDirectoryStore(tmp_path, clock=clock)
    store.put("a", b"x")
    (tmp_path / "%tmp" / "left-over").write_bytes(b"half")
    assert [found.key for found in store.list("")] == ["a"]
    assert list(store.list_folders("")) == []
    assert store.abort_uploads("", older_than_ms=60_000) == 0
    clock.advance_ms(120_000)
    assert store.abort_uploads("", older_than_ms=60_000) == 1
    assert list((tmp_path / "%tmp").iterdir()) == []


def test_an_upload_that_begins_while_remains_are_swept_up_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalDirectoryStore(tmp_path)
    store.put("b", b"y")
    swept: list[int] = []
    flock = fcntl.flock

    def sweep_first(file: BinaryIO, operation: int) -> None:
        if not operation & fcntl.LOCK_NB and not swept:
            swept.append(0)
            swept.append(store.abort_uploads("topics/b/", older_than_ms=0))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    store.put("a", b"x")
    assert swept == [0, 1]
    assert store.get("a") == b"x"
    assert list((tmp_path / "%tmp").iterdir()) == []


def test_an_upload_under_way_is_no_remains_whatever_the_clock_says(tmp_path: Path) -> None:
    """A topic that is purged aborts what is left of its uploads, of any age."""
    clock = ManualClock(SystemClock().now_ms())
    store = LocalDirectoryStore(tmp_path / "store", clock=clock)
    source = tmp_path / "source"
    content = os.urandom(3 << 20)
    source.write_bytes(content)
    is_half_way, may_go_on = threading.Event(), threading.Event()

    class HalfWay(FileBody):
        def read(self, file: BinaryIO, byte_count: int, position: int) -> bytes:
            if position >= 2 << 20:
                is_half_way.set()
                assert may_go_on.wait(60)
            return super().read(file, byte_count, position)

    body = HalfWay(path=source, size_bytes=len(content), crc32c=crc32c.crc32c(content))
    with ThreadPoolExecutor(1) as executor:
        put = executor.submit(store.put, "topics/a/0/x.log", body)
        assert is_half_way.wait(60)
        clock.advance_ms(3_600_000)
        assert len(list((tmp_path / "store" / "%tmp").iterdir())) == 1
        assert store.abort_uploads("topics/b/", older_than_ms=0) == 0
        may_go_on.set()
        put.result(timeout=60)
    assert store.get("topics/a/0/x.log") == content
    assert list((tmp_path / "store" / "%tmp").iterdir()) == []


def test_a_damaged_file_has_another_checksum_than_it_was_written_with(tmp_path: Path) -> None:
    """`head` is what the copier verifies with, so it must see the disk as it is."""
    store = LocalDirectoryStore(tmp_path)
    written = store.put("folder/a", b"hello")
    (tmp_path / "folder" / "a").write_bytes(b"hellO")
    assert store.head("folder/a").crc32c not in (None, written.crc32c)


def test_deleting_while_writing_does_not_lose_the_folder(tmp_path: Path) -> None:
    store = LocalDirectoryStore(tmp_path)
    stop = threading.Event()

    def delete_neighbours() -> None:
        while not stop.is_set():
            store.put("f/other", b"")
            store.delete(["f/other"])

    thread = threading.Thread(target=delete_neighbours)
    thread.start()
    try:
        for number in range(20):
            store.put(f"f/{number}", b"")
            store.delete([f"f/{number}"])
    finally:
        stop.set()
        thread.join(60)


@pytest.mark.parametrize("name", ["%tmp", "%lock", "a%", "%2F", "ü b", "x" * 300, "é" * 100, ".."])
def test_no_name_is_in_the_way_of_our_own(tmp_path: Path, name: str) -> None:
    if name == "..":
        name = "...x"
    store = LocalDirectoryStore(tmp_path)
    key = f"f/{name}/{name}.log"
    store.put(key, b"x")
    assert [found.key for found in store.list("")] == [key]
    assert [found.key for found in store.list(f"f/{name}/")] == [key]
    assert list(store.list_folders("f/")) == [name]
    store.delete([key])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["%tmp"]


@pytest.mark.slow
def test_a_folder_without_rights_is_denied(tmp_path: Path) -> None:
    """Root may do anything, so the right is taken by making the path a file."""
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    store = LocalDirectoryStore(blocked / "below")
    with pytest.raises(TierError):
        store.check()
    with pytest.raises(TierError):
        store.put("a", b"")


def test_a_pipe_and_a_device_are_no_objects_and_are_not_waited_for(tmp_path: Path) -> None:
    store = LocalDirectoryStore(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for key in ("pipe", "device"):
        for ask in (store.get, store.get_object, store.head):
            with pytest.raises(ObjectNotFound):
                ask(key)


def test_a_folder_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """A broker with such an archive goes on without it; its log must say what to mend."""
    (tmp_path / "file").write_bytes(b"")
    store = LocalDirectoryStore(tmp_path / "file" / "archive", clock=ManualClock())
    with pytest.raises(TierUnavailable, match="Not a directory"):
        store.put("probe/1", b"")


def test_a_folder_on_a_full_volume_is_full_and_not_away(tmp_path: Path) -> None:
    """As away it would come back with each small probe; and deleting, which makes room, waits."""
    store = LocalDirectoryStore(tmp_path / "archive")
    store.put("a", b"1")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StoreFull, match="put b"):
            store.put("b", bytes(200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [found.key for found in store.list("")] == ["a"]
    assert list((tmp_path / "archive" / "%tmp").iterdir()) == []
    store.delete(["a"])
    store.put("b", bytes(200_000))


# --- a folder that vanishes ------------------------------------------------------------------


@pytest.mark.parametrize("is_mount_point", [False, True])
@pytest.mark.parametrize("has_written", [False, True])
def test_a_store_whose_folder_vanishes_is_away_and_not_empty(
    tmp_path: Path, is_mount_point: bool, has_written: bool
) -> None:
    """Its volume was unmounted: nothing is begun in its place, nothing is believed missing."""
    root, away = tmp_path / "root", tmp_path / "away"
    store = LocalDirectoryStore(root)
    store.put("a/b", b"1")
    if not has_written:
        store = LocalDirectoryStore(root)
        assert store.get("a/b") == b"1"
    root.rename(away)
    if is_mount_point:
        root.mkdir()
    for use in (
        lambda: store.put("a/c", b"2"),
        lambda: store.delete(["a/b"]),
        lambda: store.head("a/b"),
        lambda: store.get("a/b"),
        lambda: list(store.list("")),
        lambda: list(store.list_folders("")),
    ):
        with pytest.raises(TierUnavailable, match="mounted"):
            use()
    assert not root.exists() or list(root.iterdir()) == []
    away.rename(root)
    assert [found.key for found in store.list("")] == ["a/b"]
    store.put("a/c", b"2")
    with pytest.raises(ObjectNotFound):
        store.head("a/d")


def test_a_lock_on_a_file_that_was_replaced_before_it_was_locked_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_directory, "LOCK_WAIT_S_MAX", 0.1)
    store = LocalDirectoryStore(tmp_path)
    store.put("a", b"old")
    original = local_directory._try_lock
    with ExitStack() as held:

        def lock_late(descriptor: int) -> bool:
            monkeypatch.setattr(local_directory, "_try_lock", original)
            store.put("a", b"theirs")
            fcntl.flock(held.enter_context(open(tmp_path / "a", "rb+")), fcntl.LOCK_EX)
            return original(descriptor)

        monkeypatch.setattr(local_directory, "_try_lock", lock_late)
        with pytest.raises(TierUnavailable, match="another process has held it"):
            store.put("a", b"ours")
    assert store.get("a") == b"theirs"
    store.put("a", b"ours")


def test_a_folder_without_hard_links_is_refused_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalDirectoryStore(tmp_path)
    store.check()

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path), None, str(target))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(AccessDenied, match="cannot link"):
        store.check()
