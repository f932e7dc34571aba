"""A commit whose answer is lost: before it was done, after it, or it is done late.

    lost before      the request never reached the store
    lost after       it was done, and nobody was told
    late             its caller has given up, read the manifest again and gone on; then it is done:
                     before the next commit, after it, or not before the broker was restarted

Whichever it is: the manifest names what exists, what was sent is read, and what nobody refers to
is an orphan that goes without anybody's looking.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from strandline.storage.errors import TierUnavailable
from tests.support.memory_store import Fault, Timing
from tests.unit.storage.tiering.bucket_checks import check_bucket, heal
from tests.unit.storage.tiering.harness import (
    GRACE_MS,
    Rig,
    asynchronous,
    keys_of,
)

MANIFEST = r"manifest\.json$"
BATCH = 10
SEGMENTS = 4
UPLOAD_MS = 20_000
MERGE_TARGET_BYTES = 800
# Longer than a store is left alone after a failure, shorter than anything else.
RETRY_MS = 6_000
# Enough for one to be ready behind the one whose commit is in doubt.
COPIES = 4


# --- what is committed ---------------------------------------------------------------------------


async def first_of_all(rig: Rig) -> None:
    """It names nothing, and comes before any other object."""
    rig.produce_segments(SEGMENTS)


async def copy(rig: Rig) -> None:
    rig.produce_segments(1)
    await rig.settle()
    rig.produce_segments(SEGMENTS)


async def log_start(rig: Rig) -> None:
    rig.produce_segments(SEGMENTS)
    await rig.settle()
    rig.log.delete_records(2 * BATCH)


async def end_of_deletion(rig: Rig) -> None:
    await log_start(rig)
    await rig.settle()
    rig.pass_ms(GRACE_MS)


async def open_segment(rig: Rig) -> None:
    rig.produce_segments(1)
    await rig.settle()
    rig.configure(strandline_remote_active_segment_upload_ms=UPLOAD_MS)
    rig.produce(BATCH)
    await rig.manager.run_once()
    rig.pass_ms(UPLOAD_MS)


async def merge(rig: Rig) -> None:
    """The fourth segment makes a run that is worth it; its own commit goes through."""
    rig.produce_segments(SEGMENTS - 1)
    await rig.settle()
    rig.produce_segments(SEGMENTS)


COMMITS: dict[str, Callable[[Rig], Awaitable[None]]] = {
    "first of all": first_of_all,
    "copy": copy,
    "log start": log_start,
    "end of deletion": end_of_deletion,
    "open segment": open_segment,
    "merge": merge,
}


# --- when it is done -----------------------------------------------------------------------------


async def nothing_else(rig: Rig) -> None:
    del rig


async def before_the_next_commit(rig: Rig) -> None:
    """After the manifest was read again, when the next commit is on its way."""
    gate = threading.Event()
    fault = rig.memory.add_fault(Fault(operation="put", key_pattern=MANIFEST, gate=gate))
    rig.pass_ms(RETRY_MS)
    settling = asyncio.ensure_future(rig.settle())
    while not fault.hit_count:
        await asyncio.sleep(0.005)
    assert rig.memory.deliver_late() == 1
    gate.set()
    await settling


async def after_the_next_commit(rig: Rig) -> None:
    rig.pass_ms(RETRY_MS)
    await rig.settle()
    assert rig.memory.deliver_late() == 0


async def while_the_broker_is_down(rig: Rig) -> None:
    rig.memory.deliver_late()
    await rig.crash()


async def after_a_restart(rig: Rig) -> None:
    await rig.crash()
    rig.memory.deliver_late()


async def when_its_copies_are_too_old(rig: Rig) -> None:
    """Nothing that was uploaded may be committed again by then, and all of it is made anew."""
    rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
    for _ in range(3):
        rig.pass_ms(rig.tiering_config.copy_timeout_ms)
        await rig.settle()
    rig.memory.clear_faults()
    rig.memory.deliver_late()


ORDERS: dict[str, tuple[Timing, Callable[[Rig], Awaitable[None]]]] = {
    "lost before": (Timing.BEFORE, nothing_else),
    "lost after": (Timing.AFTER, nothing_else),
    "late, before the next commit": (Timing.LATE, before_the_next_commit),
    "late, after the next commit": (Timing.LATE, after_the_next_commit),
    "late, while the broker is down": (Timing.LATE, while_the_broker_is_down),
    "late, after a restart": (Timing.LATE, after_a_restart),
    "late, after the copy's time": (Timing.LATE, when_its_copies_are_too_old),
}


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("order", ORDERS)
@asynchronous
async def test_a_commit_of_unknown_outcome_deletes_nothing_and_leaves_nothing(
    tmp_path: Path, order: str, commit: str
) -> None:
    moment, then = ORDERS[order]
    merge_target_bytes = MERGE_TARGET_BYTES if commit == "merge" else 0
    async with Rig(tmp_path, merge_target_bytes=merge_target_bytes, copies=COPIES) as rig:
        await COMMITS[commit](rig)
        # The merge follows the copies that make it worth while.
        skip = SEGMENTS if commit == "merge" else 0
        lost = rig.memory.add_fault(
            Fault(
                operation="put",
                key_pattern=MANIFEST,
                error=TierUnavailable,
                moment=moment,
                skip=skip,
            )
        )
        await rig.settle()
        assert lost.hit_count == 1
        assert keys_of(rig.manifest) <= set(rig.memory.keys())
        await then(rig)
        assert keys_of(rig.manifest) <= set(rig.memory.keys())
        rig.produce(BATCH)
        await heal(rig)
        start = rig.log.log_start_offset
        assert start == (2 * BATCH if commit in ("log start", "end of deletion") else 0)
        assert await rig.read_all(start) == b"".join(rig.sent[start // BATCH :])
        check_bucket(rig)


# --- when the disk is lost too -------------------------------------------------------------------


@pytest.mark.parametrize("arrives_after", [1, SEGMENTS + 2])
@pytest.mark.parametrize("archived", [1, 0])
@asynchronous
async def test_a_commit_that_comes_after_its_brokers_disk_was_lost_takes_no_new_record(
    tmp_path: Path, archived: int, arrives_after: int
) -> None:
    """The log goes on behind what the bucket had, and those offsets are given out once more."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(archived)
        await rig.settle()
        rig.produce_segments(SEGMENTS)
        rig.memory.add_fault(
            Fault(
                operation="put",
                key_pattern=MANIFEST,
                error=TierUnavailable,
                moment=Timing.LATE,
            )
        )
        await rig.settle()
        await rig.lose_disk()
        assert rig.log.end_offset == BATCH * archived
        del rig.sent[archived:]
        rig.pass_ms(1)
        rig.produce_segments(arrives_after)
        rig.memory.deliver_late()
        await heal(rig)
        await rig.assert_everything_is_readable()
        check_bucket(rig, is_disk_lost=True)
