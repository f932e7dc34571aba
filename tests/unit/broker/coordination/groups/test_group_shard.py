"""Groups and offsets of one partition: what is written, and what is seen before and after."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest

from strandline.broker.cluster.metadata.image import TopicImage
from strandline.broker.coordination.groups.group_shard import GroupShard
from strandline.broker.coordination.model.classic_messages import (
    GroupRules,
    Instant,
    JoinAnswer,
    LeavingMember,
)
from strandline.broker.coordination.model.offset_messages import (
    CommitRequest,
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    OffsetToCommit,
    OffsetToDelete,
)
from strandline.broker.coordination.records.offset_records import (
    LoadedMarker,
    TransactionalRecord,
    decode_record,
)
from strandline.broker.protocol.formats.offsets_topic import OffsetCommitValue
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import ZERO_TOPIC_ID, TopicId
from strandline.storage.records.batch.marker import MarkerType
from tests.unit.broker.coordination.group_trace import (
    join_request,
    logged,
    short_subscription,
    subscription,
)

NOW = Instant(1_700_000_000_000, 0)
LATER = Instant(NOW.wall_ms + 10_000, 10_000)
MUCH_LATER = Instant(NOW.wall_ms + 100_000_000, 100_000_000)
RETENTION_MS = 60_000
TOPIC_ID = uuid.UUID(int=7)
ANOTHER_ID = uuid.UUID(int=8)


def topics_of(**topic_ids: TopicId) -> dict[str, TopicImage]:
    return {
        name: TopicImage(name=name, topic_id=topic_id, partitions=(), properties={})
        for name, topic_id in topic_ids.items()
    }


def make_shard(topics_at_start: Mapping[str, TopicImage] = MappingProxyType({})) -> GroupShard:
    ids = itertools.count(1)
    return GroupShard(
        rules=GroupRules(),
        make_id=lambda: str(next(ids)),
        offset_metadata_length_max=10,
        retention_ms=RETENTION_MS,
        topics_at_start=topics_at_start,
    )


def offset(
    topic: str = "t", partition: int = 0, at: int = 7, metadata: str | None = None
) -> OffsetToCommit:
    return OffsetToCommit(topic, partition, at, 2, metadata, TOPIC_ID)


def commit(shard: GroupShard, group_id: str, *offsets: OffsetToCommit) -> list[ErrorCode]:
    decision = shard.commit(group_id, CommitRequest(offsets=offsets), NOW)
    for record in decision.records:
        shard.replay(record, NOW)
    return list(decision.error_codes)


def join(shard: GroupShard, group_id: str, *, metadata: bytes | None = None) -> str:
    """A member joins and its group waits for others; returns the member's id."""
    step = shard.join(group_id, join_request(metadata=metadata), 1, NOW)
    assert step.group is not None
    return step.group.describe().members[0].member_id


def through_the_log(records: Sequence[CoordinatorRecord]) -> list[CoordinatorRecord]:
    """What a loader makes of these records once they were written."""
    loaded = [decode_record(key, value) for key, value in logged(records, NOW.wall_ms)]
    return [record for record in loaded if record is not None]


# --- commits ---------------------------------------------------------------------------------


def test_a_commit_is_seen_once_its_record_is_in_the_log() -> None:
    shard = make_shard()
    decision = shard.commit("g", CommitRequest(offsets=(offset(metadata="m"),)), NOW)
    assert shard.offsets_of("g") is None
    for record in through_the_log(decision.records):
        shard.replay(record, NOW)
    offsets = shard.offsets_of("g")
    assert offsets is not None
    found = offsets.get("t", 0)
    assert found is not None
    assert (found.offset, found.leader_epoch, found.metadata) == (7, 2, "m")
    assert found.committed_ms == NOW.wall_ms


def test_a_commit_by_nobody_makes_a_group_without_members() -> None:
    shard = make_shard()
    assert commit(shard, "g", offset()) == [ErrorCode.NONE]
    group = shard.group("g")
    assert group is not None
    assert group.protocol_type is None


def test_a_commit_by_a_member_of_a_group_that_does_not_exist_is_refused() -> None:
    shard = make_shard()
    request = CommitRequest(
        member_id="m",
        generation=1,
        offsets=(offset(), offset(partition=1)),
        missing_group_code=ErrorCode.GROUP_ID_NOT_FOUND,
    )
    decision = shard.commit("g", request, NOW)
    assert decision.records == ()
    assert decision.error_codes == (ErrorCode.GROUP_ID_NOT_FOUND,) * 2


def test_too_much_metadata_is_refused_for_its_partition_alone() -> None:
    shard = make_shard()
    codes = commit(shard, "g", offset(metadata="x" * 11), offset(partition=1, metadata="x" * 10))
    assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    offsets = shard.offsets_of("g")
    assert offsets is not None
    assert set(offsets.topics["t"]) == {1}


