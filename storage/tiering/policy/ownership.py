"""Whether the archive is this process's to change, as far as anybody knows.

    UNKNOWN ----> OURS       the cluster's metadata in the bucket goes on with this broker's start
       |            |
       +------------+--> LOST    it goes on with another broker's: a clone, or what came after a
                                 backup that this one was made of

Two brokers with one identity lead under the same epochs, so no manifest can tell them apart; but of
their starts only one is in the bucket. What the archive says of offsets above the other one's past
is of other records: nothing may be freed for it, begun anew behind it, or written into it. Reading
goes on.
"""

from __future__ import annotations

import logging
from enum import Enum, auto

log = logging.getLogger(__name__)


class OwnershipState(Enum):
    """See the top of this file."""

    UNKNOWN = auto()
    OURS = auto()
    LOST = auto()


class Ownership:
    """One for all partitions of a broker. Used on the event loop only."""

    def __init__(self, state: OwnershipState = OwnershipState.OURS) -> None:
        self._state = state

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
        """It is ours, unless it was lost; whether that was not known before."""
        is_news = self.is_unknown
        if is_news:
            self._state = OwnershipState.OURS
        return is_news

    def lose(self, reason: str) -> None:
        """It is another broker's until this one is started again."""
        if not self.is_lost:
            self._state = OwnershipState.LOST
            log.error(
                "the archive is another broker's: nothing is archived, and nothing freed",
                extra={"fields": {"reason": reason}},
            )

    def __repr__(self) -> str:
        return f"<Ownership {self._state.name}>"
