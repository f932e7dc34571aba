"""One KIP-848 group: the state from its records, and the timers beside it.

    session      restarted by every heartbeat; a silent member is fenced when it ends
    rebalance    runs while the member has partitions to revoke
    join, sync   of classic members: from REBALANCE_IN_PROGRESS to the join, and
                 from the join to the sync

The timers are not in the log: they restart when a log is loaded. `due` returns the members to
fence; `next_deadline_ms` is never later than the earliest timer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.coordination.consumer.roster import Roster
from strandline.broker.coordination.model.classic_messages import GroupState, Instant
from strandline.broker.coordination.model.consumer_messages import (
    ConsumerGroupDescription,
    ConsumerRecord,
    ConsumerRules,
    CurrentRecord,
    DescribedConsumer,
    MemberRecord,
    MemberState,
    RegexRecord,
    without_epochs,
)
from strandline.broker.protocol.formats.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from strandline.broker.protocol.formats.offsets_topic import NO_TIMESTAMP

# Regular expressions are re-evaluated after this at the earliest, as in Kafka: topics created in a
# row cause one rebalance.
REGEX_REFRESH_MIN_MS = 10_000
# Members fenced in one decision: their tombstones are one batch, below max.message.bytes.
FENCED_AT_ONCE_MAX = 500


class _Clocks:
    """The deadlines of one member, in monotonic milliseconds; None: the timer does not run."""

    __slots__ = ("join_ms", "rebalance_ms", "session_ms", "sync_ms")

    def __init__(self) -> None:
        self.session_ms: int | None = None
        self.rebalance_ms: int | None = None
        self.join_ms: int | None = None
        self.sync_ms: int | None = None

    def __iter__(self) -> Iterator[int]:
        for deadline_ms in (self.session_ms, self.rebalance_ms, self.join_ms, self.sync_ms):
            if deadline_ms is not None:
                yield deadline_ms


class ConsumerGroup:
    """A KIP-848 group with its timers. Not thread-safe, never waits."""

    kind: Final = "consumer"

    def __init__(self, group_id: str, rules: ConsumerRules) -> None:
        self.group_id = group_id
        self.roster = Roster(group_id)
        self.next_deadline_ms: int | None = None
        self._rules = rules
        self._clocks: dict[str, _Clocks] = {}
        # The topics that all members read; None after a subscription changed.
        self._subscribed: frozenset[str] | None = None
        self._regexes: frozenset[str] | None = None
        # The topics that assignments were checked against last. Images share them, and the names
        # below, until one changes.
        self._seen: Mapping[str, TopicImage] | None = None
        # The names that the regular expressions were evaluated on.
        self._searched_names: Mapping[str, str] = {}
        # The rules then: others may hide topics, or show them.
        self._searched_acls: object = None
        self._searched_ms: int | None = None
        self._is_searching = False

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.roster!r}>"

    # --- queries -----------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        return self.roster.state

    @property
    def member_count(self) -> int:
        return len(self.roster.subscriptions)

    @property
    def is_empty(self) -> bool:
        return not self.roster.subscriptions

    @property
    def state_since_ms(self) -> int:
        """Unknown: offsets of such a group expire from their commit, also when it is empty."""
        return NO_TIMESTAMP

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def uses_consumer_protocol(self) -> bool:
        return True

    @property
    def counts_from_commit(self) -> bool:
        return True

    @property
    def subscribed_topics(self) -> frozenset[str]:
        if self._subscribed is None:
            self._subscribed = self.roster.subscribed_topics()
        return self._subscribed

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topics

    def has_new_metadata(self, image: MetadataImage) -> bool:
        """Returns whether the topics may have changed since `saw`."""
        return image.topics is not self._seen

    def describe(self, assignor: str) -> ConsumerGroupDescription:
        roster = self.roster
        return ConsumerGroupDescription(
            group_id=self.group_id,
            state=roster.state.value,
            epoch=roster.epoch,
            target_epoch=roster.target_epoch,
            assignor=assignor,
            members=tuple(
                DescribedConsumer(
                    member_id=member_id,
                    epoch=roster.current_of(member_id).epoch,
                    subscription=subscription,
                    assigned=without_epochs(roster.current_of(member_id).assigned),
                    target=roster.target_of(member_id),
                )
                for member_id, subscription in roster.subscriptions.items()
            ),
        )

    # --- changing ----------------------------------------------------------------------------

    def apply(self, record: ConsumerRecord, now: Instant) -> None:
        """Applies one record that is in the log."""
        self.roster.apply(record)
        if isinstance(record, MemberRecord):
            self._subscribed = self._regexes = None
            if record.subscription is None:
                self._clocks.pop(record.member_id, None)
            else:
                self.touch(record.member_id, now)
        elif isinstance(record, RegexRecord):
            self._subscribed = None
        elif isinstance(record, CurrentRecord) and record.current is not None:
            self._time_revocation(record.member_id, now)

    def loaded(self, now: Instant) -> None:
        """The log is read: restarts all timers."""
        self.next_deadline_ms = None
        for member_id in self.roster.subscriptions:
            self.touch(member_id, now)
            self._time_revocation(member_id, now)

    def note_image(self, image: MetadataImage) -> None:
        """Notes that the group has taken the topics of `image` into account."""
        self._seen = image.topics

    # --- clocks ------------------------------------------------------------------------------

    def touch(self, member_id: str, now: Instant) -> None:
        """Restarts the member's session."""
        subscription = self.roster.subscriptions.get(member_id)
        if subscription is None:
            return
        timeout_ms = (
            self._rules.times_of(self.roster.group_id).session_timeout_ms
            if subscription.classic is None
            else subscription.classic.session_timeout_ms
        )
        self._clocks_of(member_id).session_ms = self.due_in(timeout_ms, now)

    def _time_revocation(self, member_id: str, now: Instant) -> None:
        clocks = self._clocks_of(member_id)
        clocks.rebalance_ms = None
        subscription = self.roster.subscriptions.get(member_id)
        if (
            subscription is not None
            and subscription.classic is None
            and self.roster.current_of(member_id).state is MemberState.UNREVOKED
        ):
            clocks.rebalance_ms = self.due_in(subscription.rebalance_timeout_ms, now)

    def await_join(self, member_id: str, now: Instant) -> None:
        """Starts the join timer: a classic member was told to rejoin."""
        clocks = self._clocks_of(member_id)
        if clocks.join_ms is None:
            clocks.join_ms = self.due_in(self._rebalance_timeout_ms(member_id), now)

    def await_sync(self, member_id: str, now: Instant) -> None:
        """Starts the sync timer: a classic member has joined."""
        clocks = self._clocks_of(member_id)
        clocks.join_ms = None
        clocks.sync_ms = self.due_in(self._rebalance_timeout_ms(member_id), now)

    def synced(self, member_id: str) -> None:
        """Stops the sync timer."""
        self._clocks_of(member_id).sync_ms = None

    def _rebalance_timeout_ms(self, member_id: str) -> int:
        return self.roster.subscriptions[member_id].rebalance_timeout_ms

    def _clocks_of(self, member_id: str) -> _Clocks:
        return self._clocks.setdefault(member_id, _Clocks())

    def due_in(self, delay_ms: int, now: Instant) -> int:
        """Returns the time after this delay; `due` is called then at the latest."""
        deadline_ms = now.monotonic_ms + delay_ms
        if self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms
        return deadline_ms

    def due(self, now: Instant) -> list[str]:
        """Returns the members whose deadlines passed, for the caller to fence. Safe at any time.

        If there are very many, the next call, which is due at once, returns the others.
        """
        if self.next_deadline_ms is None or now.monotonic_ms < self.next_deadline_ms:
            return []
        over: list[str] = []
        earliest_ms: int | None = None
        for member_id, clocks in self._clocks.items():
            first_ms = min(clocks, default=None)
            if first_ms is None:
                continue
            if first_ms <= now.monotonic_ms:
                over.append(member_id)
            elif earliest_ms is None or first_ms < earliest_ms:
                earliest_ms = first_ms
        self.next_deadline_ms = earliest_ms
        over = [member_id for member_id in over if member_id in self.roster.subscriptions]
        if len(over) > FENCED_AT_ONCE_MAX:
            self.due_in(0, now)
        return over[:FENCED_AT_ONCE_MAX]

    # --- regular expressions -----------------------------------------------------------------

    def begin_search(self, image: MetadataImage, now: Instant) -> frozenset[str]:
        """Returns the expressions to evaluate on `image` now; empty if there is nothing to do."""
        if self._regexes is None:
            self._regexes = frozenset(self.roster.regex_readers())
        regexes = self._regexes
        if not regexes or self._is_searching:
            return frozenset()
        since_ms = None if self._searched_ms is None else now.monotonic_ms - self._searched_ms
        is_unresolved = any(regex not in self.roster.regexes for regex in regexes)
        if since_ms is not None and since_ms <= REGEX_REFRESH_MIN_MS:
            return frozenset()
        if (
            since_ms is not None
            and not is_unresolved
            and since_ms <= self._rules.regex_refresh_interval_ms
            and image.names_by_collision is self._searched_names
            and image.acls is self._searched_acls
        ):
            return frozenset()
        self._is_searching = True
        self._searched_names, self._searched_ms = image.names_by_collision, now.monotonic_ms
        self._searched_acls = image.acls
        return regexes

    def end_search(self) -> None:
        self._is_searching = False
