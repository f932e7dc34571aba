"""Random lives of one partition: whatever happens, no record is lost, doubled or changed.

Each seed is a life: produce, roll, wait, delete, restart, crash between any two steps (of copying,
merging, deleting and uploading the open segment), lose the disk, requests that fail before or after
they were carried out. After every event the promises are checked that
must hold at all times; at the end the store is well again and everything has to settle.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import AccessDenied, ObjectCorrupt, TierError, TierUnavailable
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.tiering.audit.orphans import compare
from tests.support.memory_store import Fault, Timing
from tests.unit.storage.tiering.harness import CONFIG, GRACE_MS, Rig, asynchronous, keys_of

EVENTS_PER_LIFE = 60
BATCH_RECORDS = 10
# Of three segments or so.
MERGE_TARGET_BYTES = 800


class Life:
    """One seeded run."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._choice = random.Random(seed)

    async def event(self) -> None:
        rig, choice = self._rig, self._choice
        match choice.choices(
            (
                "produce",
                "roll",
                "settle",
                "wait",
                "delete",
                "fault",
                "heal",
                "crash",
                "die",
                "lose",
            ),
            (10, 6, 10, 6, 2, 3, 2, 2, 3, 1),
        )[0]:
            case "produce":
                for _ in range(choice.randrange(1, 4)):
                    self._produce()
            case "roll":
                rig.roll()
            case "settle":
                await rig.settle()
            case "wait":
                rig.pass_ms(choice.choice((10, 600, 1500, 40_000, GRACE_MS)))
            case "delete":
                self._delete_some()
            case "fault":
                rig.memory.add_fault(self._fault())
            case "heal":
                rig.memory.clear_faults()
            case "crash":
                await rig.crash(start=choice.random() < 0.7)
            case "die":
                await self._die(choice.choice(CRASH_POINTS))
            case "lose":
                await self._lose_disk()

    def _produce(self) -> None:
        try:
            self._rig.produce(BATCH_RECORDS)
        except TierUnavailable:
            # An empty disk and an unknown archive: refused, so nothing was promised.
            assert self._rig.log.local.end_offset == self._rig.log.local.start_offset

    def _delete_some(self) -> None:
        rig = self._rig
        batches = range(rig.log.log_start_offset, rig.log.end_offset + 1, BATCH_RECORDS)
        if rig.log.log_start_offset % BATCH_RECORDS == 0 and len(batches) > 4:
            rig.log.delete_records(self._choice.choice(batches[: len(batches) // 3]))

    def _fault(self) -> Fault:
        choice = self._choice
        error: type[TierError] = choice.choice((TierUnavailable, AccessDenied, ObjectCorrupt))
        return Fault(
            operation=choice.choice(("put", "get", "head", "delete", "list", "check", ".*")),
            key_pattern=choice.choice(("", r"manifest\.json$", r"\.log$", r"\.meta$")),
            error=error,
            moment=choice.choice((Timing.BEFORE, Timing.AFTER)),
            times=choice.randrange(1, 6),
        )

    async def _die(self, point: str) -> None:
        """Runs until the point is crossed, if it is; then the process is a new one."""
        try:
            with simulated_crash(point):
                await self._rig.settle()
        except SimulatedCrash:
            await self._rig.crash(start=self._choice.random() < 0.7)

    async def _lose_disk(self) -> None:
        """Another machine: what the bucket has comes back, and nothing else."""
        rig = self._rig
        rig.memory.clear_faults()
        manifest = rig.manifest
        start, kept = 0, 0
        if manifest is not None:
            start = manifest.log_start_offset
            kept = max(manifest.tail_end_offset, manifest.end_offset, start)
        await rig.lose_disk()
        for _ in range(3):
            rig.pass_ms(60_000)
            await rig.manager.run_once()
        assert rig.log.end_offset == kept, "all that was in the bucket, and no more"
        assert rig.log.log_start_offset == start
        del rig.sent[kept // BATCH_RECORDS :]

    def check(self) -> None:
        """What has to hold at any moment."""
        rig = self._rig
        manifest = rig.manifest
        stored = set(rig.memory.keys())
        assert keys_of(manifest) <= stored, "the manifest names only what exists"
        local_start = rig.log.local.start_offset
        if local_start > 0:
            archived_to = 0 if manifest is None else manifest.end_offset
            durable_start = rig.log.durable_log_start_offset
            assert local_start <= max(archived_to, durable_start), "freed without a copy"

    async def check_everything(self) -> None:
        """What has to hold once all is well again."""
        rig = self._rig
        rig.memory.clear_faults()
        for _ in range(6):
            rig.pass_ms(GRACE_MS)
            await rig.settle()
            self.check()
        assert rig.log.end_offset == BATCH_RECORDS * len(rig.sent)
        start = rig.log.log_start_offset
        assert await rig.read_all(start) == b"".join(rig.sent[start // BATCH_RECORDS :])
        assert rig.statistics.copy_lag_segments == 0
        assert rig.statistics.deleting_segments == 0
        found = compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=0)
        assert found.missing_keys == ()
        spare = set(rig.data_keys()) - keys_of(rig.manifest)
        in_pages = {
            key
            for page in (rig.manifest.pages if rig.manifest else ())
            for entry in manifest_store.ManifestPages(rig.store).entries(page)
            for key in (entry.log_key, entry.meta_key)
        }
        orphans = {o.key for o in found.orphans if o.key.endswith((".log", ".meta", ".tail"))}
        assert spare - in_pages == orphans, "every object is referred to or found as an orphan"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@asynchronous
async def test_no_life_loses_a_record(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(manifest_store.commit, root_entries_max=4, page_entries=2, page_entries_max=64)
    monkeypatch.setattr(manifest_store, "commit", small)
    config = replace(CONFIG, strandline_remote_active_segment_upload_ms=1000)
    async with Rig(tmp_path, config=config, merge_target_bytes=MERGE_TARGET_BYTES) as rig:
        life = Life(rig, seed)
        for _ in range(EVENTS_PER_LIFE):
            await life.event()
            life.check()
        await life.check_everything()
