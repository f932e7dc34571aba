"""Committed offsets of groups, and their expiry.

    group  ->  topic  ->  partition  ->  OffsetCommitValue

An offset of a group with members is kept while the group reads the topic, however old it is. After
that its retention (`offsets.retention.minutes`) counts from:

    group                                                    counts from
    ----------------------------------------------------     ------------------------------------
    consumers that assign their partitions themselves        the commit
    groups of the new protocol (KIP-848)                     the commit, for topics without readers
    no members any more                                      when the last one left (the commit,
                                                             if an old record lacks that time)
    stable, consumers with readable subscriptions            the commit, for topics without readers
    anything else (rebalancing, members of another kind)     nothing expires

An old commit (OffsetCommit v2 to v4) may carry its own retention, which then applies. A group
without members and offsets is deleted as well.

A commit has the id of its topic, so a topic that was created again does not inherit the offsets of
the deleted one (`is_of`), whenever these are removed.

All of this is values and plain dicts; callers write the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from strandline.broker.cluster.metadata.image import TopicImage
from strandline.broker.coordination.model.classic_messages import GroupState
from strandline.broker.protocol.formats.offsets_topic import NO_TIMESTAMP, OffsetCommitValue

# The offset that OffsetFetch returns for a partition without a commit.
NO_OFFSET = -1


class TopicOffset(NamedTuple):
    """A commit with its topic and partition."""

    topic: str
    partition: int
    committed: OffsetCommitValue


class ExpiryFacts(Protocol):
    """The facts about a group that expiry depends on."""

    @property
    def state(self) -> GroupState: ...

    @property
    def state_since_ms(self) -> int: ...

    @property
    def uses_consumer_protocol(self) -> bool: ...

    @property
    def counts_from_commit(self) -> bool: ...

    @property
    def subscribed_topics(self) -> frozenset[str] | None: ...

    def is_subscribed_to(self, topic: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Offsets to delete; `leaves_nothing` if the group has no other offset."""

    offsets: tuple[TopicOffset, ...]
    leaves_nothing: bool


class GroupOffsets:
    """The offsets of one group."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, OffsetCommitValue]] = {}

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._topics.values())

    def __iter__(self) -> Iterator[TopicOffset]:
        for topic, partitions in self._topics.items():
            for partition, committed in partitions.items():
                yield TopicOffset(topic, partition, committed)

    def __repr__(self) -> str:
        return f"<GroupOffsets {len(self)} of {len(self._topics)} topics>"

    @property
    def topics(self) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        return self._topics

    def get(self, topic: str, partition: int) -> OffsetCommitValue | None:
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put(self, topic: str, partition: int, committed: OffsetCommitValue) -> None:
        partitions = self._topics.get(topic)
        if partitions is None:
            partitions = self._topics[topic] = {}
        partitions[partition] = committed

    def remove(self, topic: str, partition: int) -> None:
        """Removes one commit, if present."""
        partitions = self._topics.get(topic)
        if partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del self._topics[topic]


def is_of(committed: OffsetCommitValue, topic: TopicImage | None) -> bool:
    """Whether an offset belongs to the topic that has its topic's name now."""
    return topic is not None and committed.topic_id == topic.topic_id


def find_expired(
    group: ExpiryFacts, offsets: GroupOffsets, *, now_ms: int, retention_ms: int
) -> Expiry:
    """Returns the expired offsets of the group; the module's table has the rules."""
    nothing_left = True
    expired = []
    for entry in offsets:
        base_ms = _counts_from(group, entry.committed)
        if base_ms is None or group.is_subscribed_to(entry.topic):
            nothing_left = False
        elif _is_over(entry.committed, base_ms, now_ms, retention_ms):
            expired.append(entry)
        else:
            nothing_left = False
    return Expiry(offsets=tuple(expired), leaves_nothing=nothing_left)


def _counts_from(group: ExpiryFacts, committed: OffsetCommitValue) -> int | None:
    """Returns when retention began for this commit; None if it has not."""
    if group.counts_from_commit:
        return committed.committed_ms
    if group.state is GroupState.EMPTY:
        if group.state_since_ms == NO_TIMESTAMP:
            return committed.committed_ms
        return group.state_since_ms
    if (
        group.state is GroupState.STABLE
        and group.uses_consumer_protocol
        and group.subscribed_topics is not None
    ):
        return committed.committed_ms
    return None


def _is_over(committed: OffsetCommitValue, base_ms: int, now_ms: int, retention_ms: int) -> bool:
    if committed.expires_ms != NO_TIMESTAMP:
        return now_ms >= committed.expires_ms
    return now_ms - base_ms >= retention_ms
