"""One KIP-848 group: what its records say, and the clocks that run beside them.

    session      begins anew with every sign of life; a silent member is fenced when it ends
    rebalance    runs while the member is to give partitions back
    join, sync   of members that speak the classic protocol: from "join again" to the join, and
                 from the join to the sync

The clocks are not in the log: they begin anew when a log is loaded. `due` names who is to be
fenced; `next_deadline_ms` is never later than the earliest clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.coordination.consumer.roster import Roster
from strandline.broker.coordination.values.consumer_values import (
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
from strandline.broker.coordination.values.group_offsets import NO_STATE_TIMESTAMP
from strandline.broker.coordination.values.group_values import GroupState, Moment
from strandline.broker.protocol.formats.consumer_protocol import CONSUMER_PROTOCOL_TYPE

# Regular expressions are looked at again after this at the earliest, as in Kafka: topics that are
# created one after the other make one rebalance.
REGEX_REFRESH_MIN_MS = 10_000
# Members of a decision: their tombstones are one batch, which must stay below max.message.bytes.
FENCED_AT_ONCE_MAX = 500


class _Clocks:
    """The deadlines of one member, in monotonic milliseconds; None does not run."""

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
    """See the top of this file. Not thread-safe, never waits."""

    kind: Final = "consumer"

    def __init__(self, group_id: str, rules: ConsumerRules) -> None:
        self.group_id = group_id
        self.roster = Roster(group_id)
        self.next_deadline_ms: int | None = None
        self._rules = rules
        self._clocks: dict[str, _Clocks] = {}
        # What all members read together, until one of them says something else.
        self._subscribed: frozenset[str] | None = None
        self._regexes: frozenset[str] | None = None
        # The topics that the members' assignments were last compared with.
        self._seen: MetadataImage | None = None
        # The topics in which the regular expressions were last looked for.
        self._searched: MetadataImage | None = None
        self._searched_ms: int | None = None
        self._is_searching = False

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.roster!r}>"

    # --- asking ------------------------------------------------------------------------------

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
        """Not known: offsets of such a group count from their commit, also when it is empty."""
        return NO_STATE_TIMESTAMP

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
        """Whether the topics may have changed since `saw`."""
        return image is not self._seen

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

    def apply(self, record: ConsumerRecord, now: Moment) -> None:
        """Takes over one record that is in the log."""
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

    def loaded(self, now: Moment) -> None:
        """The log is read: all clocks begin anew."""
        self.next_deadline_ms = None
        for member_id in self.roster.subscriptions:
            self.touch(member_id, now)
            self._time_revocation(member_id, now)

    def saw(self, image: MetadataImage) -> None:
        """The group took these topics into account."""
        self._seen = image

    # --- clocks ------------------------------------------------------------------------------

    def touch(self, member_id: str, now: Moment) -> None:
        """A sign of life."""
        subscription = self.roster.subscriptions.get(member_id)
        if subscription is None:
            return
        timeout_ms = (
            self._rules.times_of(self.roster.group_id).session_timeout_ms
            if subscription.classic is None
            else subscription.classic.session_timeout_ms
        )
        self._clocks_of(member_id).session_ms = self._due_in(timeout_ms, now)

    def _time_revocation(self, member_id: str, now: Moment) -> None:
        clocks = self._clocks_of(member_id)
        clocks.rebalance_ms = None
        subscription = self.roster.subscriptions.get(member_id)
        if (
            subscription is not None
            and subscription.classic is None
            and self.roster.current_of(member_id).state is MemberState.UNREVOKED
        ):
            clocks.rebalance_ms = self._due_in(subscription.rebalance_timeout_ms, now)

    def await_join(self, member_id: str, now: Moment) -> None:
        """A classic member was told to join again."""
        clocks = self._clocks_of(member_id)
        if clocks.join_ms is None:
            clocks.join_ms = self._due_in(self._rebalance_timeout_ms(member_id), now)

    def await_sync(self, member_id: str, now: Moment) -> None:
        """A classic member joined."""
        clocks = self._clocks_of(member_id)
        clocks.join_ms = None
        clocks.sync_ms = self._due_in(self._rebalance_timeout_ms(member_id), now)

    def synced(self, member_id: str) -> None:
        """A classic member asked for its assignment."""
        self._clocks_of(member_id).sync_ms = None

    def _rebalance_timeout_ms(self, member_id: str) -> int:
        return self.roster.subscriptions[member_id].rebalance_timeout_ms

    def _clocks_of(self, member_id: str) -> _Clocks:
        clocks = self._clocks.get(member_id)
        if clocks is None:
            clocks = self._clocks[member_id] = _Clocks()
        return clocks

    def _due_in(self, delay_ms: int, now: Moment) -> int:
        deadline_ms = now.monotonic_ms + delay_ms
        if self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms
        return deadline_ms

    def due(self, now: Moment) -> list[str]:
        """Members whose time is over; the caller fences them. Safe to call at any time.

        Of very many some come first and the others with the next call, which is due at once.
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
            self._due_in(0, now)
        return over[:FENCED_AT_ONCE_MAX]

    def try_again_in(self, delay_ms: int, now: Moment) -> None:
        """The fencing could not be written."""
        self._due_in(delay_ms, now)

    # --- regular expressions -----------------------------------------------------------------

    def begin_search(self, image: MetadataImage, now: Moment) -> frozenset[str]:
        """The expressions to be looked for in `image` now; empty if there is nothing to do."""
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
            and not self._has_other_topics(image)
        ):
            return frozenset()
        self._is_searching = True
        self._searched, self._searched_ms = image, now.monotonic_ms
        return regexes

    def _has_other_topics(self, image: MetadataImage) -> bool:
        searched = self._searched
        if image is searched:
            return False
        if searched is not None and image.topics.keys() == searched.topics.keys():
            self._searched = image
            return False
        return True

    def end_search(self) -> None:
        self._is_searching = False
