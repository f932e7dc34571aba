"""What an answer of the leader does to a log: Kafka's AbstractFetcherThreadTest, one answer each.

Epoch 1 wrote [0, 5), epoch 3 [5, 8), epoch 4 [8, 10); the high watermark is 6, epoch 6 leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.protocol.messages.fetch import FetchDivergingEpoch, FetchResponsePartition
from strandline.broker.replication.followed import Followed
from strandline.storage.errors import CorruptRecords, DiskError, InvalidRecords
from tests.unit.broker.cluster.served import leading
from tests.unit.storage.local.builders import batch, open_log

LEADER_EPOCH = 6
HIGH_WATERMARK = 6


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    with leading(open_log(tmp_path / "t"), epoch=LEADER_EPOCH) as made:
        made.end_leading(2, LEADER_EPOCH)
        local = made.log.local
        for count, epoch in ((5, 1), (3, 3), (2, 4)):
            local.append(batch(count), leader_epoch=epoch)
        local.advance_high_watermark(HIGH_WATERMARK)
        yield made


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    made = Source(tmp_path)
    yield made
    made.log.close()


class Source:
    """Another log, whose batches are what a leader answers."""

    def __init__(self, path: Path) -> None:
        self.log = open_log(path / "source", log_start_offset=10)

    def records(self, *counts_and_epochs: tuple[int, int]) -> bytearray:
        before = self.log.active_segment.size_bytes
        for count, epoch in counts_and_epochs:
            self.log.append(batch(count), leader_epoch=epoch)
        return bytearray(self.log.active_segment.log_path.read_bytes()[before:])


def answer(
    *,
    records: bytes | bytearray = b"",
    high_watermark: int = HIGH_WATERMARK,
    log_start: int = 0,
    diverging: tuple[int, int] | None = None,
) -> FetchResponsePartition:
    found = None
    if diverging is not None:
        found = FetchDivergingEpoch(epoch=diverging[0], end_offset=diverging[1])
    return FetchResponsePartition(
        index=0,
        high_watermark=high_watermark,
        log_start_offset=log_start,
        diverging_epoch=found,
        records=(memoryview(records),) if records else (),
        records_bytes=len(records),
    )


def cut(followed: Followed, leaders: tuple[int, int]) -> None:
    end = followed.agreed_end(answer(diverging=leaders))
    assert end is not None
    followed.truncate(end)


def test_a_follower_goes_on_from_its_end_with_the_epoch_of_its_last_record(
    partition: Partition,
) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    assert (followed.offset, followed.last_epoch) == (10, 4)


def test_a_log_without_epochs_is_cut_to_its_high_watermark_first(partition: Partition) -> None:
    partition.log.local.leader_epochs.replace(())
    followed = Followed(partition, LEADER_EPOCH)
    # Whole batches alone can be kept.
    assert followed.offset == partition.log.end_offset == 5
    assert followed.last_epoch == -1


def test_records_are_appended_with_their_offsets_and_epochs(
    partition: Partition, source: Source
) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    records = source.records((3, 4), (2, 6))
    assert followed.take(answer(records=records, high_watermark=12))
    assert (followed.offset, followed.last_epoch) == (15, 6)
    assert partition.high_watermark == 12
    assert [tuple(one) for one in partition.log.local.leader_epochs.starts] == [
        (1, 0),
        (3, 5),
        (4, 8),
        (6, 13),
    ]
    assert partition.log.local.active_segment.log_path.read_bytes().endswith(bytes(records))


def test_the_high_watermark_is_at_most_the_end_and_never_goes_back(partition: Partition) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    followed.take(answer(high_watermark=99))
    assert partition.high_watermark == 10
    followed.take(answer(high_watermark=7))
    assert partition.high_watermark == 10


def test_the_log_start_is_the_leaders_up_to_the_high_watermark(partition: Partition) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    assert followed.take(answer(log_start=4))
    assert partition.log.log_start_offset == 4
    followed.take(answer(log_start=9))
    assert partition.log.log_start_offset == HIGH_WATERMARK


def test_batches_of_a_later_epoch_than_was_asked_under_are_left_out(
    partition: Partition, source: Source
) -> None:
    """KAFKA-18723: they may be of a log that was truncated since."""
    followed = Followed(partition, LEADER_EPOCH)
    assert followed.take(answer(records=source.records((3, 6), (2, 7))))
    assert followed.offset == 13
    assert not followed.take(answer(records=source.records((1, 8))))
    assert partition.log.end_offset == 13


def test_a_batch_that_the_answer_cuts_is_asked_for_again(
    partition: Partition, source: Source
) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    records = source.records((3, 6), (2, 6))
    followed.take(answer(records=records[:-1]))
    assert followed.offset == 13


def test_damaged_records_are_refused_and_nothing_of_the_answer_is_appended(
    partition: Partition, source: Source
) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    records = source.records((3, 6), (2, 6))
    records[-1] ^= 1
    with pytest.raises(CorruptRecords):
        followed.take(answer(records=records))
    assert partition.log.end_offset == 10


def test_records_that_do_not_follow_the_end_are_refused(
    partition: Partition, source: Source
) -> None:
    records = source.records((3, 6))
    followed = Followed(partition, LEADER_EPOCH)
    followed.take(answer(records=records))
    with pytest.raises(InvalidRecords):
        followed.take(answer(records=records))


@pytest.mark.parametrize(
    ("leaders", "end"),
    [
        # The same epoch, which ended earlier at the leader, within a batch.
        ((4, 9), 8),
        # The same epoch, which ended later there.
        ((3, 8), 8),
        ((3, 20), 8),
        # An epoch that this log lacks: that before it, as far as it goes here.
        ((2, 7), 5),
        # Earlier than all of this log.
        ((0, 0), 0),
        # The leader knows none: where it ends.
        ((-1, 5), 5),
        ((-1, 50), 10),
    ],
)
def test_a_diverging_log_is_cut_where_both_may_agree(
    partition: Partition, leaders: tuple[int, int], end: int
) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    cut(followed, leaders)
    assert followed.offset == partition.log.end_offset == end
    assert followed.last_epoch == partition.log.local.leader_epochs.latest_epoch
    assert partition.high_watermark == min(HIGH_WATERMARK, end)


def test_a_log_that_is_longer_than_its_leaders_is_cut_to_that(partition: Partition) -> None:
    """After an unclean election."""
    followed = Followed(partition, LEADER_EPOCH)
    followed.truncate(8)
    assert followed.offset == partition.log.end_offset == 8


def test_a_log_that_diverged_where_it_is_archived_still_begins_where_the_archive_does(
    partition: Partition,
) -> None:
    """Else it would move the log start of the archive when it leads."""
    local = partition.log.local
    local.roll()
    local.delete_segments(local.segments[:1])
    followed = Followed(partition, LEADER_EPOCH)
    cut(followed, (1, 3))
    assert (followed.offset, local.start_offset, partition.log.log_start_offset) == (3, 3, 0)


def test_a_log_that_ends_before_its_leaders_begins_starts_over_there(
    partition: Partition,
) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    followed.begin_at(40)
    assert followed.offset == partition.log.end_offset == 40
    assert partition.log.log_start_offset == partition.high_watermark == 40
    assert followed.last_epoch == -1


def test_a_log_within_its_leaders_stays(partition: Partition) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    followed.begin_at(3)
    assert followed.offset == 10


def test_a_log_that_was_opened_again_goes_on_from_its_files(
    partition: Partition, source: Source
) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    partition.log.local.truncate_to(8)
    assert followed.take(answer(records=source.records((3, 6))))
    assert followed.offset == partition.log.end_offset == 8


def test_the_error_of_a_log_that_has_failed_is_passed_on(
    partition: Partition, source: Source
) -> None:
    followed = Followed(partition, LEADER_EPOCH)
    partition.log.local.stop(DiskError("gone"))
    with pytest.raises(DiskError):
        followed.take(answer(records=source.records((3, 6))))
