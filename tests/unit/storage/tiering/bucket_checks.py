"""Checks of a bucket after its partition has settled."""

from __future__ import annotations

from strandline.storage.tiering.audit.orphans import (
    SAFE_REASONS,
    OrphanReason,
    compare,
    delete_orphans,
    delete_safe_orphans,
)
from tests.unit.storage.tiering.harness import GRACE_MS, Rig, keys_of

HEAL_ROUNDS = 4


async def heal(rig: Rig) -> None:
    for _ in range(HEAL_ROUNDS):
        rig.pass_ms(GRACE_MS)
        await rig.settle()
    state = rig.statistics
    assert (state.copy_lag_segments, state.deleting_segments, state.copy_failure) == (0, 0, None)


def check_bucket(rig: Rig, *, is_disk_lost: bool = False) -> None:
    """It is what the manifest says, once the orphans had their time.

    What was uploaded of a disk that was lost before the commit holds records that nobody else has:
    it waits for somebody who says otherwise.
    """
    known = SAFE_REASONS | {OrphanReason.OTHER_RECORDS} if is_disk_lost else SAFE_REASONS
    now_ms, grace_ms = rig.clock.now_ms(), rig.tiering_config.orphan_grace_ms
    assert delete_safe_orphans(rig.store, clock=rig.clock, grace_ms=grace_ms) == 0, "may be in use"
    found = compare(rig.store, now_ms=now_ms, grace_ms=0)
    assert (found.missing_keys, found.unreadable) == ((), ())
    assert {orphan.reason for orphan in found.orphans} <= known
    rig.pass_ms(grace_ms)
    delete_safe_orphans(rig.store, clock=rig.clock, grace_ms=grace_ms)
    if is_disk_lost:
        delete_orphans(rig.store, compare(rig.store, now_ms=now_ms + grace_ms, grace_ms=0).orphans)
    assert set(rig.data_keys()) == keys_of(rig.manifest)
    rig.assert_archive_is_whole()
