"""Whether this process owns the archive, as far as is known.

    UNKNOWN ----> OURS       the cluster's metadata in the bucket continues with this broker's start
       |            |
       +------------+--> LOST    it continues with another broker's: a clone of this one, or the
                                 original of which this one is a backup

Two brokers with one identity lead under the same epochs, so no manifest can tell them apart; but
only one of their starts is in the bucket. Above their common past the archive's offsets belong to
other records: this broker may free nothing because of them, restart no log behind them, and write
nothing there. Reads continue.
"""

from __future__ import annotations

import logging
from enum import Enum, auto

log = logging.getLogger(__name__)


class OwnershipState(Enum):
    """The owner of the archive: unknown, this process, or another one."""

    UNKNOWN = auto()
    OURS = auto()
    LOST = auto()


class Ownership:
    """Ownership of the archive, shared by all partitions of a broker. Event loop only."""

    def __init__(
        self, state: OwnershipState = OwnershipState.OURS, *, refuses_if_lost: bool = False
    ) -> None:
        """`refuses_if_lost`: whether producers are refused once the archive is another broker's."""
        self._state = state
        self._refuses_if_lost = refuses_if_lost
        # An attribute, since each batch of a tiered topic checks it.
        self.refuses_produce = False

    @property
    def is_ours(self) -> bool:
        return self._state is OwnershipState.OURS

    @property
    def is_unknown(self) -> bool:
        return self._state is OwnershipState.UNKNOWN

    @property
    def is_lost(self) -> bool:
        return self._state is OwnershipState.LOST

    def confirm(self) -> bool:
        """Confirms the ownership, unless it was lost; True if it was unknown before."""
        is_news = self.is_unknown
        if is_news:
            self._state = OwnershipState.OURS
        return is_news

    def lose(self, reason: str) -> None:
        """Marks the archive as another broker's, until this one restarts."""
        if not self.is_lost:
            self._state = OwnershipState.LOST
            self.refuses_produce = self._refuses_if_lost
            log.error(
                "the archive is another broker's: nothing is archived, and nothing freed",
                extra={"fields": {"reason": reason}},
            )

    def __repr__(self) -> str:
        return f"<Ownership {self._state.name}>"
