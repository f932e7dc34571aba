"""From the bytes of a cluster's metadata log to images: pure, and the same for every broker.

    fetched    │ batch │ batch │ batch │ batch │        applied, one delta for each answer
               └───────────────┘       ┊       ┊
               up to the high watermark ◄──────┘ not committed yet: waits, and may be cut

What is fetched may be ahead of the high watermark: another leader may have other records there.
Records between BeginTransactionRecord and EndTransactionRecord count together, or not at all
(KIP-868). Control batches are of the quorum, and only count.

A record of a type or version that this release does not know is refused by its name: every image
after it would be wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from strandline.broker.cluster.membership.foreign_features import check_features
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.protocol.formats.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    RegisterControllerRecord,
    RemoveDelegationTokenRecord,
    UnfenceBrokerRecord,
    UnregisterControllerRecord,
    ZkMigrationStateRecord,
    decode_record,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import Buffer, Epoch, Offset
from strandline.storage.records.batch.any_batch import check_crc, walk
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import iter_records

NO_EPOCH: Final = -1
# Beyond this much that is not committed, a quorum without a majority fills the memory.
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024

# An image has no place for them, and this broker does nothing by them: controllers among
# themselves, and delegation tokens, by which nobody can log in here.
_WITHOUT_EFFECT: Final = (
    DelegationTokenRecord,
    NoOpRecord,
    RegisterControllerRecord,
    RemoveDelegationTokenRecord,
    UnregisterControllerRecord,
    ZkMigrationStateRecord,
)
# Kinds of resources whose properties an image has.
_RESOURCES: Final = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.GROUP,
)


@dataclass(frozen=True, slots=True)
class Applied:
    """What became committed: the image after it, and what it changed."""

    delta: MetadataDelta
    image: MetadataImage


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch that is not committed as far as this broker knows."""

    header: BatchHeader
    content: Buffer


