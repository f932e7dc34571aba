"""What every object store promises, whichever it is."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import crc32c
import pytest

from strandline.storage.errors import (
    DiskError,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    TierError,
)
from strandline.storage.remote.object_store.conditional_writes import (
    Conditions,
    check_conditional_writes,
)
from strandline.storage.remote.object_store.interface import (
    BucketMissing,
    FileBody,
    IfAbsent,
    IfMatches,
    Lack,
    ObjectStore,
)
from strandline.storage.remote.open_store import open_store
from strandline.storage.remote.s3 import store as s3
from strandline.storage.remote.s3 import uploads as s3_uploads
from strandline.storage.remote.s3.uploads import SINGLE_PUT_BYTES_MAX
from tests.contract.stores import FILE, MEMORY, StoreUnderTest
from tests.support.s3_servers import SERVERS

RACERS = 8
LONG_TOPIC_KEY = f"topics/{'t' * 249}-00000000-0000-4000-8000-000000000001/0/manifest.json"


def in_parallel(count: int, work: Any) -> list[Any]:
    """Runs `work(number)` in `count` threads that start together; results or exceptions."""
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait(60)
        try:
            return work(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(run, range(count)))


def write_file(path: Path, content: bytes) -> FileBody:
    path.write_bytes(content)
    return FileBody(path=path, size_bytes=len(content), crc32c=crc32c.crc32c(content))


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, 300_000])
def test_an_object_is_read_as_it_was_written(store: ObjectStore, size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    store.put("a/b", content)
    assert store.get("a/b") == content


@pytest.mark.parametrize("size_bytes", [10, 200_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_written(store: ObjectStore, kind: Any, size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    store.put("a", kind(content))
    assert store.get("a") == content


def test_put_and_head_tell_size_etag_and_checksum(store: ObjectStore) -> None:
    written = store.put("a", b"hello")
    found = store.head("a")
    assert (found.key, found.size_bytes, found.stated_crc32c) == ("a", 5, crc32c.crc32c(b"hello"))
    assert found.etag == written.etag != ""
    assert written.size_bytes == 5
    assert written.stated_crc32c == found.stated_crc32c


def test_a_later_put_replaces_the_object_and_its_etag(store: ObjectStore) -> None:
    first = store.put("a", b"first")
    second = store.put("a", b"second")
    assert store.get("a") == b"second"
    assert first.etag != second.etag


def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    for key in ("nothing", "a", "a/b/c", "a/bb"):
        for read in (store.get, store.head, store.get_object):
            with pytest.raises(ObjectNotFound):
                read(key)
        with pytest.raises(ObjectNotFound):
            store.get_into(key, memoryview(bytearray(1)), start=0)


def test_a_range_is_exactly_its_bytes(store: ObjectStore) -> None:
    content = os.urandom(5000)
    store.put("a", content)
    for start, end in [(0, 1), (0, 5000), (17, 4999), (4999, 5000), (1000, 1000)]:
        assert store.get("a", start=start, end=end) == content[start:end]
    assert store.get("a", start=4000) == content[4000:]


def test_a_range_beyond_the_end_is_corruption_not_a_short_answer(store: ObjectStore) -> None:
    store.put("a", b"0123456789")
    for start, end in [(0, 11), (9, 11), (10, 11), (50, 60)]:
        with pytest.raises(ObjectCorrupt):
            store.get("a", start=start, end=end)
        with pytest.raises(ObjectCorrupt):
            store.get_into("a", memoryview(bytearray(end - start)), start=start)


def test_get_into_fills_exactly_the_target(store: ObjectStore) -> None:
    content = os.urandom(600_000)
    store.put("a", content)
    target = bytearray(b"#" * 500_020)
    store.get_into("a", memoryview(target)[10:-10], start=1000)
    assert target == b"#" * 10 + content[1000:501_000] + b"#" * 10


def test_get_object_gives_the_etag_of_its_bytes(store: ObjectStore) -> None:
    written = store.put("a", b"hello")
    stored = store.get_object("a")
    assert stored.body == b"hello"
    assert stored.info.etag == written.etag
    assert stored.info.stated_crc32c == crc32c.crc32c(b"hello")


def test_readers_never_see_half_an_object(store: ObjectStore) -> None:
    versions = [bytes([number]) * (100_000 + number) for number in range(6)]
    store.put("a", versions[0])

    def write_or_read(number: int) -> None:
        if number == 0:
            for content in versions:
                store.put("a", content)
            return
        for _ in range(6):
            stored = store.get_object("a")
            assert stored.body in versions
            assert stored.info.stated_crc32c == crc32c.crc32c(stored.body)

    assert in_parallel(3, write_or_read) == [None] * 3


def test_objects_outlive_the_store_object(under_test: StoreUnderTest) -> None:
    under_test.store.put("a/b", b"kept")
    under_test.store.close()
    assert under_test.reopen().get("a/b") == b"kept"


# --- conditions ------------------------------------------------------------------------------


def test_put_if_absent_succeeds_once(store: ObjectStore) -> None:
    store.put("a", b"first", condition=IfAbsent())
    with pytest.raises(PreconditionFailed):
        store.put("a", b"second", condition=IfAbsent())
    with pytest.raises(PreconditionFailed):
        store.put("a", b"first", condition=IfAbsent())
    assert store.get("a") == b"first"


def test_put_if_absent_succeeds_again_after_a_delete(store: ObjectStore) -> None:
    store.put("a", b"first", condition=IfAbsent())
    store.delete(["a"])
    store.put("a", b"second", condition=IfAbsent())
    assert store.get("a") == b"second"


def test_a_delete_with_an_etag_spares_another_version_where_the_store_can(
    store: ObjectStore,
) -> None:
    store.try_out("probe/tried")
    store.delete(["probe/tried"])
    first, second = store.put("a", b"first"), store.put("a", b"second")
    if Lack.CONDITIONAL_DELETE not in store.lacks:
        with pytest.raises(PreconditionFailed):
            store.delete_matching("a", first.etag)
        assert store.get("a") == b"second"
    store.delete_matching("a", second.etag)
    assert list(store.list("")) == []
    store.delete_matching("a", second.etag)


@pytest.mark.parametrize("same_bytes", [False, True])
def test_of_many_who_create_an_object_one_wins(store: ObjectStore, same_bytes: bool) -> None:
    for round_number in range(3):
        key = f"race/{round_number}"
        bodies = [b"same" if same_bytes else b"%d" % number for number in range(RACERS)]
        outcomes = in_parallel(
            RACERS,
            lambda number, key=key, bodies=bodies: store.put(
                key, bodies[number], condition=IfAbsent()
            ),
        )
        winners = [n for n, got in enumerate(outcomes) if not isinstance(got, Exception)]
        losers = [got for got in outcomes if isinstance(got, Exception)]
        assert len(winners) == 1, outcomes
        assert all(isinstance(error, PreconditionFailed) for error in losers), outcomes
        assert store.get(key) == bodies[winners[0]]


def test_put_if_unchanged_needs_the_current_etag(store: ObjectStore) -> None:
    first = store.put("a", b"first")
    second = store.put("a", b"second", condition=IfMatches(first.etag))
    with pytest.raises(PreconditionFailed):
        store.put("a", b"third", condition=IfMatches(first.etag))
    assert store.get("a") == b"second"
    store.put("a", b"third", condition=IfMatches(second.etag))
    assert store.get("a") == b"third"


def test_put_if_unchanged_fails_on_a_missing_object(store: ObjectStore) -> None:
    written = store.put("a", b"x")
    store.delete(["a"])
    with pytest.raises(PreconditionFailed):
        store.put("a", b"y", condition=IfMatches(written.etag))
    with pytest.raises(ObjectNotFound):
        store.head("a")


def test_of_many_who_swap_an_object_one_wins(store: ObjectStore) -> None:
    etag = store.put("a", b"start").etag
    for _ in range(3):
        outcomes = in_parallel(
            RACERS,
            lambda number, etag=etag: store.put(
                "a", b"%s %d" % (etag.encode(), number), condition=IfMatches(etag)
            ),
        )
        winners = [got for got in outcomes if not isinstance(got, Exception)]
        losers = [got for got in outcomes if isinstance(got, Exception)]
        assert len(winners) == 1, outcomes
        assert all(isinstance(error, PreconditionFailed) for error in losers), outcomes
        etag = winners[0].etag
        assert store.head("a").etag == etag


def test_conditions_are_known_to_be_kept(store: ObjectStore) -> None:
    assert check_conditional_writes(store) is Conditions.AT_ONCE
    assert list(store.list("probe/")) == []


# --- files -----------------------------------------------------------------------------------


def test_a_file_is_archived_byte_for_byte(store: ObjectStore, tmp_path: Path) -> None:
    content = os.urandom(700_000)
    body = write_file(tmp_path / "segment.log", content)
    written = store.put("s/1.log", body, condition=IfAbsent())
    assert store.get("s/1.log") == content
    assert written.size_bytes == len(content)
    assert store.head("s/1.log").stated_crc32c == body.crc32c
    with pytest.raises(PreconditionFailed):
        store.put("s/1.log", body, condition=IfAbsent())


def test_only_the_named_part_of_a_file_is_archived(store: ObjectStore, tmp_path: Path) -> None:
    content = os.urandom(100_000)
    path = tmp_path / "segment.log"
    path.write_bytes(content)
    part = content[:60_000]
    store.put("a", FileBody(path=path, size_bytes=len(part), crc32c=crc32c.crc32c(part)))
    assert store.get("a") == part


def test_an_empty_file_can_be_archived(store: ObjectStore, tmp_path: Path) -> None:
    store.put("a", write_file(tmp_path / "empty", b""))
    assert store.get("a") == b""


def test_a_file_that_changed_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    body = write_file(tmp_path / "segment.log", b"x" * 1000)
    body.path.write_bytes(b"x" * 999 + b"y")
    with pytest.raises(ObjectCorrupt):
        store.put("a", body)
    body.path.write_bytes(b"x" * 999)
    with pytest.raises(ObjectCorrupt):
        store.put("a", body)
    with pytest.raises(ObjectNotFound):
        store.head("a")


def test_a_file_that_is_gone_is_a_disk_error(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(DiskError):
        store.put("a", FileBody(path=tmp_path / "gone", size_bytes=1, crc32c=0))


@pytest.mark.parametrize("size_bytes", [1000, SINGLE_PUT_BYTES_MAX + 1])
def test_a_file_that_the_disk_cannot_read_is_no_fault_of_the_store(
    store: ObjectStore, size_bytes: int
) -> None:
    """One bad sector must not be told as a store that is away, for which all copies wait."""
    # The kernel's own EIO, of a page that nothing is mapped to.
    body = FileBody(path=Path("/proc/self/mem"), size_bytes=size_bytes, crc32c=0)
    with pytest.raises(DiskError, match=r"cannot read .*: Input/output error"):
        store.put("a", body)
    with pytest.raises(ObjectNotFound):
        store.head("a")


@pytest.mark.slow
def test_a_large_file_is_archived_in_parts(
    under_test: StoreUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_bytes = 5 * 1024 * 1024  # the least that S3 allows
    monkeypatch.setattr(s3_uploads, "SINGLE_PUT_BYTES_MAX", part_bytes)
    monkeypatch.setattr(s3_uploads, "PART_BYTES", part_bytes)
    store = under_test.store
    content = os.urandom(2 * part_bytes + 12_345)
    body = write_file(tmp_path / "segment.log", content)
    written = store.put("big", body, condition=IfAbsent())
    assert store.get("big") == content
    found = store.head("big")
    assert (found.size_bytes, found.stated_crc32c) == (len(content), body.crc32c)
    assert found.etag == written.etag
    with pytest.raises(PreconditionFailed):
        store.put("big", body, condition=IfAbsent())
    store.put("big", body, condition=IfMatches(found.etag))
    assert store.abort_uploads("", older_than_ms=0) == 0


# --- listing ---------------------------------------------------------------------------------


def test_a_listing_is_in_byte_order_of_the_keys(store: ObjectStore) -> None:
    keys = ["a/1", "a-b/1", "a.b", "a/10", "a/2", "b", "a/1.x", "A", "a/ü"]
    for key in keys:
        store.put(key, key.encode())
    listed = list(store.list(""))
    assert [found.key for found in listed] == sorted(keys, key=str.encode)
    assert [found.size_bytes for found in listed] == [len(found.key.encode()) for found in listed]


def test_a_listing_has_only_what_begins_with_the_prefix(store: ObjectStore) -> None:
    for key in ["p/1", "p/2/x", "pq/1", "q/1", "p/20"]:
        store.put(key, b"")
    assert [found.key for found in store.list("p/")] == ["p/1", "p/2/x", "p/20"]
    assert [found.key for found in store.list("p/2")] == ["p/2/x", "p/20"]
    assert list(store.list("nothing/")) == []


def test_a_listing_begins_after_the_named_key_and_ends_at_its_limit(store: ObjectStore) -> None:
    keys = [f"log/{number:020d}.json" for number in range(9)]
    for key in keys:
        store.put(key, b"")
    after = store.list("log/", start_after=keys[3])
    assert [found.key for found in after] == keys[4:]
    limited = store.list("log/", start_after=keys[3], limit=2)
    assert [found.key for found in limited] == keys[4:6]
    assert [found.key for found in store.list("log/", limit=0)] == []
    assert list(store.list("log/", start_after=keys[-1])) == []


@pytest.mark.slow
def test_a_listing_goes_on_over_pages_and_delete_takes_any_number(store: ObjectStore) -> None:
    keys = [f"many/{number:05d}" for number in range(1003)]
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda key: store.put(key, b""), keys))
    assert [found.key for found in store.list("many/")] == keys
    store.delete(keys)
    assert list(store.list("many/")) == []


def test_folders_are_those_directly_below(store: ObjectStore) -> None:
    for key in ["topics/b/0/x", "topics/a-1/topic.json", "topics/b/topic.json", "topics/file"]:
        store.put(key, b"")
    assert list(store.list_folders("topics/")) == ["a-1", "b"]
    assert list(store.list_folders("")) == ["topics"]
    assert list(store.list_folders("nothing/")) == []
    store.delete(["topics/a-1/topic.json"])
    assert list(store.list_folders("topics/")) == ["b"]


def test_the_longest_topic_name_makes_a_good_key(under_test: StoreUnderTest) -> None:
    store = under_test.store
    if under_test.kind in SERVERS:
        # They keep an object as a file of its name, and a file's name has 255 bytes at most.
        with pytest.raises(TierError):
            store.put(LONG_TOPIC_KEY, b"zero")
        return
    other = LONG_TOPIC_KEY.replace("/0/", "/1/")
    store.put(LONG_TOPIC_KEY, b"zero")
    store.put(other, b"one")
    assert store.get(LONG_TOPIC_KEY) == b"zero"
    assert [found.key for found in store.list("topics/")] == [LONG_TOPIC_KEY, other]
    assert list(store.list_folders("topics/")) == [LONG_TOPIC_KEY.split("/")[1]]
    store.delete([LONG_TOPIC_KEY, other])
    assert list(store.list_folders("")) == []


# --- deleting --------------------------------------------------------------------------------


def test_deleting_what_is_not_there_is_fine(store: ObjectStore) -> None:
    store.put("a/1", b"")
    store.delete(["a/1", "a/2", "b/c/d"])
    store.delete(["a/1"])
    store.delete([])
    assert list(store.list("")) == []


def test_deleting_leaves_the_neighbours(store: ObjectStore) -> None:
    for key in ["a/1", "a/2", "a/2.meta"]:
        store.put(key, b"")
    store.delete(["a/2"])
    assert [found.key for found in store.list("")] == ["a/1", "a/2.meta"]


def test_there_is_nothing_to_abort_after_whole_uploads(store: ObjectStore) -> None:
    store.put("a", b"x")
    assert store.abort_uploads("", older_than_ms=0) == 0
    assert store.get("a") == b"x"


def test_a_store_tells_the_time_that_its_objects_have(store: ObjectStore) -> None:
    before_ms = store.clock_ms()
    store.put("a", b"x")
    after_ms = store.clock_ms()
    # Some stores tell whole seconds.
    assert before_ms - 1000 <= store.head("a").modified_ms <= after_ms + 1000
    assert [info.key for info in store.list("")] == ["a"]


# --- the root --------------------------------------------------------------------------------


def test_a_usable_root_passes_the_check(store: ObjectStore) -> None:
    store.check()


def test_a_missing_root_is_no_missing_object(under_test: StoreUnderTest, tmp_path: Path) -> None:
    if under_test.kind == MEMORY:
        return  # has no root that could be missing
    if under_test.kind == FILE:
        with pytest.raises(BucketMissing, match=r"^check: folder .* does not exist$"):
            open_store((tmp_path / "no" / "such" / "folder").as_uri()).check()
        in_the_way = tmp_path / "file"
        in_the_way.touch()
        with pytest.raises(BucketMissing, match=f"^check: {in_the_way} is no folder$"):
            open_store(in_the_way.as_uri()).check()
        return
    store = under_test.store
    assert isinstance(store, s3.S3Store)
    missing = open_store("s3://no-such-bucket-anywhere", endpoint_url=store.endpoint_url)
    for attempt in (
        missing.check,
        lambda: missing.get("a"),
        lambda: missing.head("a"),
        lambda: missing.put("a", b""),
        lambda: missing.put("a", b"", condition=IfAbsent()),
        lambda: list(missing.list("")),
    ):
        with pytest.raises(BucketMissing, match="no-such-bucket-anywhere"):
            attempt()
    missing.close()
