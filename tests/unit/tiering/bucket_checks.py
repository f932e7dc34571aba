"""What a bucket has to be once a rig had the time to put it in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from strandline.storage.tiering.orphans import SAFE_REASONS, compare, delete_safe_orphans
from strandline.storage.tiering.scrub import Depth, Scrub
from tests.unit.tiering.harness import (
    GRACE_MS,
    ID_PARTITION,
    Rig,
    keys_of,
)

HEAL_ROUNDS = 4


async def heal(rig: Rig) -> None:
    for _ in range(HEAL_ROUNDS):
        rig.pass_ms(GRACE_MS)
        await rig.settle()
    state = rig.statistics
    assert (state.copy_lag_segments, state.deleting_segments, state.copy_failure) == (0, 0, None)


def check_bucket(rig: Rig) -> None:
    """It is what the manifest says, once the orphans had their time."""
    now_ms, grace_ms = rig.clock.now_ms(), rig.tiering_config.orphan_grace_ms
    assert delete_safe_orphans(rig.store, clock=rig.clock, grace_ms=grace_ms) == 0, "may be in use"
    found = compare(rig.store, now_ms=now_ms, grace_ms=0)
    assert (found.missing_keys, found.unreadable) == ((), ())
    assert {orphan.reason for orphan in found.orphans} <= SAFE_REASONS
    rig.pass_ms(grace_ms)
    delete_safe_orphans(rig.store, clock=rig.clock, grace_ms=grace_ms)
    assert set(rig.data_keys()) == keys_of(rig.manifest)
    with ThreadPoolExecutor(2) as executor:
        report = Scrub(rig.store, executor, depth=Depth.EVERYTHING).check(ID_PARTITION)
    assert report.findings == ()
