"""Lost pieces of the open segment: nothing overwrites them, and an operator can drop them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.storage.errors import TierUnavailable
from strandline.storage.tiering.audit.findings import Damage
from strandline.storage.tiering.audit.repair import drop_pieces
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.audit.in_pieces import CONFIGURED, UPLOAD_MS, damage, in_pieces
from tests.unit.storage.tiering.harness import GRACE_MS, ID_PARTITION, Rig, asynchronous


@pytest.mark.parametrize("how", ["missing", "spoiled"])
@pytest.mark.parametrize("number", [0, 1])
@asynchronous
async def test_without_disk_and_piece_nobody_writes_until_the_piece_is_given_up(
    tmp_path: Path, how: str, number: int
) -> None:
    """Its offsets would be given to others, and an operator may still bring it back."""
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        keys = await in_pieces(rig)
        damage(rig, keys[number], how)
        await rig.lose_disk()
        with pytest.raises(TierUnavailable):
            rig.produce()
        assert rig.statistics.copy_failure is not None
        assert await read_archived(rig) == rig.sent[0]
        assert drop_pieces(rig.store, ID_PARTITION, damaged_key=keys[number], clock=rig.clock)
        assert not drop_pieces(rig.store, ID_PARTITION, damaged_key=keys[number], clock=rig.clock)
        rig.pass_ms(UPLOAD_MS)
        await rig.manager.run_once()
        del rig.sent[1 + number :]
        rig.produce()
        await rig.assert_everything_is_readable()
        # What was dropped goes like all that is let go, and what is left goes on.
        rig.roll()
        await rig.settle()
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        assert [key for key in rig.data_keys() if key.endswith(".tail")] == []
        await rig.assert_everything_is_readable()
        await rig.lose_disk()
        await rig.assert_everything_is_readable()


async def read_archived(rig: Rig) -> bytes:
    cold = await rig.log.read_remote(0, bytes_max=1 << 20)
    return b"".join(bytes(part) for part in cold.buffers)  # type: ignore[arg-type]  # no files


@asynchronous
async def test_a_broker_that_has_what_was_dropped_puts_it_into_the_bucket_again(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        first, _ = await in_pieces(rig)
        damage(rig, first, "missing")
        assert drop_pieces(rig.store, ID_PARTITION, damaged_key=first, clock=rig.clock)
        assert rig.manifest is not None
        assert rig.manifest.tail == ()
        rig.produce()
        for _ in range(4):
            rig.pass_ms(UPLOAD_MS)
            await rig.manager.run_once()
        assert rig.manifest.tail_end_offset == rig.log.end_offset
        await rig.lose_disk()
        await rig.assert_everything_is_readable()


@asynchronous
async def test_what_only_reading_finds_of_a_piece_a_deep_look_finds(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        _, last = await in_pieces(rig)
        # The store believes that it has what it was given.
        rig.memory.add_fault(Fault(operation="get", key_pattern=last, flip_bit_at=9, times=-1))
        with ThreadPoolExecutor(4) as executor:
            whole = Scrub(rig.store, executor, depth=Depth.CHECKSUMS).check(ID_PARTITION)
            assert whole.findings == ()
            report = Scrub(rig.store, executor, depth=Depth.EVERYTHING).check(ID_PARTITION)
        assert [(f.damage, f.key) for f in report.findings] == [(Damage.TAIL, last)]
