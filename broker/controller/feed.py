"""The metadata log as those see it who follow it: Kafka's partition `__cluster_metadata-0`.

    snapshot            batches, one for each entry
    ...........start ───────┬────────┬───────┬── end
    epoch before│ own epoch

An epoch begins with control records, which say who votes: this controller, and where it is. The
entry of the log that stands for them has as many records that say nothing.

All up to the end is durable, so the end is the high watermark. Whoever is before the start, or
comes from another history, gets the snapshot at the start, and goes on from there. The feed begins
where the controller's epoch does; when it has grown too large, it begins anew at its end.

Followers validate by offset and epoch, as Kafka's do (KIP-595, KIP-630).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.controller.snapshot import batch_of, control_batch
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.broker.protocol.formats.quorum_records import QuorumRecord
from strandline.storage.model import Epoch, Offset, TimestampMs

# Some hundred thousand changes of partitions: a follower that has fallen back further is as quick
# with a snapshot.
FEED_BYTES_MAX: Final = 32 * 1024 * 1024


class OffsetAndEpoch(NamedTuple):
    """A place in the log, and the epoch of the record before it."""

    offset: Offset
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Batches:
    """What follows the place of a follower; nothing at the end."""

    batches: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class NeedsSnapshot:
    """The follower has to take the snapshot that ends there."""

    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Diverged:
    """The follower has to cut its log there: another controller wrote what it has behind."""

    common: OffsetAndEpoch


Read: TypeAlias = Batches | NeedsSnapshot | Diverged


class ServedMetadataLog:
    """The entries since the start, as batches."""

    def __init__(
        self, image: MetadataImage, epoch: Epoch, *, bytes_max: int = FEED_BYTES_MAX
    ) -> None:
        """Begins at the end of `image`, with the entries of `epoch`."""
        self._bytes_max = bytes_max
        self.epoch = epoch
        # The control records that are in force.
        self.quorum: Sequence[QuorumRecord] = ()
        self._restart(image)

    def __repr__(self) -> str:
        return f"<ServedMetadataLog {self.start} to {self.end} of epoch {self.epoch}>"

    def _restart(self, image: MetadataImage) -> None:
        self.start = OffsetAndEpoch(image.next_offset, image.epoch)
        self.end = image.next_offset
        # The image of the snapshot.
        self.image = image
        self._batches: list[tuple[Offset, bytes]] = []
        self._size_bytes = 0

    def begin(self, quorum: Sequence[QuorumRecord], now_ms: TimestampMs) -> None:
        """Begins the epoch with its control records."""
        assert not self._batches, self
        self.quorum = quorum
        self._add(control_batch(quorum, self.end, self.epoch, now_ms), self.end, len(quorum))

    def append(
        self, records: Sequence[MetadataRecord], base_offset: Offset, now_ms: TimestampMs
    ) -> None:
        """Takes in the records of an entry that is durable."""
        batch = batch_of(records, base_offset, self.epoch, now_ms)
        self._add(batch, base_offset, len(records))

    def _add(self, batch: bytes, base_offset: Offset, count: int) -> None:
        self._batches.append((base_offset, batch))
        self._size_bytes += len(batch)
        self.end = base_offset + count

    def settle(self, image: MetadataImage) -> None:
        """Takes in the image after the entries so far.

        One that ends elsewhere has entries that did not pass here: the feed begins behind them.
        """
        if image.next_offset != self.end or self._size_bytes > self._bytes_max:
            self._restart(image)

    def read(self, offset: Offset, epoch: Epoch, bytes_max: int) -> Read:
        """Returns what a follower gets that ends at `offset` with a record of `epoch`.

        At least one batch, if there is one, and as many as `bytes_max` allows.
        """
        if offset < self.start.offset or (offset == 0 and self.start.offset > 0):
            return NeedsSnapshot(self.start)
        if offset == self.start.offset:
            if offset > 0 and epoch != self.start.epoch:
                return NeedsSnapshot(self.start)
        elif epoch < self.epoch:
            return Diverged(self.start)
        elif offset > self.end:
            return Diverged(OffsetAndEpoch(self.end, self.epoch))
        found: list[bytes] = []
        size_bytes = 0
        for _, batch in self._batches[self._position(offset) :]:
            if found and size_bytes + len(batch) > bytes_max:
                break
            found.append(batch)
            size_bytes += len(batch)
        return Batches(found)

    def _position(self, offset: Offset) -> int:
        """Returns the place of the first batch at `offset` or behind it."""
        return bisect_left(self._batches, offset, key=itemgetter(0))
