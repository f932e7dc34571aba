"""Deletion marks are bounded, and due ones are deleted whatever else fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.errors import AccessDenied
from strandline.storage.remote.manifest import manifest
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.tiering.audit.orphans import compare, delete_orphans
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import (
    CONFIG,
    GRACE_MS,
    ID_PARTITION,
    Rig,
    asynchronous,
    keys_of,
)

UPLOAD_MS = 10_000
MARKS = 5
CONFIGURED = replace(
    CONFIG, strandline_remote_active_segment_upload_ms=UPLOAD_MS, local_retention_ms=-1
)


@asynchronous
async def test_a_store_that_deletes_nothing_does_not_let_the_manifest_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new piece of the open segment lets an older one go: they are orphans then."""
    monkeypatch.setattr(manifest, "MARKS_MAX", MARKS)
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        denied = Fault(operation="delete", error=AccessDenied, times=-1)
        rig.memory.add_fault(denied)
        for number in range(4 * MARKS):
            rig.produce()
            if number % 4 == 0:
                rig.roll()
            for _ in range(3):
                rig.pass_ms(UPLOAD_MS)
                await rig.settle()
        assert rig.manifest is not None
        assert len(rig.manifest.deleting) == MARKS
        assert rig.manifest.tail_end_offset == rig.log.end_offset
        rig.memory.clear_faults()
        for _ in range(3):
            rig.pass_ms(GRACE_MS)
            await rig.settle()
        assert rig.manifest.deleting == ()
        found = compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=0)
        delete_orphans(rig.store, found.orphans)
        assert set(rig.data_keys()) == keys_of(rig.manifest)
        await rig.lose_disk()
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_page_that_cannot_be_read_holds_up_no_deletion_but_its_own(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce_segments(4)
        await rig.settle()
        stored = manifest_store.load(rig.store, ID_PARTITION)
        assert stored is not None
        paged = manifest_store.commit(
            rig.store, stored, stored.manifest, root_entries_max=2, page_entries=2
        )
        await rig.crash()
        rig.store.delete([paged.manifest.pages[0].key])
        rig.log.delete_records(10)
        await rig.write_log_starts()
        for _ in range(3):
            rig.produce()
            for _ in range(3):
                rig.pass_ms(UPLOAD_MS)
                await rig.settle()
        assert rig.manifest is not None
        assert len(rig.manifest.deleting) > 0
        for _ in range(3):
            rig.pass_ms(GRACE_MS)
            await rig.settle()
        assert rig.statistics.delete_failure is not None
        assert rig.manifest.deleting == ()
        assert len([key for key in rig.data_keys() if key.endswith(".tail")]) == len(
            rig.manifest.tail
        )
