"""Reads the lists of changes for a read-only replica: selects the manifests to poll.

    each interval   the same list as before     nothing
                    it continues the known one  its new changes
                                                (`complete_after` is not above the known sequence)
                    anything else               everything: another incarnation, a gap, no list, or
                                                one that cannot be read
    now and then    everything, whatever the list says

A lone broker writes one list, and each broker of a cluster another. Which there are is looked up at
each full poll, and for a while after the metadata changed: a broker may have come.

A list is read before the manifests, so later changes are in the next list. The list is a hint: if
a manifest has changed without an entry in it (its owner now has an older release, or may not write
the list any more), everything is polled each time, until the list changes or no such change was
found during one full interval.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.storage.clock import Clock
from strandline.storage.errors import ObjectNotFound, StorageError
from strandline.storage.model import TopicId
from strandline.storage.remote.keys import CHANGES_KEY
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest.change_list import ChangeList, ManifestOrder, StoredChanges
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.object_store.interface import ObjectStore

log = logging.getLogger(__name__)

# How long after a change of the metadata another list may appear: a broker that came writes its
# first one at once.
LOOK_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledChanges:
    """The manifests to poll. `orders` are the listed ones, by topic and partition.

    `is_complete`: the list has all changes, as far as is known.
    """

    is_everything: bool
    is_complete: bool = False
    metadata_version: int = 0
    orders: Mapping[tuple[TopicId, int], ManifestOrder] = field(default_factory=dict)


class ChangeReader:
    """Reads the change list for a replica. One call at a time; `poll` blocks."""

    def __init__(self, store: ObjectStore, *, clock: Clock, full_interval_ms: int) -> None:
        """`full_interval_ms` is the maximum time between two polls of all manifests."""
        self._store = store
        self._clock = clock
        self._full_interval_s = full_interval_ms / 1000
        self._full_s = 0.0
        self._doubted_until_s = 0.0
        self._looking_until_s = 0.0
        # The last lists that were read, by name; all their changes were polled.
        self._known: dict[str, StoredChanges] = {}
        self._metadata_version = 0
        self._noted_kind = ""

    def doubt(self) -> None:
        """Records a manifest change that the list does not have."""
        self._doubted_until_s = self._clock.monotonic_s() + self._full_interval_s

    def poll(self) -> PolledChanges:
        """Returns the manifests to poll now; blocks. Raises no store errors."""
        now_s = self._clock.monotonic_s()
        known = self._known
        try:
            found = self._load(now_s)
        except StorageError as error:
            self._note(type(error).__name__, str(error))
            # What was known stays known: it is not less that is asked for.
            return PolledChanges(is_everything=True)
        self._note("", "")
        self._known = found
        return self._decide(known, found, now_s)

    def _load(self, now_s: float) -> dict[str, StoredChanges]:
        """Reads the lists that there are. Raises ObjectNotFound without any, and as the store."""
        keys = list(self._known)
        looked_for = set[str]()
        if now_s >= self._full_s or now_s < self._looking_until_s:
            # That of a lone broker, which need not have been there.
            looked_for = {CHANGES_KEY, *change_list.list_keys(self._store)}.difference(keys)
        found = {key: change_list.load(self._store, self._known[key], key=key) for key in keys}
        for key in sorted(looked_for):
            with contextlib.suppress(ObjectNotFound):
                found[key] = change_list.load(self._store, key=key)
        if not found:
            raise ObjectNotFound(CHANGES_KEY, "head", "no broker has written a list")
        return found

    def _decide(
        self, known: dict[str, StoredChanges], found: dict[str, StoredChanges], now_s: float
    ) -> PolledChanges:
        version = max(one.changes.metadata_version for one in found.values())
        if version > self._metadata_version:
            self._metadata_version = version
            self._looking_until_s = now_s + LOOK_S
        pairs = [(known.get(key), one.changes) for key, one in found.items()]
        if not all(_goes_on(before, now) for before, now in pairs):
            self._full_s = now_s + self._full_interval_s
            self._doubted_until_s = 0.0
            return PolledChanges(is_everything=True, metadata_version=version)
        news = [
            change
            for before, now in pairs
            if before is not None
            for change in now.changes
            if change.sequence > before.changes.sequence
        ]
        if any(b is not None and now.sequence > b.changes.sequence for b, now in pairs):
            self._doubted_until_s = 0.0
        is_full_due = now_s >= self._full_s
        if is_full_due:
            self._full_s = now_s + self._full_interval_s
        orders: dict[tuple[TopicId, int], ManifestOrder] = {}
        for change in news:
            key = change.topic_id, change.partition
            orders[key] = max(change.order, orders.get(key, change.order))
        return PolledChanges(
            is_everything=is_full_due or now_s < self._doubted_until_s,
            is_complete=True,
            metadata_version=version,
            orders=orders,
        )

    def _note(self, kind: str, reason: str) -> None:
        """Logs once per reason how the archive is followed."""
        if kind != self._noted_kind:
            event = "the list of changes cannot be used: every manifest is asked for each time"
            log.info(
                event if kind else "the list of changes tells what to ask for",
                extra={"fields": {"kind": kind, "reason": reason}},
            )
        self._noted_kind = kind


def _goes_on(known: StoredChanges | None, found: ChangeList) -> bool:
    """Whether a list has all changes since the known one."""
    return (
        known is not None
        and found.incarnation == known.changes.incarnation
        and found.sequence >= known.changes.sequence >= found.complete_after
    )


class Expectation:
    """The pending polls of one partition of a replica. Used on the event loop only.

    `asked` is incremented with each reason to poll the manifest; a poll covers the requests before
    its start, if it found at least the announced order.
    """

    __slots__ = ("_answered", "_expects_no_change", "_order", "_was_silent", "asked")

    def __init__(self) -> None:
        self.asked = 1
        self._answered = 0
        self._order: ManifestOrder | None = None
        self._expects_no_change = self._was_silent = False

    @property
    def is_due(self) -> bool:
        """Whether its manifest has to be polled."""
        return self._answered < self.asked

    def apply_changes(
        self, changes: PolledChanges, key: tuple[TopicId, int], held: Manifest | None
    ) -> bool:
        """Applies `changes` to the partition; returns whether the list lacked a change of it that
        was found since the last call.
        """
        was_silent, self._was_silent = self._was_silent, False
        order = changes.orders.get(key)
        if changes.is_everything:
            # Since the last poll, only listed manifests can have changed.
            self._expects_no_change = changes.is_complete and order is None and not self.is_due
            self._order = None
            self.asked += 1
        elif order is not None and (held is None or held.order < order):
            self._expects_no_change = False
            self._order = order
            self.asked += 1
        return was_silent

    def found(self, asked: int, before: Manifest | None, now: Manifest | None) -> None:
        """Records a poll that began at `asked` and found `now` in place of `before`."""
        is_newer = now is not None and (before is None or now.order > before.order)
        self._was_silent |= self._expects_no_change and is_newer
        if self._order is None or (now is not None and now.order >= self._order):
            self._answered = max(self._answered, asked)
            if not self.is_due:
                self._expects_no_change = False
