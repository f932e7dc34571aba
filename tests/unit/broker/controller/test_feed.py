"""What followers of the metadata log get: batches behind their place, or a snapshot."""

from __future__ import annotations

from itertools import pairwise

import pytest

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.controller.feed import (
    Batches,
    Diverged,
    NeedsSnapshot,
    OffsetAndEpoch,
    ServedMetadataLog,
)
from strandline.broker.controller.snapshot import encode_snapshot
from strandline.broker.protocol.formats.metadata_records import (
    MetadataRecord,
    NoOpRecord,
    decode_record,
)
from strandline.broker.protocol.formats.quorum_records import KRaftVersionRecord, VotersRecord
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import iter_records
from tests.unit.broker.controller.cluster_of_brokers import broker, cluster

QUORUM = [KRaftVersionRecord(k_raft_version=1), VotersRecord(voters=[])]
NOW_MS = 1_700_000_000_000
EVERYTHING = 2**31 - 1


class World:
    """A controller of epoch 5 that began behind an image of epoch 3."""

    def __init__(self, *, bytes_max: int = EVERYTHING) -> None:
        delta = MetadataDelta(cluster(broker(1), broker(2), partitions=[(1, 2)]))
        delta.epoch = 3
        self.before = delta.image()
        self.image = self.before
        self.feed = ServedMetadataLog(self.before, 5, bytes_max=bytes_max)
        self.start = self.before.next_offset
        self.feed.begin(QUORUM, NOW_MS)
        delta = MetadataDelta(self.image)
        delta.epoch = 5
        delta.replay([NoOpRecord()] * len(QUORUM))
        self.image = delta.image()
        self.feed.settle(self.image)

    def append(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self.image)
        delta.epoch = 5
        delta.replay(records)
        self.feed.append(records, self.image.next_offset, NOW_MS)
        self.image = delta.image()
        self.feed.settle(self.image)

    def offsets(self, offset: int, epoch: int, bytes_max: int = EVERYTHING) -> list[int]:
        """The offsets of the batches that a follower gets."""
        read = self.feed.read(offset, epoch, bytes_max)
        assert isinstance(read, Batches), read
        headers = [batch.header for encoded in read.batches for batch in walk(encoded)]
        assert all(header.leader_epoch == 5 for header in headers)
        return [header.base_offset for header in headers]


def test_a_follower_at_the_start_gets_all_entries_as_batches_of_this_epoch() -> None:
    world = World()
    world.append(broker(3), broker(4))
    world.append(NoOpRecord())
    assert world.offsets(world.start, 3) == [world.start, world.start + 2, world.start + 4]
    assert world.offsets(world.start + 2, 5) == [world.start + 2, world.start + 4]
    assert world.offsets(world.start + 4, 5) == [world.start + 4]
    assert world.feed.end == world.start + 5 == world.image.next_offset


def test_a_follower_at_the_end_gets_nothing() -> None:
    world = World()
    assert world.offsets(world.feed.end, 5) == []


def test_the_records_of_the_batches_make_the_image() -> None:
    world = World()
    world.append(broker(3), broker(4))
    read = world.feed.read(world.start, 3, EVERYTHING)
    assert isinstance(read, Batches)
    delta = MetadataDelta(world.before)
    for encoded in read.batches:
        for batch in walk(encoded, verify_crc=True):
            if batch.header.is_control:
                continue
            delta.replay(
                decode_record(record.value or b"") for record in iter_records(encoded, batch.header)
            )
    assert delta.image().brokers == world.image.brokers


def test_a_limit_of_bytes_cuts_behind_a_batch_and_never_before_the_first() -> None:
    world = World()
    for _ in range(3):
        world.append(NoOpRecord())
    at = world.start + 2
    first = world.feed.read(at, 5, 1)
    assert isinstance(first, Batches)
    size_bytes = len(first.batches[0])
    assert len(world.offsets(at, 5, 1)) == 1
    assert len(world.offsets(at, 5, 2 * size_bytes)) == 2
    assert len(world.offsets(at, 5, 3 * size_bytes - 1)) == 2


