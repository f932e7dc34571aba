"""An archive that ends with pieces of the open segment, and damage to one."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.storage.tiering.harness import CONFIG, Rig

UPLOAD_MS = 10_000
CONFIGURED = replace(CONFIG, strandline_remote_active_segment_upload_ms=UPLOAD_MS)


async def in_pieces(rig: Rig) -> list[str]:
    """A segment, and an open one in two pieces: their keys."""
    rig.produce_segments(1)
    for record_count in (60, 10):
        rig.produce(record_count)
        for _ in range(4):
            rig.pass_ms(UPLOAD_MS // 2)
            await rig.manager.run_once()
    assert rig.manifest is not None
    assert [(p.base_offset, p.end_offset) for p in rig.manifest.tail] == [(10, 70), (70, 80)]
    return [part.key for part in rig.manifest.tail]


def damage(rig: Rig, key: str, how: str) -> None:
    content = bytearray(rig.store.get(key))
    rig.store.delete([key])
    if how == "spoiled":
        content[-1] ^= 1
        rig.store.put(key, content)
