"""Reads `changes.json` for a read-only replica: selects the manifests to poll.

    each interval   the same list as before     nothing
                    it continues the known one  its new changes
                                                (`complete_after` is not above the known sequence)
                    anything else               everything: another incarnation, a gap, no list, or
                                                one that cannot be read
    now and then    everything, whatever the list says

The list is read before the manifests, so later changes are in the next list. The list is a hint: if
a manifest has changed without an entry in it (its owner now has an older release, or may not write
the list any more), everything is polled each time, until the list changes or no such change was
found during one full interval.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.storage.clock import Clock
from strandline.storage.errors import StorageError
from strandline.storage.model import TopicId
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest.change_list import ChangeList, ManifestOrder, StoredChanges
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.object_store.interface import ObjectStore

log = logging.getLogger(__name__)


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
        # The last list that was read; all its changes were polled.
        self._known: StoredChanges | None = None
        self._noted_kind = ""

    def doubt(self) -> None:
        """Records a manifest change that the list does not have."""
        self._doubted_until_s = self._clock.monotonic_s() + self._full_interval_s

    def poll(self) -> PolledChanges:
        """Returns the manifests to poll now; blocks. Raises no store errors."""
        known = self._known
        try:
            self._known = change_list.load(self._store, known)
        except StorageError as error:
            self._note(type(error).__name__, str(error))
            # What was known stays known: it is not less that is asked for.
            return PolledChanges(is_everything=True)
        self._note("", "")
        return self._decide(None if known is None else known.changes, self._known.changes)

    def _decide(self, known: ChangeList | None, found: ChangeList) -> PolledChanges:
        now_s = self._clock.monotonic_s()
        goes_on = (
            known is not None
            and found.incarnation == known.incarnation
            and found.sequence >= known.sequence >= found.complete_after
        )
        if known is None or not goes_on:
            self._full_s = now_s + self._full_interval_s
            self._doubted_until_s = 0.0
            return PolledChanges(is_everything=True, metadata_version=found.metadata_version)
        if found.sequence > known.sequence:
            self._doubted_until_s = 0.0
        is_full_due = now_s >= self._full_s
        if is_full_due:
            self._full_s = now_s + self._full_interval_s
        return PolledChanges(
            is_everything=is_full_due or now_s < self._doubted_until_s,
            is_complete=True,
            metadata_version=found.metadata_version,
            orders={
                (change.topic_id, change.partition): change.order
                for change in found.changes
                if change.sequence > known.sequence
            },
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
