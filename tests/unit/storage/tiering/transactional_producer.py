"""A transactional producer over a rig."""

from __future__ import annotations

from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.records.batch.marker import (
    MarkerType,
    TransactionMarker,
    encode_marker_batch,
)
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
        batch = encode_marker_batch(
            TransactionMarker(kind, 0),
            producer_id=self._producer_id,
            producer_epoch=0,
            now_ms=self._rig.clock.now_ms(),
        )
        return self._append(bytearray(batch))

    def _append(self, batch: bytearray) -> int:
        return self._rig.append(batch, origin=AppendOrigin.COORDINATOR).base_offset
