"""A transactional producer over a rig."""

from __future__ import annotations

from strandline.storage.local.formats.producer_state import (
    MarkerType,
    TransactionMarker,
    encode_marker,
)
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.records.batch.record import Record, encode_batch
from tests.unit.storage.tiering.harness import Rig


class Producer:
    """A transactional producer that writes one record at a time."""

    def __init__(self, rig: Rig, producer_id: int) -> None:
        self._rig = rig
        self._producer_id = producer_id
        self._sequence = 0

    def send(self) -> int:
        """Appends a record; its offset."""
        batch = bytearray(
            encode_batch(
                [Record(offset=0, timestamp_ms=self._rig.clock.now_ms(), key=None, value=b"x")],
                producer_id=self._producer_id,
                producer_epoch=0,
                base_sequence=self._sequence,
                transactional=True,
            )
        )
        self._sequence += 1
        return self._append(batch)

    def end(self, kind: MarkerType) -> int:
        """Appends the marker; its offset."""
        key, value = encode_marker(TransactionMarker(kind, 0))
        batch = bytearray(
            encode_batch(
                [Record(offset=0, timestamp_ms=self._rig.clock.now_ms(), key=key, value=value)],
                producer_id=self._producer_id,
                producer_epoch=0,
                transactional=True,
                control=True,
            )
        )
        return self._append(batch)

    def _append(self, batch: bytearray) -> int:
        appended = self._rig.log.append(
            memoryview(batch), leader_epoch=1, origin=AppendOrigin.COORDINATOR
        )
        return appended.base_offset
