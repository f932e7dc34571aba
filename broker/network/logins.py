"""Clients of which nobody knows yet who they are: in a handshake of TLS, or before their login.

Each has LOGIN_S, one of LOGINS_MAX places, and a share of one pool of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from strandline.broker.network.buffer_pool import BufferPool
from strandline.storage.clock import Clock

# From the connection to the end of the login, and of the handshake before it. Clients give up after
# request.timeout.ms, 30 s.
LOGIN_S = 30.0
# Connections that are logging in at one time. After a restart all clients come at once: a login
# takes milliseconds, and who is refused comes again.
LOGINS_MAX = 2048
# One that takes longer gives its place to the next client, so that silent ones keep nobody out.
LOGIN_GRACE_S = 5.0
# Their receive buffers together, beyond the smallest ones, which are enough for each mechanism.
LOGIN_BYTES_MAX = 16 * 1024 * 1024


class Newcomer(Protocol):
    """A connection, or a handshake that may become one."""

    peer: str
    peer_address: str
    listener: str
    opened_s: float

    def close(self, reason: str, /) -> None: ...


class Logins:
    """All newcomers, in the order in which they came."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newcomers: dict[Newcomer, None] = {}
        self.memory = BufferPool(LOGIN_BYTES_MAX)

    def __len__(self) -> int:
        return len(self._newcomers)

    def __contains__(self, newcomer: Newcomer) -> bool:
        return newcomer in self._newcomers

    def add(self, newcomer: Newcomer) -> None:
        self._newcomers[newcomer] = None

    def discard(self, newcomer: Newcomer) -> None:
        self._newcomers.pop(newcomer, None)

    @property
    def are_full(self) -> bool:
        return len(self._newcomers) >= LOGINS_MAX

    def replaceable(self) -> Newcomer | None:
        """Returns the one that has been here longest, if it had its time of grace."""
        oldest = next(iter(self._newcomers))
        is_over = self._clock.monotonic_s() - oldest.opened_s > LOGIN_GRACE_S
        return oldest if is_over else None

    def overdue(self) -> Iterator[Newcomer]:
        """Yields those that took too long."""
        now_s = self._clock.monotonic_s()
        for newcomer in tuple(self._newcomers):
            if now_s - newcomer.opened_s <= LOGIN_S:
                break
            yield newcomer
