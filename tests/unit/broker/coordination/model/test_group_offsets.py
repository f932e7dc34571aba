"""When an offset is forgotten."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from strandline.broker.coordination.model.classic_messages import GroupState
from strandline.broker.coordination.model.group_offsets import (
    GroupOffsets,
    TopicOffset,
    find_expired,
)
from strandline.broker.protocol.formats.offsets_topic import OffsetCommitValue

RETENTION_MS = 1000
COMMITTED_MS = 5000


@dataclass
class Life:
    """A group as expiry sees it."""

    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1
    protocol_type: str | None = "consumer"
    subscribed_topics: frozenset[str] | None = frozenset()

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == "consumer"

    @property
    def counts_from_commit(self) -> bool:
        return self.protocol_type is None

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is not None:
            return topic in self.subscribed_topics
        return self.uses_consumer_protocol


def committed(*, at_ms: int = COMMITTED_MS, expires_ms: int = -1) -> OffsetCommitValue:
    return OffsetCommitValue(offset=7, leader_epoch=0, committed_ms=at_ms, expires_ms=expires_ms)


def expires_at(life: Life, entry: OffsetCommitValue, topic: str = "t") -> int | None:
    """The first moment at which the offset is gone; None if it is never."""
    offsets = GroupOffsets()
    offsets.put(topic, 0, entry)
    for now_ms in range(4000, 20_000, 100):
        expiry = find_expired(life, offsets, now_ms=now_ms, retention_ms=RETENTION_MS)
        if expiry.offsets:
            assert expiry.leaves_nothing
            return now_ms
        assert not expiry.leaves_nothing
    return None


def test_an_empty_group_keeps_its_offsets_from_when_its_last_member_left() -> None:
    assert expires_at(Life(state_since_ms=9000), committed()) == 10_000


def test_of_an_empty_group_of_old_the_commit_counts() -> None:
    assert expires_at(Life(), committed()) == 6000


def test_offsets_of_consumers_without_a_group_count_from_the_commit() -> None:
    life = Life(protocol_type=None, state_since_ms=9000, subscribed_topics=None)
    assert expires_at(life, committed()) == 6000


def test_a_stable_group_keeps_what_it_reads_and_loses_the_rest() -> None:
    life = Life(state=GroupState.STABLE, subscribed_topics=frozenset({"t"}))
    assert expires_at(life, committed()) is None
    assert expires_at(life, committed(), topic="u") == 6000


@pytest.mark.parametrize(
    "life",
    [
        Life(state=GroupState.PREPARING_REBALANCE),
        Life(state=GroupState.COMPLETING_REBALANCE),
        Life(state=GroupState.STABLE, protocol_type="connect", subscribed_topics=None),
        Life(state=GroupState.STABLE, subscribed_topics=None),
    ],
)
def test_otherwise_a_group_with_members_loses_nothing(life: Life) -> None:
    assert expires_at(life, committed()) is None


def test_a_commit_that_names_its_own_end_is_good_until_then() -> None:
    assert expires_at(Life(state_since_ms=9000), committed(expires_ms=8000)) == 8000
    assert expires_at(Life(), committed(expires_ms=15_000)) == 15_000


def test_a_group_without_offsets_has_nothing_left() -> None:
    expiry = find_expired(Life(), GroupOffsets(), now_ms=0, retention_ms=1)
    assert expiry.leaves_nothing
    assert not expiry.offsets


def test_offsets_are_found_by_topic_and_partition_until_removed() -> None:
    offsets = GroupOffsets()
    offsets.put("t", 3, committed())
    offsets.put("u", 0, committed(at_ms=1))
    assert offsets.get("t", 3) == committed()
    assert offsets.get("t", 4) is None
    assert offsets.get("x", 0) is None
    assert len(offsets) == 2
    offsets.remove("t", 3)
    offsets.remove("t", 3)
    offsets.remove("x", 0)
    assert list(offsets) == [TopicOffset("u", 0, committed(at_ms=1))]
    assert set(offsets.topics) == {"u"}
