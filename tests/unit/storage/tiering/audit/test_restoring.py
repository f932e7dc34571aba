"""Damage that stops a restore before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.errors import CorruptFile
from strandline.storage.tiering.audit.restoring import read_partition
from tests.unit.storage.tiering.audit.in_pieces import CONFIGURED, damage, in_pieces
from tests.unit.storage.tiering.harness import ID_PARTITION, Rig, asynchronous


@pytest.mark.parametrize("how", ["missing", "spoiled"])
@asynchronous
async def test_a_lost_piece_stops_a_restore_before_anything_is_written(
    tmp_path: Path, how: str
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        _, last = await in_pieces(rig)
        assert read_partition(rig.store, ID_PARTITION).end_offset == 80
        damage(rig, last, how)
        with pytest.raises(CorruptFile, match=f"{last}: .*: records from 70 to 79 "):
            read_partition(rig.store, ID_PARTITION)
