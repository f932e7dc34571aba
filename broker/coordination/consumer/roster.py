"""The state of one KIP-848 group, from its records: members, targets, epochs, assignments.

    roster.apply(record)         the only way in which it changes

A decision works on a copy that sees its own records; when they are written, they are applied to
the roster itself. Replaying the log does the same, so a restart ends where the group was.

Compaction keeps the last record of each key, so records may arrive out of their original order.
Nothing here depends on it: a record for an unknown member creates it, and a partition belongs to
the member whose record came last.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.coordination.model.classic_messages import GroupState
from strandline.broker.coordination.model.consumer_messages import (
    LEAVE_EPOCH,
    NO_PARTITIONS,
    ConsumerRecord,
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    MemberState,
    MemberSubscription,
    Partitions,
    RegexRecord,
    ResolvedRegex,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadataRecord,
)
from strandline.storage.model import TopicId

_NEW_MEMBER = CurrentAssignment()
_GONE = CurrentAssignment(epoch=LEAVE_EPOCH)


class Roster:
    """The state of one KIP-848 group; changed by records only."""

    __slots__ = (
        "_owners",
        "_static",
        "current",
        "epoch",
        "group_id",
        "has_topic_metadata",
        "metadata_hash",
        "regexes",
        "subscriptions",
        "target_epoch",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.metadata_hash = 0
        # Whether the log still has a record of type 4 from an old Kafka.
        self.has_topic_metadata = False
        self.subscriptions: dict[str, MemberSubscription] = {}
        self.current: dict[str, CurrentAssignment] = {}
        self.targets: dict[str, Partitions] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[tuple[TopicId, int], str] = {}

    def __repr__(self) -> str:
        return (
            f"<Roster {self.group_id} {self.state.value} epoch={self.epoch}"
            f" target={self.target_epoch} members={len(self.subscriptions)}>"
        )

    def copy(self) -> Roster:
        """Returns an independent copy; its values are shared."""
        twin = Roster(self.group_id)
        twin.epoch = self.epoch
        twin.target_epoch = self.target_epoch
        twin.metadata_hash = self.metadata_hash
        twin.has_topic_metadata = self.has_topic_metadata
        twin.subscriptions = self.subscriptions.copy()
        twin.current = self.current.copy()
        twin.targets = self.targets.copy()
        twin.regexes = self.regexes.copy()
        twin._static = self._static.copy()
        twin._owners = self._owners.copy()
        return twin

    # --- queries -----------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        if not self.subscriptions:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if all(self._is_settled(member_id) for member_id in self.subscriptions):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def _is_settled(self, member_id: str) -> bool:
        current = self.current_of(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch

    def current_of(self, member_id: str) -> CurrentAssignment:
        return self.current.get(member_id, _NEW_MEMBER)

    def target_of(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def static_member_id(self, instance_id: str | None) -> str | None:
        return None if instance_id is None else self._static.get(instance_id)

    def is_free(self, topic_id: TopicId, partition: int) -> bool:
        """Returns whether no member owns the partition or still has to revoke it."""
        return (topic_id, partition) not in self._owners

    def regex_readers(self) -> Counter[str]:
        """Counts the members that subscribe to each regular expression."""
        return Counter(s.topic_regex for s in self.subscriptions.values() if s.topic_regex)

    def topics_of(self, subscription: MemberSubscription) -> frozenset[str]:
        """Returns the topics of a subscription; an expression not evaluated yet matches none."""
        names = frozenset(subscription.topic_names)
        resolved = self.regexes.get(subscription.topic_regex)
        return names if resolved is None else names | resolved.topics

    def subscribed_topics(self) -> frozenset[str]:
        """Returns the topics that any member reads."""
        names: set[str] = set()
        for subscription in self.subscriptions.values():
            names.update(subscription.topic_names)
        for regex in self.regex_readers():
            if regex in self.regexes:
                names.update(self.regexes[regex].topics)
        return frozenset(names)

    def is_waiting_for_others(self, member_id: str) -> bool:
        """Returns whether another member still owns a partition of this member's target."""
        assigned = self.current_of(member_id).assigned
        return any(
            (topic_id, partition) in self._owners
            for topic_id, partitions in self.target_of(member_id).items()
            for partition in partitions - assigned.get(topic_id, {}).keys()
        )

    # --- changing ----------------------------------------------------------------------------

    def apply(self, record: ConsumerRecord) -> None:
        """Applies one record."""
        if isinstance(record, EpochRecord):
            self.epoch, self.metadata_hash = record.epoch or 0, record.metadata_hash
        elif isinstance(record, MemberRecord):
            self._apply_member(record)
        elif isinstance(record, CurrentRecord):
            self._apply_current(record)
        elif isinstance(record, TargetRecord):
            if record.partitions is None:
                self.targets.pop(record.member_id, None)
            else:
                self.targets[record.member_id] = record.partitions
        elif isinstance(record, TargetEpochRecord):
            self.target_epoch = record.epoch or 0
        elif isinstance(record, RegexRecord):
            if record.resolved is None:
                self.regexes.pop(record.regex, None)
            else:
                self.regexes[record.regex] = record.resolved
        else:
            assert isinstance(record, TopicMetadataRecord), record
            self.has_topic_metadata = record.is_present

    def _apply_member(self, record: MemberRecord) -> None:
        member_id = record.member_id
        previous = self.subscriptions.get(member_id)
        if record.subscription is None:
            self.subscriptions.pop(member_id, None)
            self._release(member_id, self.current.pop(member_id, _GONE))
            instance_id = None if previous is None else previous.instance_id
            if instance_id is not None and self._static.get(instance_id) == member_id:
                del self._static[instance_id]
            return
        self.subscriptions[member_id] = record.subscription
        if record.subscription.instance_id is not None:
            self._static[record.subscription.instance_id] = member_id

    def _apply_current(self, record: CurrentRecord) -> None:
        member_id = record.member_id
        self._release(member_id, self.current_of(member_id))
        if record.current is None:
            self.current.pop(member_id, None)
            return
        self.current[member_id] = record.current
        for held in (record.current.assigned, record.current.revoking):
            for topic_id, partitions in held.items():
                for partition in partitions:
                    self._owners[topic_id, partition] = member_id

    def _release(self, member_id: str, current: CurrentAssignment) -> None:
        for held in (current.assigned, current.revoking):
            for topic_id, partitions in held.items():
                for partition in partitions:
                    if self._owners.get((topic_id, partition)) == member_id:
                        del self._owners[topic_id, partition]


