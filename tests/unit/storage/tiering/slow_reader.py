"""A slow consumer of a compacted log."""

from __future__ import annotations

from collections.abc import Callable

from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import iter_records
from tests.unit.storage.tiering.harness import Rig, living

DELETE_RETENTION_MS = 1000


class SlowReader:
    """A consumer that reads a batch now and then; its table must be the true one when it arrives.

    Unless it takes longer than delete.retention.ms: then it may have missed a tombstone.
    """

    def __init__(self, rig: Rig, *, is_data: Callable[[int], bool] = lambda _offset: True) -> None:
        """`is_data` says whether the consumer gets the record at an offset."""
        self._rig = rig
        self._is_data = is_data
        self._start()

    def _start(self) -> None:
        self.offset = self._rig.log.log_start_offset
        self.table: dict[bytes, bytes | None] = {}
        self._started_ms = self._rig.clock.now_ms()

    async def read(self) -> None:
        if self._rig.clock.now_ms() - self._started_ms >= DELETE_RETENTION_MS:
            self._start()
        content, _ = await self._rig.read(self.offset, bytes_max=1)
        for batch in walk(content):
            self.offset = batch.header.next_offset
            for record in iter_records(content, batch.header, batch.position):
                if self._is_data(record.offset):
                    assert record.key is not None
                    self.table[bytes(record.key)] = record.value and bytes(record.value)
        if self.offset == self._rig.log.end_offset:
            assert living(self.table) == living(self._rig.latest)
            self._start()
