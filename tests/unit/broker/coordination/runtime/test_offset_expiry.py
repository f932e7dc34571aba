"""Offsets of deleted topics, in partitions that are loaded and in those that are not yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from strandline.broker.coordination.model.classic_messages import Instant
from strandline.broker.coordination.model.offset_messages import CoordinatorRecord
from strandline.broker.coordination.runtime.offset_expiry import OffsetExpiry
from strandline.broker.coordination.runtime.slots import Slot, Slots

NOW = Instant(wall_ms=1_000_000, monotonic_ms=1_000)


@dataclass
class Shard:
    """Which topics it has offsets of."""

    committed: set[str]
    expired_at: list[Instant] = field(default_factory=list)

    def expire(self, now: Instant) -> Sequence[CoordinatorRecord]:
        self.expired_at.append(now)
        return ()

    def committed_topics(self) -> set[str]:
        return self.committed

    def topic_tombstones(self, topics: set[str]) -> Sequence[CoordinatorRecord]:
        self.committed = self.committed - topics
        return ()


@dataclass
class Partition:
    """A slot."""

    shard: Shard
    is_loaded: bool


@dataclass
class Rig:
    """Partitions, the topics there are, and what follows them."""

    partitions: list[Partition]
    topics: set[str] = field(default_factory=set)
    forgetting: OffsetExpiry = field(init=False)

    def __post_init__(self) -> None:
        self.forgetting = OffsetExpiry(
            cast(Slots, self), interval_ms=10**9, now=NOW, believed_ms=lambda: NOW.wall_ms
        )

    def all(self) -> list[Partition]:
        return self.partitions

    def present(self) -> list[Partition]:
        return self.partitions

    def change(self, *, gone: set[str], made: set[str]) -> None:
        self.topics = (self.topics - gone) | made
        self.forgetting.follow(self.topics, gone=gone, made=made, now=NOW)

    def load(self, partition: Partition) -> None:
        partition.is_loaded = True
        self.forgetting.note_loaded(cast(Slot, partition), self.topics, NOW)


def rig() -> Rig:
    """Two partitions, one of them not loaded, with offsets of three topics that there are."""
    names = {"kept", "gone", "again"}
    return Rig(
        partitions=[
            Partition(Shard(set(names)), is_loaded=True),
            Partition(Shard(set(names)), is_loaded=False),
        ],
        topics=set(names),
    )


def test_no_name_brings_back_the_offsets_of_a_topic_before_it() -> None:
    cluster = rig()
    loaded, late = cluster.partitions
    # One goes and comes between two looks, one in two steps, one only goes.
    cluster.topics.add("other")
    late.shard.committed.add("other")
    cluster.change(gone={"again", "gone"}, made={"again"})
    cluster.change(gone={"other"}, made=set())
    cluster.change(gone=set(), made={"other"})
    assert loaded.shard.committed == {"kept"}
    loaded.shard.committed |= {"again", "other"}
    cluster.load(late)
    assert late.shard.committed == {"kept"}
    assert loaded.shard.committed == {"kept", "again", "other"}


def test_what_is_remembered_for_a_partition_that_cannot_be_loaded_is_bounded() -> None:
    cluster = rig()
    for number in range(1_000):
        cluster.change(gone=set(), made={f"short-lived-{number}"})
        cluster.change(gone={f"short-lived-{number}"}, made=set())
    cluster.change(gone={"again"}, made={"again"})
    assert cluster.forgetting.remembered_count == 1
    _, late = cluster.partitions
    late.shard.committed |= {"short-lived-7"}
    cluster.load(late)
    assert late.shard.committed == {"kept", "gone"}
    assert cluster.forgetting.remembered_count == 0


def test_nothing_is_remembered_while_all_partitions_are_loaded() -> None:
    cluster = rig()
    cluster.load(cluster.partitions[1])
    cluster.change(gone=set(), made={"new"})
    assert cluster.forgetting.remembered_count == 0


def test_offsets_expire_by_the_time_that_is_believed_and_not_by_a_clock_that_leapt() -> None:
    cluster = rig()
    leapt = Instant(NOW.wall_ms + 10**11, NOW.monotonic_ms + 10**9)
    asyncio.run(cluster.forgetting.expire_if_due(leapt))
    assert cluster.partitions[0].shard.expired_at == [Instant(NOW.wall_ms, leapt.monotonic_ms)]