class Draft:
    """A decision under construction: a copy of a roster, and the records that changed it."""

    def __init__(self, roster: Roster) -> None:
        self._origin = roster
        self._roster: Roster | None = None
        self.records: list[ConsumerRecord] = []

    @property
    def roster(self) -> Roster:
        """The group including the draft's records; copied on the first record."""
        return self._origin if self._roster is None else self._roster

    def emit(self, record: ConsumerRecord) -> None:
        if self._roster is None:
            self._roster = self._origin.copy()
        self.records.append(record)
        self._roster.apply(record)

    def remove(self, member_id: str) -> None:
        """Adds a member's tombstones, in the order that Kafka's own loader requires."""
        group_id = self._origin.group_id
        self.emit(CurrentRecord(group_id, member_id, None))
        self.emit(TargetRecord(group_id, member_id, None))
        self.emit(MemberRecord(group_id, member_id, None))

    def replace_member(self, old_id: str, new_id: str) -> None:
        """A static member returns under a new id: it takes over the old one's target."""
        roster, group_id = self.roster, self._origin.group_id
        subscription, target = roster.subscriptions[old_id], roster.target_of(old_id)
        current = replace(roster.current_of(old_id), epoch=0, previous_epoch=0)
        self.remove(old_id)
        self.emit(MemberRecord(group_id, new_id, subscription))
        self.emit(TargetRecord(group_id, new_id, target))
        self.emit(CurrentRecord(group_id, new_id, current))

    def add_group_tombstones(self) -> None:
        """Adds tombstones of the whole group, in the order that Kafka's own loader requires."""
        roster, group_id = self.roster, self._origin.group_id
        members = tuple(roster.subscriptions)
        for member_id in members:
            self.emit(CurrentRecord(group_id, member_id, None))
        for member_id in members:
            self.emit(TargetRecord(group_id, member_id, None))
        self.emit(TargetEpochRecord(group_id, None))
        for member_id in members:
            self.emit(MemberRecord(group_id, member_id, None))
        for regex in tuple(roster.regexes):
            self.emit(RegexRecord(group_id, regex, None))
        if roster.has_topic_metadata:
            self.emit(TopicMetadataRecord(group_id, False))
        self.emit(EpochRecord(group_id, None))


def metadata_hash(topics: Iterable[str], image: MetadataImage) -> int:
    """Returns a hash of the group's topics: a different one triggers a new assignment.

    The hash is our own. Kafka computes a different one, so a group that changes its broker is
    assigned once more, and nothing worse.
    """
    known = sorted(name for name in topics if name in image.topics)
    if not known:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name in known:
        topic = image.topics[name]
        digest.update(f"{name}\0{topic.topic_id}\0{topic.partition_count}\0".encode())
    return int.from_bytes(digest.digest(), signed=True)


def topic_ids(names: Iterable[str], image: MetadataImage) -> frozenset[TopicId]:
    """Returns the ids of the topics that exist."""
    found = (image.topics.get(name) for name in names)
    return frozenset(topic.topic_id for topic in found if topic is not None)


def partition_counts(names: Iterable[str], image: MetadataImage) -> Mapping[TopicId, int]:
    """Returns partition counts by topic id; skips names that the image lacks."""
    found = (image.topics.get(name) for name in names)
    return {topic.topic_id: topic.partition_count for topic in found if topic is not None}
