"""Failed logins: a line in the log with the user, and a counter by the client's address."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from strandline.storage.clock import Clock
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Addresses with a counter of their own, the first ones that fail; each is a series of the metric.
ADDRESSES_MAX = 100
OTHERS = "other"
# A line for each counter in this time: clients retry at once, and guess.
LOG_S = 10.0


class FailedLogins:
    """The failed logins of all listeners."""

    def __init__(self, clock: Clock) -> None:
        self._counts: Counter[str] = Counter()
        self._quiet_log = QuietLog(log, clock, quiet_s=LOG_S)

    def add(self, *, peer: str, listener: str, mechanism: str, user: str, reason: str) -> None:
        """Counts one, and logs it; `peer` is address:port, `user` is empty if it is not known."""
        address = peer.rpartition(":")[0]
        if address not in self._counts and len(self._counts) >= ADDRESSES_MAX:
            address = OTHERS
        self._counts[address] += 1
        self._quiet_log.say(
            logging.WARNING,
            "login failed",
            address,
            {
                "peer": peer,
                "user": user,
                "listener": listener,
                "mechanism": mechanism,
                "reason": reason,
            },
        )

    def by_address(self) -> Mapping[str, int]:
        return dict(self._counts)
