"""Answers of a fetch for one partition: records, an error, or no change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.broker.cluster.replicas.partition import LeaderRefusal, Partition
from strandline.broker.handlers.fetch.plan import FetchPass, FetchPlan
from strandline.broker.handlers.fetch.sessions import WantedPartition
from strandline.broker.protocol.messages.fetch import (
    FetchAbortedTransaction,
    FetchCurrentLeader,
    FetchDivergingEpoch,
    FetchResponsePartition,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Part
from strandline.storage.files import FileRange
from strandline.storage.model import NO_EPOCH, AbortedTransaction, Isolation, Offset
from strandline.storage.records.batch import any_batch

FIRST_VERSION_WITH_ZSTD = 10
FIRST_VERSION_WITH_LEADERS = 16


def follower_refusal(partition: Partition, leader_epoch: int) -> LeaderRefusal:
    """Returns the refusal of a broker that fetches as follower but is no replica."""
    # One that knows the epoch but not the replicas in it has to refresh its metadata.
    if leader_epoch != NO_EPOCH:
        return partition.refusal(leader_epoch) or LeaderRefusal(ErrorCode.UNKNOWN_LEADER_EPOCH)
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return LeaderRefusal(code, partition.leader_id, partition.leader_epoch)


def is_news(wanted: WantedPartition, answer: FetchResponsePartition) -> bool:
    """Returns whether the client of an incremental session does not know this answer yet."""
    return bool(
        answer.records_bytes
        or answer.error_code
        or wanted.told_error
        or answer.diverging_epoch is not None
        or answer.preferred_read_replica >= 0
        or answer.high_watermark != wanted.told_high_watermark
        or answer.log_start_offset != wanted.told_log_start_offset
    )


def error_answer(
    index: int, error_code: int, partition: Partition | None = None
) -> FetchResponsePartition:
    """Returns an answer without records, with the offsets that the client needs to recover."""
    return FetchResponsePartition(
        index=index,
        error_code=error_code,
        high_watermark=-1 if partition is None else partition.high_watermark,
        last_stable_offset=-1 if partition is None else partition.last_stable_offset,
        log_start_offset=-1 if partition is None else partition.log.log_start_offset,
    )


def denied_answer(index: int) -> FetchResponsePartition:
    """Returns the answer to a client that may not read: nothing of the partition, or whether it is
    there.
    """
    return error_answer(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def refused_answer(
    index: int, refusal: LeaderRefusal, version: int, partition: Partition | None = None
) -> FetchResponsePartition:
    """Returns the answer to a refused fetch, with the current leader for clients that know it."""
    code, leader_id, leader_epoch = refusal
    answer = error_answer(index, code, partition)
    if leader_id < 0 or version < FIRST_VERSION_WITH_LEADERS:
        return answer
    leader = FetchCurrentLeader(leader_id=leader_id, leader_epoch=leader_epoch)
    return answer.replaced(current_leader=leader)


def diverging_answer(
    partition: Partition, index: int, fetch_offset: Offset, last_fetched_epoch: int
) -> FetchResponsePartition | None:
    """Returns the answer with the offset where the fetcher's log diverges from ours (KIP-595).

    Raises OffsetOutOfRange if it has read records that do not exist, or were deleted.
    """
    end = partition.epoch_end(last_fetched_epoch)
    if end.epoch < 0 or fetch_offset < partition.log.log_start_offset:
        raise partition.log.out_of_range(fetch_offset)
    if end.epoch < last_fetched_epoch or end.start_offset < fetch_offset:
        return FetchResponsePartition(
            index=index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            diverging_epoch=FetchDivergingEpoch(epoch=end.epoch, end_offset=end.start_offset),
        )
    return None


def records_answer(
    index: int,
    partition: Partition,
    records: Sequence[Part],
    records_bytes: int,
    isolation: Isolation,
) -> FetchResponsePartition:
    """Returns an answer with records, in parts that are sent without copying."""
    return FetchResponsePartition(
        index=index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        aborted_transactions=() if isolation is Isolation.READ_COMMITTED else None,
        records=records,
        records_bytes=records_bytes,
    )


def answer_without_read(
    plan: FetchPlan, wanted: WantedPartition, partition: Partition, found: FetchPass
) -> FetchResponsePartition | None:
    """Returns the answer for a partition whose high watermark is reached, or whose records no
    longer fit the answer; None if it must be read.

    Of a thousand partitions in a fetch most are like that, and the client waits for all of them.
    """
    unified_log = partition.log
    local = unified_log.local
    offset, high_watermark = wanted.fetch_offset, local.high_watermark
    log_start_offset = unified_log.log_start_offset
    if offset != high_watermark and (
        not (found.is_full and found.total_bytes)
        or offset > high_watermark
        or offset < local.start_offset
    ):
        return None
    epoch = wanted.current_leader_epoch
    if (
        offset < log_start_offset
        or (epoch != partition.leader_epoch and epoch != NO_EPOCH)  # noqa: PLR1714  # half the time
        or wanted.last_fetched_epoch >= 0
        or plan.header.api_version < FIRST_VERSION_WITH_ZSTD
        or local.failure is not None
        or unified_log.has_unknown_extent
    ):
        return None
    partition.traffic.fetch_requests += 1
    stable_offset = local.last_stable_offset
    is_committed = plan.isolation is Isolation.READ_COMMITTED
    if offset < (stable_offset if is_committed else high_watermark):
        found.must_answer = True
    # Answers are never modified, and creating one takes as long as all of the above.
    said = partition.last_empty_answer
    if (
        said is None
        or said.high_watermark != high_watermark
        or said.last_stable_offset != stable_offset
        or said.log_start_offset != log_start_offset
        or (said.aborted_transactions is None) is is_committed
    ):
        said = partition.last_empty_answer = FetchResponsePartition(
            index=partition.topic_partition.partition,
            high_watermark=high_watermark,
            last_stable_offset=stable_offset,
            log_start_offset=log_start_offset,
            aborted_transactions=() if is_committed else None,
        )
    return said


def converted_answer(
    convert: Callable[[bytes], bytes], answer: FetchResponsePartition
) -> FetchResponsePartition:
    """Converts the batches of an answer for an old client. Blocks; see down_conversion.py."""
    converted = convert(_content(answer))
    return answer.replaced(records=(converted,), records_bytes=len(converted))


def end_of(answer: FetchResponsePartition) -> Offset:
    """The offset behind the last batch of an answer; 0 without one. Blocks."""
    end_offset = 0
    for batch in any_batch.walk(_content(answer)):
        end_offset = batch.header.next_offset
    return end_offset


def _content(answer: FetchResponsePartition) -> bytes:
    return b"".join(
        part.read() if isinstance(part, FileRange) else bytes(part)  # type: ignore[arg-type]
        for part in answer.records
    )


def with_aborted(
    answer: FetchResponsePartition, aborted: Sequence[AbortedTransaction]
) -> FetchResponsePartition:
    """Adds the aborted transactions, which a read_committed consumer filters out."""
    return answer.replaced(
        aborted_transactions=[
            FetchAbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset)
            for a in aborted
        ]
    )
