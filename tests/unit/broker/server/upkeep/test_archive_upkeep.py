"""Asking the bucket whose archive it holds."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.server.upkeep.claim import ArchiveClaim, WrongArchive
from strandline.broker.server.upkeep.folder_marks import ARCHIVE_MARK, ArchiveMark
from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    StoreFull,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.keys import CLUSTER_KEY
from strandline.storage.remote.manifest.cluster_info import ClusterInfo, load_cluster_info
from strandline.storage.remote.object_store.conditional_writes import Conditions
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from tests.support.memory_store import Fault, MemoryStore


def test_an_answer_that_comes_after_a_start_was_given_up_leaves_no_traceback() -> None:
    store = MemoryStore()
    answered = threading.Event()
    store.add_fault(Fault(error=TierUnavailable, gate=answered, times=-1))
    never_retrieved: list[dict[str, Any]] = []

    async def start_and_give_up() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: never_retrieved.append(context))
        with ThreadPoolExecutor(1) as thread:
            claim = ArchiveClaim(store, thread, cluster_id="c")
            assert not await claim.attempt(wait_s=0)
            del claim
            answered.set()
        # The thread has ended: its answer is the next thing that the loop does.
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(start_and_give_up())

    assert never_retrieved == []


def test_an_archive_folder_that_is_empty_all_at_once_is_away_and_stays_empty(
    tmp_path: Path,
) -> None:
    """A start without the archive's volume finds its mount point, and must not begin one there."""
    root, away, disk = tmp_path / "archive", tmp_path / "away", tmp_path / "disk"
    disk.mkdir()

    async def claim_once() -> bool:
        store = LocalDirectoryStore(root)
        mark = ArchiveMark(disk, store.url, check_present=lambda: None)
        with ThreadPoolExecutor(1) as thread:
            return await ArchiveClaim(store, thread, cluster_id="c", mark=mark).attempt()

    assert asyncio.run(claim_once())
    root.rename(away)
    assert not asyncio.run(claim_once())
    assert not root.exists()
    root.mkdir()
    assert not asyncio.run(claim_once())
    assert list(root.iterdir()) == []
    away.rename(root)
    assert asyncio.run(claim_once())
    # Emptied on purpose: what the log says is to be removed is removed.
    root.rename(away)
    (disk / ARCHIVE_MARK).unlink()
    assert asyncio.run(claim_once())
    assert (root / "cluster.json").exists()


def claim_of(store: MemoryStore, thread: ThreadPoolExecutor) -> ArchiveClaim:
    return ArchiveClaim(store, thread, cluster_id="c")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreFull, "remote tier has no room"),
        (AccessDenied, "writing to the remote tier is forbidden"),
    ],
)
def test_an_archive_that_takes_no_writes_is_claimed_by_who_began_it_and_asked_again(
    error: type[TierError], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is archived can be read from it; a probe would have to write."""
    store = MemoryStore()
    refused = Fault(operation="put", error=error, times=-1)

    async def claim() -> None:
        with ThreadPoolExecutor(1) as thread:
            store.add_fault(refused)
            assert not await claim_of(store, thread).attempt()
            store.clear_faults()
            first = claim_of(store, thread)
            assert await first.attempt()
            assert first.is_complete
            store.add_fault(refused)
            again = claim_of(store, thread)
            for _ in range(2):
                assert await again.attempt()
                assert isinstance(again.refusal, error)
                assert not again.is_complete
            store.clear_faults()
            assert await again.attempt()
            assert again.is_complete
            assert again.conditions is Conditions.AT_ONCE

    with caplog.at_level(logging.INFO):
        asyncio.run(claim())
    told = [row.message for row in caplog.records if row.levelno > logging.DEBUG]
    assert [row.startswith(said) for row in told] == [True, True, False]
    assert "begin" in told[0] or "begun" in told[0]
    assert "what is archived is served, nothing is copied" in told[1]
    assert told[2] == "remote tier takes writes again"


def test_an_archive_that_may_not_even_be_read_is_not_called_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    store.add_fault(Fault(error=AccessDenied, times=-1))

    async def claim() -> bool:
        with ThreadPoolExecutor(1) as thread:
            return await claim_of(store, thread).attempt()

    assert not asyncio.run(claim())
    (row,) = caplog.records
    assert row.message.startswith("remote tier refuses this broker's reads")


def test_a_claim_that_found_damage_asks_again(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put(CLUSTER_KEY, b"{")

    async def claim_again() -> bool:
        with ThreadPoolExecutor(1) as thread:
            claim = claim_of(store, thread)
            for _ in range(2):
                with pytest.raises(CorruptFile):
                    await claim.attempt()
            store.delete([CLUSTER_KEY])
            return await claim.attempt()

    assert asyncio.run(claim_again())


def of_cluster(cluster_id: str) -> MemoryStore:
    """An archive with its metadata, and without cluster.json."""
    store = MemoryStore()
    MetadataLog(store, cluster_id=cluster_id).load()
    return store


def test_an_archive_that_lost_its_cluster_json_is_no_other_clusters() -> None:
    """A start on new folders would have given it a cluster that nobody can restore."""
    theirs, ours = of_cluster("another"), of_cluster("c")

    async def claim() -> bool:
        with ThreadPoolExecutor(1) as thread:
            with pytest.raises(WrongArchive, match="belongs to cluster another"):
                await claim_of(theirs, thread).attempt()
            return await claim_of(ours, thread).attempt()

    assert asyncio.run(claim())
    assert load_cluster_info(theirs) is None
    assert load_cluster_info(ours) == ClusterInfo(cluster_id="c")


def test_a_mounted_archive_that_lost_its_cluster_json_is_not_taken_for_one_that_is_away(
    tmp_path: Path,
) -> None:
    store = of_cluster("c")
    mark = ArchiveMark(tmp_path, store.url, check_present=lambda: None)
    mark.set()

    async def claim() -> bool:
        with ThreadPoolExecutor(1) as thread:
            return await ArchiveClaim(store, thread, cluster_id="c", mark=mark).attempt()

    assert asyncio.run(claim())
    assert load_cluster_info(store) == ClusterInfo(cluster_id="c")


def test_a_cluster_json_that_is_another_ones_by_now_takes_the_archive_away() -> None:
    store = MemoryStore()

    async def look() -> ArchiveClaim:
        with ThreadPoolExecutor(1) as thread:
            claim = claim_of(store, thread)
            assert await claim.attempt()
            await claim.check()
            assert (claim.is_ours, claim.deleted_count) == (True, 0)
            store.delete([CLUSTER_KEY])
            await claim.check()
            assert (claim.is_ours, claim.deleted_count) == (True, 1)
            assert load_cluster_info(store) == ClusterInfo(cluster_id="c")
            store.put(CLUSTER_KEY, ClusterInfo(cluster_id="another").encode())
            with pytest.raises(WrongArchive):
                await claim.check()
            return claim

    assert not asyncio.run(look()).is_ours
