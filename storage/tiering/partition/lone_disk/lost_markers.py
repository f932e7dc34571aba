"""Markers that a disk has lost, of transactions that began in archived segments.

    archive   [ batch of T .... ]                the segment's `.meta` has the outcome of T
    disk                         [ ....... ]     without the marker of T

A segment is copied when its transactions are decided, but their markers may be in later segments.
Whoever ends such a transaction ends it as readers of the archive have seen it.
"""

from __future__ import annotations

from strandline.storage.errors import ObjectCorrupt, ObjectNotFound
from strandline.storage.local.formats.producer_state import ProducerEntry
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.model import Epoch, Offset
from strandline.storage.records.batch.marker import (
    MarkerType,
    TransactionMarker,
    encode_marker_batch,
)
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import ManifestPages
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.segment.index_loading import load_txn_index


def is_committed(
    store: ObjectStore, manifest: Manifest, producer_id: int, first_offset: Offset
) -> bool | None:
    """Whether a transaction was committed that began in an archived segment, None if in none.

    Also None if the objects that tell it are damaged. Blocks. Raises as the store does.
    """
    try:
        entry = ManifestPages(store, pages_max=1).find(manifest, first_offset)
        if entry is None:
            return None
        aborted = load_txn_index(store, entry)
    except (ObjectCorrupt, ObjectNotFound):
        return None
    return (producer_id, first_offset) not in {
        (one.producer_id, one.first_offset) for one in aborted
    }


def end_open_transaction(
    local: LocalLog, opened: ProducerEntry, end: MarkerType, *, leader_epoch: Epoch
) -> None:
    """Appends the marker, in a log without other replicas. Raises DiskError."""
    batch = encode_marker_batch(
        TransactionMarker(end, max(opened.coordinator_epoch, 0)),
        producer_id=opened.producer_id,
        producer_epoch=opened.epoch,
        now_ms=local.clock.now_ms(),
    )
    local.append(
        memoryview(bytearray(batch)), leader_epoch=leader_epoch, origin=AppendOrigin.COORDINATOR
    )
    local.advance_high_watermark(local.end_offset)
