"""An archive of one partition for commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from strandline.storage.remote.manifest.topic_info import save_topic_info
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from tests.support.manual_clock import ManualClock
from tests.unit.storage.tiering.harness import CONFIG, Rig, asynchronous, keys_of

CLOCK = ManualClock(1_700_000_000_000)
UPLOAD_MS = 1000


class Archive:
    """Of one partition, in a folder: two segments, and two pieces of the open one."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalDirectoryStore(folder / "archive", clock=CLOCK)
        self.options = ("--remote", f"file://{folder}/archive")
        config = replace(
            CONFIG,
            strandline_remote_active_segment_upload_ms=UPLOAD_MS,
            local_retention_ms=10**9,
        )

        @asynchronous
        async def fill() -> None:
            async with Rig(folder / "disk", store=self.store, config=config) as rig:
                rig.produce_segments(2)
                await rig.settle()
                rig.produce()
                for _ in range(4):
                    rig.pass_ms(UPLOAD_MS)
                    await rig.settle()
                save_topic_info(self.store, rig.topic_info)
                self.topic = rig.topic_info.topic
                self.manifest_key = rig.manifest_key
                self.named = keys_of(rig.manifest)
                assert rig.manifest is not None
                self.pieces = [part.key for part in rig.manifest.tail]

        fill()
        assert self.pieces

    @property
    def there(self) -> set[str]:
        return {info.key for info in self.store.list("topics/")}