@pytest.mark.parametrize(
    ("retention_ms", "expires_ms"),
    # For ever, as old clients say it; Kafka's sum overflows, and the offset is gone at once.
    [(500, NOW.wall_ms + 500), (2**63 - 1, 2**63 - 1), (2**63 - 1 - NOW.wall_ms, 2**63 - 1)],
)
def test_a_commit_with_a_retention_of_its_own_keeps_it_through_the_log(
    retention_ms: int, expires_ms: int
) -> None:
    shard = make_shard()
    request = CommitRequest(offsets=(offset(),), retention_ms=retention_ms)
    (record,) = through_the_log(shard.commit("g", request, NOW).records)
    assert isinstance(record, OffsetRecord)
    assert record.committed is not None
    assert record.committed.expires_ms == expires_ms


# --- groups in the log -----------------------------------------------------------------------


def test_a_group_comes_back_from_the_log_with_its_members() -> None:
    shard = make_shard()
    member_id = join(shard, "g")
    group = shard.group("g")
    assert group is not None
    group.tick(Instant(NOW.wall_ms, 3000))
    snapshot = group._snapshot({member_id: b"all"})
    (record,) = through_the_log([GroupRecord("g", snapshot)])
    assert record == GroupRecord("g", snapshot)
    loaded = make_shard()
    loaded.replay(record, NOW)
    (step,) = loaded.loaded(NOW)
    assert step.group is not None
    assert step.group.describe().members[0].assignment == b"all"
    assert step.group.next_deadline_ms == 10_000


def test_a_tombstone_takes_a_group_away() -> None:
    shard = make_shard()
    commit(shard, "g", offset())
    for record in through_the_log(shard.delete_group("g").records):
        shard.replay(record, NOW)
    assert shard.group("g") is None
    assert shard.offsets_of("g") is None


def test_a_refused_join_leaves_no_group() -> None:
    shard = make_shard()
    request = replace(join_request(), protocols=())
    step = shard.join("g", request, 1, NOW)
    assert step.group is None
    assert shard.group("g") is None
    (answer,) = step.effects.answers
    assert isinstance(answer, JoinAnswer)
    assert answer.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_id_of_a_group_that_does_not_exist_is_unknown() -> None:
    shard = make_shard()
    request = join_request("m-1", needs_member_id=True)
    (answer,) = shard.join("g", request, 1, NOW).effects.answers
    assert answer.error_code is ErrorCode.UNKNOWN_MEMBER_ID


# --- deleting --------------------------------------------------------------------------------


def test_a_group_with_members_cannot_be_deleted() -> None:
    shard = make_shard()
    join(shard, "g")
    assert shard.delete_group("g").error_code is ErrorCode.NON_EMPTY_GROUP
    assert shard.delete_group("h").error_code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("metadata", [subscription("t"), short_subscription("t", version=1)])
def test_offsets_of_topics_that_members_read_cannot_be_deleted(metadata: bytes) -> None:
    shard = make_shard()
    commit(shard, "g", offset("t"), offset("u"))
    join(shard, "g", metadata=metadata)
    group = shard.group("g")
    assert group is not None
    group.tick(Instant(NOW.wall_ms, 3000))
    deletion = shard.delete_offsets("g", [OffsetToDelete("t", 0), OffsetToDelete("u", 0)])
    assert deletion.error_codes == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE)
    assert deletion.records == (OffsetRecord("g", "u", 0, None),)


def test_deleting_an_offset_that_is_not_there_writes_nothing() -> None:
    shard = make_shard()
    commit(shard, "g", offset("t"))
    deletion = shard.delete_offsets("g", [OffsetToDelete("t", 5)])
    assert deletion.error_codes == (ErrorCode.NONE,)
    assert deletion.records == ()


def test_offsets_of_a_group_that_does_not_exist_cannot_be_deleted() -> None:
    deletion = make_shard().delete_offsets("g", [OffsetToDelete("t", 0)])
    assert deletion.group_code is ErrorCode.GROUP_ID_NOT_FOUND


def test_the_offsets_of_a_deleted_topic_are_forgotten_in_every_group() -> None:
    shard = make_shard()
    commit(shard, "g", offset("t", 0), offset("t", 1), offset("u"))
    commit(shard, "h", offset("t", 4))
    topics = topics_of(u=TOPIC_ID)
    records = shard.topic_tombstones({"t", "u", "never"}, topics)
    assert records == [
        OffsetRecord("g", "t", 0, None),
        OffsetRecord("g", "t", 1, None),
        OffsetRecord("h", "t", 4, None),
    ]
    for record in records:
        shard.replay(record, NOW)
    assert shard.offset_count == 1