@pytest.mark.parametrize(("back", "epoch"), [(1, 3), (5, 0), (0, 2), (0, 4)])
def test_a_follower_before_the_start_or_of_another_history_gets_the_snapshot(
    back: int, epoch: int
) -> None:
    world = World()
    expected = NeedsSnapshot(OffsetAndEpoch(world.start, 3))
    assert world.feed.read(world.start - back, epoch, EVERYTHING) == expected


def test_an_empty_follower_gets_the_snapshot() -> None:
    world = World()
    assert world.feed.read(0, 0, EVERYTHING) == NeedsSnapshot(OffsetAndEpoch(world.start, 3))


def test_a_follower_with_entries_of_an_earlier_controller_cuts_them() -> None:
    world = World()
    world.append(NoOpRecord())
    assert world.feed.read(world.start + 1, 3, EVERYTHING) == Diverged(
        OffsetAndEpoch(world.start, 3)
    )


def test_a_follower_that_is_ahead_cuts_what_nobody_else_has() -> None:
    world = World()
    assert world.feed.read(world.feed.end + 1, 5, EVERYTHING) == Diverged(
        OffsetAndEpoch(world.feed.end, 5)
    )


def test_a_feed_that_grew_too_large_begins_at_its_end_and_followers_there_go_on() -> None:
    world = World(bytes_max=400)
    while world.feed.start.offset == world.start:
        world.append(NoOpRecord())
    assert world.feed.start == OffsetAndEpoch(world.image.next_offset, 5)
    assert world.feed.image is world.image
    assert isinstance(world.feed.read(world.start, 3, EVERYTHING), NeedsSnapshot)
    end = world.feed.end
    world.append(NoOpRecord())
    assert world.offsets(end, 5) == [end]


def test_entries_that_did_not_pass_here_are_in_a_snapshot() -> None:
    world = World()
    end = world.feed.end
    delta = MetadataDelta(world.image)
    delta.replay([broker(7)])
    image = delta.image()
    world.feed.settle(image)
    assert world.feed.read(end, 5, EVERYTHING) == NeedsSnapshot(OffsetAndEpoch(end + 1, 5))
    assert 7 in world.feed.image.brokers


# --- snapshots -----------------------------------------------------------------------------------


def records_of(snapshot: bytes) -> list[MetadataRecord]:
    return [
        decode_record(record.value or b"")
        for batch in walk(snapshot, verify_crc=True)
        if not batch.header.is_control
        for record in iter_records(snapshot, batch.header, batch.position)
    ]


def test_a_snapshot_has_the_image_between_a_header_and_a_footer() -> None:
    image = World().before
    snapshot = encode_snapshot(image, QUORUM, NOW_MS)
    batches = list(walk(snapshot, verify_crc=True))
    assert [batch.header.is_control for batch in batches] == [True, True, False, True]
    assert {batch.header.leader_epoch for batch in batches} == {3}
    keys = []
    for batch in (batches[0], batches[-1]):
        (record,) = iter_records(snapshot, batch.header, batch.position)
        keys.append(record.key)
    assert keys == [b"\x00\x00\x00\x03", b"\x00\x00\x00\x04"]
    restored = MetadataImage().apply_entry(records_of(snapshot))
    assert restored.brokers == image.brokers
    assert restored.topics == image.topics
    assert restored.feature_levels == image.feature_levels


def test_offsets_of_a_large_snapshot_go_on_from_batch_to_batch() -> None:
    image = cluster(broker(1), partitions=[(1,)] * 2500)
    snapshot = encode_snapshot(image, QUORUM, NOW_MS)
    headers = [batch.header for batch in walk(snapshot)]
    assert len(headers) == 6
    for before, after in pairwise(headers):
        assert after.base_offset == before.base_offset + before.record_count