class MetadataReplay:
    """Where this broker is in the log, and the image there."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self.image = MetadataImage()
        # Where the next fetch begins, and the epoch of the record before it.
        self.next_offset: Offset = 0
        self.last_epoch: Epoch = 0
        # That of the last record whose change is in the image; -1 before the first one.
        self.applied_offset: Offset = -1
        # The end of what was committed, a transaction that has not ended with it, and its epoch.
        self._committed_end: Offset = 0
        self._committed_epoch: Epoch = 0
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        # The records of a metadata transaction that has not ended; None outside of one.
        self._transaction: list[MetadataRecord] | None = None

    def __repr__(self) -> str:
        return (
            f"<MetadataReplay applied={self.applied_offset} next={self.next_offset} {self.image!r}>"
        )

    def take(self, fetched: Buffer, high_watermark: Offset) -> Applied | None:
        """Takes over batches that follow those before, and applies what is committed.

        Returns None if that changes nothing. Raises UnsupportedFormat, CorruptRecords, CorruptFile.
        """
        data = memoryview(fetched)
        for batch in walk(fetched):
            content = data[batch.position : batch.end_position]
            check_crc(content, batch.header)
            if batch.header.last_offset < self.next_offset:
                # A fetch begins with the whole batch that has its offset.
                continue
            self._pending.append(_Pending(batch.header, content))
            self._pending_bytes += len(content)
            self.next_offset = batch.header.next_offset
            self.last_epoch = batch.header.leader_epoch
        applied = self._commit(high_watermark)
        if self._pending_bytes > PENDING_BYTES_MAX:
            self.cut(self._committed_end, self._committed_epoch)
        return applied

    def cut(self, end_offset: Offset, epoch: Epoch) -> None:
        """Forgets what the leader has otherwise: all that its log up to `epoch` does not have.

        Raises CorruptFile if that was committed.
        """
        if end_offset < self._committed_end:
            raise CorruptFile(
                f"the controllers have other metadata than they had: their log of epoch {epoch}"
                f" ends at offset {end_offset}, and this broker applied {self._committed_end - 1}"
            )
        while self._pending and (
            self._pending[-1].header.next_offset > end_offset
            or self._pending[-1].header.leader_epoch > epoch
        ):
            self._pending_bytes -= len(self._pending.pop().content)
        if self._pending:
            last = self._pending[-1].header
            self.next_offset, self.last_epoch = last.next_offset, last.leader_epoch
        else:
            self.next_offset, self.last_epoch = self._committed_end, self._committed_epoch

    def restart(self, snapshot: Buffer, end_offset: Offset, epoch: Epoch) -> Applied:
        """Begins again with a snapshot, which has all before `end_offset`.

        Raises UnsupportedFormat, CorruptRecords, CorruptFile.
        """
        before = self.image
        found = MetadataDelta(MetadataImage())
        data = memoryview(snapshot)
        for batch in walk(snapshot):
            content = data[batch.position : batch.end_position]
            check_crc(content, batch.header)
            _apply(found, _records_of(_Pending(batch.header, content)))
        self._end_delta(found, end_offset, epoch)
        self.image = found.image()
        self.next_offset, self.last_epoch = end_offset, epoch
        self.applied_offset = end_offset - 1
        self._committed_end, self._committed_epoch = end_offset, epoch
        self._pending.clear()
        self._pending_bytes, self._transaction = 0, None
        return Applied(MetadataDelta(before, self.image), self.image)

    def _commit(self, high_watermark: Offset) -> Applied | None:
        """Applies what is committed. All of it stays as it was if one record cannot be applied."""
        ready = list(takewhile(lambda one: one.header.next_offset <= high_watermark, self._pending))
        if not ready:
            return None
        delta, transaction = MetadataDelta(self.image), self._transaction
        open_records = None if transaction is None else list(transaction)
        applied_offset, has_effect = self.applied_offset, False
        try:
            for batch in ready:
                has_effect |= _apply(delta, self._whole_transactions(_records_of(batch)))
                if self._transaction is None:
                    applied_offset = batch.header.last_offset
            if has_effect:
                self._end_delta(delta, applied_offset + 1, ready[-1].header.leader_epoch)
                self.image = delta.image()
        except BaseException:
            self._transaction = open_records
            raise
        for batch in ready:
            self._pending.popleft()
            self._pending_bytes -= len(batch.content)
        self.applied_offset = applied_offset
        last = ready[-1].header
        self._committed_end, self._committed_epoch = last.next_offset, last.leader_epoch
        return Applied(delta, self.image) if has_effect else None

    def _end_delta(self, delta: MetadataDelta, next_offset: Offset, epoch: Epoch) -> None:
        check_features(delta.feature_levels.after)
        # Kafka's log counts records: no other version of an image has the same number.
        delta.version = delta.next_offset = next_offset
        delta.cluster_id, delta.epoch = self._cluster_id, epoch

    def _whole_transactions(self, records: Iterable[MetadataRecord]) -> Iterator[MetadataRecord]:
        """Yields the records that count, those of a transaction when it ends."""
        for record in records:
            match record:
                case BeginTransactionRecord():
                    self._transaction = []
                case EndTransactionRecord():
                    yield from self._transaction or ()
                    self._transaction = None
                case AbortTransactionRecord():
                    self._transaction = None
                case _ if self._transaction is not None:
                    self._transaction.append(record)
                case _:
                    yield record


def _records_of(batch: _Pending) -> Iterator[MetadataRecord]:
    if batch.header.is_control:
        return
    for record in iter_records(batch.content, batch.header):
        try:
            yield decode_record(record.value or b"")
        except MalformedRequest as error:
            raise UnsupportedFormat(
                f"offset {record.offset} of the metadata log: {error}. A later Kafka wrote it: its"
                " metadata.version is too new for this release"
            ) from error


def _apply(delta: MetadataDelta, records: Iterable[MetadataRecord]) -> bool:
    """Applies records to a delta; returns whether any of them has an effect."""
    translated = [one for one in map(_translated, records) if one is not None]
    delta.apply(translated)
    return bool(translated)


def _translated(record: MetadataRecord) -> MetadataRecord | None:
    """Returns the record as an image applies it; None for one without effect here."""
    if isinstance(record, _WITHOUT_EFFECT):
        return None
    if isinstance(record, ConfigRecord) and record.resource_type not in _RESOURCES:
        return None
    if isinstance(record, FenceBrokerRecord | UnfenceBrokerRecord):
        return BrokerRegistrationChangeRecord(
            broker_id=record.id,
            broker_epoch=record.epoch,
            fenced=1 if isinstance(record, FenceBrokerRecord) else -1,
        )
    return record
