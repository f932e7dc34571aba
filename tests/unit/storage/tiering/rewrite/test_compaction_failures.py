"""Failed compaction rounds: their cost, and the wait for the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.errors import (
    AccessDenied,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    TierError,
)
from strandline.storage.tiering.policy.retry import UNREADABLE_TIMES
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import COMPACTED, Rig, asynchronous, in_three_segments


def last_key(rig: Rig) -> str:
    assert rig.manifest is not None
    return rig.manifest.segments[-1].log_key


async def ends_unreadable(rig: Rig, error: type[TierError]) -> Fault:
    """Three segments, of which the last cannot be read; rounds may begin."""
    await in_three_segments(rig)
    fault = Fault(operation="get", key_pattern=last_key(rig), error=error, times=-1)
    rig.memory.add_fault(fault)
    rig.configure(min_cleanable_dirty_ratio=0.0)
    return fault


@pytest.mark.parametrize("error", [ObjectArchived, ObjectCorrupt, ObjectNotFound])
@asynchronous
async def test_an_archive_that_cannot_be_read_whole_is_not_downloaded_again_and_again(
    tmp_path: Path, error: type[TierError]
) -> None:
    """A round begins with the first segment: each one would pay for all before the bad one."""
    async with Rig(tmp_path, config=COMPACTED) as rig:
        fault = await ends_unreadable(rig, error)
        for _ in range(20):
            rig.pass_ms(60_000)
            await rig.settle()
        assert fault.hit_count == UNREADABLE_TIMES
        requests = len(rig.memory.requests)
        await rig.settle()
        assert len(rig.memory.requests) == requests
        # Copying goes on as ever, and the next start looks again.
        rig.put((b"z", b"1"))
        rig.seal()
        await rig.clean()
        await rig.settle()
        assert rig.manifest is not None
        assert len(rig.manifest.segments) == 4
        rig.memory.clear_faults()
        await rig.crash()
        await rig.settle()
        assert rig.manifest.compaction is not None


@asynchronous
async def test_rounds_that_fail_come_further_and_further_apart(tmp_path: Path) -> None:
    """Though each has steps that succeed, before the one that does not."""
    async with Rig(tmp_path, config=COMPACTED) as rig:
        fault = await ends_unreadable(rig, AccessDenied)
        for _ in range(60):
            rig.pass_ms(1000)
            await rig.settle()
        assert 1 < fault.hit_count < 12
        rig.memory.clear_faults()
        rig.pass_ms(60_000)
        await rig.settle()
        assert rig.manifest is not None
        assert rig.manifest.compaction is not None


@asynchronous
async def test_bytes_that_were_damaged_on_their_way_cost_a_round_and_no_more(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=COMPACTED) as rig:
        await in_three_segments(rig)
        rig.memory.add_fault(Fault(operation="get", key_pattern=last_key(rig), flip_bit_at=100))
        rig.configure(min_cleanable_dirty_ratio=0.0)
        for _ in range(3):
            rig.pass_ms(60_000)
            await rig.settle()
        assert rig.manifest is not None
        assert rig.manifest.compaction is not None