def test_a_topic_that_was_made_again_has_none_of_the_offsets_of_the_one_before() -> None:
    before = make_shard()
    request = CommitRequest(offsets=(offset("t"), offset("u")))
    records = through_the_log(before.commit("g", request, NOW).records)
    # The broker ended before it removed them.
    shard = make_shard(topics_of(t=ANOTHER_ID, u=TOPIC_ID))
    for record in records:
        shard.take(record, NOW)
    shard.take(TransactionalRecord(5, OffsetRecord("h", "t", 0, committed(TOPIC_ID))), NOW)
    assert shard.completed_offsets() == []
    assert shard.topic_tombstones(
        shard.committed_topics(), topics_of(t=ANOTHER_ID, u=TOPIC_ID)
    ) == [
        OffsetRecord("g", "t", 0, None),
        OffsetRecord("h", "t", 0, None),
    ]


# --- records without the id of their topic ---------------------------------------------------


def committed(topic_id: TopicId = ZERO_TOPIC_ID, expires_ms: int = -1) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=7, committed_ms=NOW.wall_ms, topic_id=topic_id, expires_ms=expires_ms
    )


def test_an_offset_of_an_old_state_is_of_the_topic_at_the_start_and_written_once_with_its_id() -> (
    None
):
    shard = make_shard(topics_of(t=TOPIC_ID))
    shard.take(OffsetRecord("g", "t", 0, committed()), NOW)
    shard.take(OffsetRecord("g", "t", 1, committed()), NOW)
    shard.take(OffsetRecord("g", "t", 2, committed()), NOW)
    shard.take(OffsetRecord("g", "deleted", 0, committed()), NOW)
    # The later record has what the first lacks.
    shard.take(OffsetRecord("g", "t", 1, committed(TOPIC_ID)), NOW)
    shard.take(OffsetRecord("g", "t", 2, None), NOW)
    made_since = topics_of(t=TOPIC_ID, deleted=ANOTHER_ID)
    records = shard.completed_offsets()
    assert records == [OffsetRecord("g", "t", 0, committed(TOPIC_ID))]
    assert through_the_log(records) == records
    assert shard.completed_offsets() == []
    assert shard.topic_tombstones(shard.committed_topics(), made_since) == [
        OffsetRecord("g", "deleted", 0, None)
    ]


def test_an_offset_with_its_own_retention_keeps_it_and_has_the_topics_id_in_memory() -> None:
    shard = make_shard(topics_of(t=TOPIC_ID))
    shard.take(OffsetRecord("g", "t", 0, committed(expires_ms=LATER.wall_ms)), NOW)
    assert shard.completed_offsets() == []
    assert shard.topic_tombstones({"t"}, topics_of(t=TOPIC_ID)) == []
    assert shard.topic_tombstones({"t"}, topics_of(t=ANOTHER_ID)) != []


def test_an_offset_is_not_completed_over_one_that_an_open_transaction_commits() -> None:
    shard = make_shard(topics_of(t=TOPIC_ID))
    shard.take(OffsetRecord("g", "t", 0, committed()), NOW)
    later = committed().replaced(offset=9)
    shard.take(TransactionalRecord(5, OffsetRecord("g", "t", 0, later)), NOW)
    assert shard.completed_offsets() == []
    assert shard.topic_tombstones({"t"}, topics_of(t=TOPIC_ID)) == []
    shard.take(LoadedMarker(5, MarkerType.COMMIT), NOW)
    offsets = shard.offsets_of("g")
    assert offsets is not None
    assert offsets.get("t", 0) == later.replaced(topic_id=TOPIC_ID)


# --- expiry ----------------------------------------------------------------------------------


def test_a_group_of_which_nothing_is_left_goes_with_its_last_offset() -> None:
    shard = make_shard()
    commit(shard, "g", offset())
    assert shard.expire(LATER) == []
    records = shard.expire(MUCH_LATER)
    assert records == [OffsetRecord("g", "t", 0, None), GroupRecord("g", None)]
    for record in through_the_log(records):
        shard.replay(record, MUCH_LATER)
    assert shard.group_count == shard.offset_count == 0


def test_a_group_with_members_or_one_that_is_awaited_does_not_expire() -> None:
    shard = make_shard()
    join(shard, "g")
    request = join_request(needs_member_id=True)
    shard.join("awaited", request, 2, NOW)
    assert shard.expire(MUCH_LATER) == []


def test_a_group_whose_members_left_long_ago_expires() -> None:
    shard = make_shard()
    member_id = join(shard, "g")
    group = shard.group("g")
    assert group is not None
    group.tick(Instant(NOW.wall_ms, 3000))
    group.leave([LeavingMember(member_id=member_id)], NOW)
    assert shard.expire(NOW) == [GroupRecord("g", None)]
    commit(shard, "g", offset())
    assert shard.expire(LATER) == []
