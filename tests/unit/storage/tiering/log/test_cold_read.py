"""What an archive holds is found, though a merge or retention replaces it under the reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.storage.errors import ObjectCorrupt, ObjectNotFound, OffsetOutOfRange
from strandline.storage.model import Isolation
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.tiering.rewrite import merging
from tests.unit.storage.tiering.harness import GRACE_MS, Rig, asynchronous
from tests.unit.storage.tiering.transactional_producer import Producer

MERGE_BYTES = 1_800
STEP_MS = 5_000
SEGMENTS = 7
# Which of them has the aborted transaction.
ABORTED_SEGMENT = 1


async def archive_and_free(rig: Rig) -> int:
    """Segments of one batch each, in the archive alone; the offset of an aborted record."""
    aborted = -1
    for number in range(SEGMENTS):
        rig.produce(10)
        if number == ABORTED_SEGMENT:
            producer = Producer(rig, 1)
            aborted = producer.send()
            producer.end(MarkerType.ABORT)
        rig.roll()
        rig.pass_ms(100)
    await rig.manager.run_once()
    rig.pass_ms(STEP_MS)
    await rig.settle()
    assert rig.manifest is not None
    assert rig.manifest.segment_count == SEGMENTS
    assert rig.log.local.start_offset == rig.log.end_offset
    return aborted


def change_under(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: str, change: Callable[[], Any]
) -> list[object]:
    """The first call of this method of the remote log or its reader meets a `change`.

    Returns the entries that were asked for.
    """
    remote = rig.log.remote
    assert remote is not None
    target = remote if method == "read" else remote.reader
    original = getattr(target, method)
    asked: list[object] = []

    async def late(entry: object, *args: object, **options: object) -> object:
        asked.append(entry)
        if len(asked) == 1:
            await change()
        return await original(entry, *args, **options)

    monkeypatch.setattr(target, method, late)
    return asked


async def read(rig: Rig) -> object:
    return (await rig.log.read_remote(0, bytes_max=1)).next_offset


async def read_committed(rig: Rig) -> object:
    found = await rig.log.read_remote(10, bytes_max=1_000, isolation=Isolation.READ_COMMITTED)
    return [transaction.first_offset for transaction in found.aborted]


async def find_timestamp(rig: Rig) -> object:
    found = await rig.log.find_timestamp(0)
    return found and found.offset


async def max_timestamp(rig: Rig) -> object:
    found = await rig.log.max_timestamp()
    return found and found.offset


LOOKUPS = {
    "read": read,
    "aborted_transactions": read_committed,
    "find_timestamp": find_timestamp,
    "max_timestamp": max_timestamp,
}


@pytest.mark.parametrize("what", [*LOOKUPS])
def test_a_reader_whose_segment_is_merged_away_meanwhile_looks_into_the_merged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path, merge_target_bytes=MERGE_BYTES) as rig:
            with monkeypatch.context() as patch:
                patch.setattr(merging, "choose_run", lambda *_, **__: ())
                aborted = await archive_and_free(rig)
            before = set(rig.data_keys())

            async def merge() -> None:
                for _ in range(3):
                    rig.pass_ms(GRACE_MS)
                    await rig.settle()
                assert before.isdisjoint(rig.data_keys())

            is_timestamp = "timestamp" in what
            method = "find_timestamp" if is_timestamp else what
            asked = change_under(rig, monkeypatch, method, merge)
            # The last batch has the highest timestamps, and one record each ten.
            last = rig.log.end_offset - 1
            expected = {
                "read": 10,
                "aborted_transactions": [aborted],
                "find_timestamp": 0,
                "max_timestamp": last,
            }
            assert await LOOKUPS[what](rig) == expected[what]
            assert len(asked) >= 2
            assert asked[0] != asked[-1]

    run()


@pytest.mark.parametrize("is_all_gone", [False, True], ids=["one segment", "all"])
@pytest.mark.parametrize("what", ["read", "find_timestamp"])
def test_a_reader_whose_segment_is_let_go_meanwhile_is_told_where_the_log_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, *, is_all_gone: bool
) -> None:
    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path) as rig:
            await archive_and_free(rig)

            async def let_go() -> None:
                rig.log.delete_records(rig.log.end_offset if is_all_gone else 10)
                for _ in range(2):
                    await rig.settle()
                    rig.pass_ms(GRACE_MS)
                await rig.settle()
                assert len(rig.archived) == (0 if is_all_gone else SEGMENTS - 1)

            change_under(rig, monkeypatch, what, let_go)
            if what == "read":
                with pytest.raises(OffsetOutOfRange):
                    await read(rig)
            else:
                assert await find_timestamp(rig) == (None if is_all_gone else 10)

    run()


@asynchronous
async def test_records_are_not_returned_when_what_was_aborted_is_let_go_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(tmp_path) as rig:
        await archive_and_free(rig)

        async def let_go() -> None:
            rig.log.delete_records(rig.log.end_offset)
            for _ in range(2):
                await rig.settle()
                rig.pass_ms(GRACE_MS)
            await rig.settle()

        change_under(rig, monkeypatch, "aborted_transactions", let_go)
        with pytest.raises(OffsetOutOfRange):
            await read_committed(rig)


@asynchronous
async def test_what_the_manifest_has_let_go_is_out_of_range_before_the_log_knows(
    tmp_path: Path,
) -> None:
    """A replica takes over a manifest first, and the log start in it when its log is behind it."""
    async with Rig(tmp_path) as rig:
        await archive_and_free(rig)
        remote, manifest = rig.log.remote, rig.manifest
        assert remote is not None
        assert remote.stored is not None
        assert manifest is not None
        let_go = manifest.with_log_start(10).with_deleting(manifest.segments[:1], marked_ms=0)
        remote.adopt(replace(remote.stored, manifest=let_go))
        assert rig.log.log_start_offset == 0
        with pytest.raises(OffsetOutOfRange):
            await read(rig)


@pytest.mark.parametrize("what", [*LOOKUPS])
def test_an_object_that_is_gone_though_the_manifest_names_it_is_a_loss_and_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path) as rig:
            await archive_and_free(rig)
            is_aborted = what == "aborted_transactions"
            if is_aborted:
                # The records are there, and who of them was aborted is not known any more.
                await read(rig)
                await rig.log.read_remote(10, bytes_max=1_000)
            rig.store.delete([k for k in rig.data_keys() if is_aborted <= k.endswith(".meta")])

            async def nothing() -> None:
                return

            method = "find_timestamp" if "timestamp" in what else what
            asked = change_under(rig, monkeypatch, method, nothing)
            with pytest.raises(ObjectNotFound):
                await LOOKUPS[what](rig)
            assert len(asked) == 1

    run()


# --- what nobody can read ------------------------------------------------------------------------


def met(rig: Rig) -> dict[str, int]:
    unreadable = rig.reader.statistics().unreadable
    return {reason.value: count for reason, count in unreadable.items() if count}


@asynchronous
async def test_whatever_a_reader_meets_that_is_lost_counts_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(manifest_store.commit, root_entries_max=3, page_entries=2, page_entries_max=2)
    monkeypatch.setattr(manifest_store, "commit", small)
    async with Rig(tmp_path) as rig:
        await archive_and_free(rig)
        manifest = rig.manifest
        assert manifest is not None
        page, last = manifest.pages[0], manifest.segments[-1]
        contents = {key: rig.store.get(key) for key in (page.key, last.log_key)}
        # Another broker process has nothing in its memory.
        await rig.crash()
        for look in (read, find_timestamp, max_timestamp):
            before = met(rig).get("missing", 0)
            rig.store.delete(list(contents))
            with pytest.raises(ObjectNotFound):
                await look(rig)
            assert met(rig) == {"missing": before + 1}
        rig.store.put(page.key, b"torn")
        with pytest.raises(ObjectCorrupt):
            await read(rig)
        assert met(rig)["corrupt"] == 1
        for key, content in contents.items():
            rig.store.put(key, content)
        counted = met(rig)
        for look in (read, find_timestamp, max_timestamp):
            assert await look(rig) is not None
        assert met(rig) == counted


@asynchronous
async def test_a_page_that_was_replaced_under_a_reader_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(manifest_store.commit, root_entries_max=3, page_entries=2, page_entries_max=2)
    monkeypatch.setattr(manifest_store, "commit", small)
    async with Rig(tmp_path) as rig:
        await archive_and_free(rig)
        await rig.crash()
        remote = rig.log.remote
        assert remote is not None
        assert remote.stored is not None
        older = remote.stored
        (first, *others) = older.manifest.pages
        moved = replace(first, key=f"{first.key[:-5]}0.json")
        newest = replace(older, manifest=replace(older.manifest, pages=(moved, *others)))
        rig.store.put(moved.key, rig.store.get(first.key))
        rig.store.delete([first.key])

        async def follow() -> None:
            remote.adopt(newest)

        remote.follow = follow
        assert await read(rig) is not None
        assert met(rig) == {}


def test_an_answer_over_two_segments_names_what_was_aborted_in_the_second(tmp_path: Path) -> None:
    """The first one lists a transaction that ends in the second, too."""

    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path) as rig:
            long, short = Producer(rig, 1), Producer(rig, 2)
            began = [long.send()]
            rig.roll()
            began.append(short.send())
            short.end(MarkerType.ABORT)
            long.end(MarkerType.ABORT)
            rig.roll()
            rig.pass_ms(STEP_MS)
            await rig.settle()
            # Both segments are in the cache before the last read.
            for offset in (*began, began[0]):
                found = await rig.log.read_remote(
                    offset, bytes_max=1_000_000, isolation=Isolation.READ_COMMITTED
                )
            assert found.next_offset == rig.log.end_offset
            assert [transaction.first_offset for transaction in found.aborted] == began

    run()
