"""Another node, as this broker asks it: connected when it is needed, and again after a failure.

no connection ──call──► connecting ──► connected ──lost──► no connection
                ▲            └─failed─► waits, longer each time, as Kafka's reconnect.backoff.ms
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias, TypeVar

from strandline.broker.peers.address import Address
from strandline.broker.peers.connection import PeerConnection
from strandline.broker.peers.errors import PeerError
from strandline.broker.peers.security import PeerSecurity
from strandline.broker.protocol.schema.api import VersionRange
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock

ResponseT = TypeVar("ResponseT", bound=Response)

# Kafka's reconnect.backoff.ms and reconnect.backoff.max.ms.
RECONNECTS: Final = Backoff(0.05, 1.0, jitter=0.2)
# Kafka's socket.connection.setup.timeout.ms.
CONNECT_S_MAX: Final = 10.0

Connect: TypeAlias = Callable[[Address], Awaitable[PeerConnection]]


def connect_by(
    security: PeerSecurity, *, client_id: str, clock: Clock, timeout_s: float = CONNECT_S_MAX
) -> Connect:
    """Returns what connects to nodes under this security."""

    def connect(address: Address) -> Awaitable[PeerConnection]:
        return PeerConnection.open(
            address, security, client_id=client_id, clock=clock, timeout_s=timeout_s
        )

    return connect


class Peer:
    """One node; used on the event loop only."""

    def __init__(self, address: Address, connect: Connect, clock: Clock) -> None:
        self.address = address
        self._connect = connect
        self._clock = clock
        self._connection: PeerConnection | None = None
        # Of those that find no connection, one connects.
        self._connecting = asyncio.Lock()
        self._failures = 0
        self._next_s = 0.0

    def __repr__(self) -> str:
        return f"<Peer {self._connection or self.address} failures={self._failures}>"

    async def call(
        self, request: Request, answer: type[ResponseT], *, timeout_s: float
    ) -> ResponseT:
        """Sends a request and returns its answer, which may take so long after it was sent.

        Raises PeerError.
        """
        connection = await self.connection()
        return await connection.call(request, answer, timeout_s=timeout_s)

    async def connection(self) -> PeerConnection:
        """Returns an open connection. Raises PeerError."""
        async with self._connecting:
            present = self._connection
            if present is not None:
                if present.is_open and not present.is_due:
                    return present
                present.close()
                self._connection = None
            await asyncio.sleep(self._next_s - self._clock.monotonic_s())
            try:
                self._connection = await self._connect(self.address)
            except PeerError:
                self._failures += 1
                self._next_s = self._clock.monotonic_s() + RECONNECTS.wait_s(self._failures)
                raise
            self._failures = 0
            return self._connection

    @property
    def versions(self) -> Mapping[int, VersionRange]:
        """The versions that the node takes, by API key; empty without a connection."""
        return {} if self._connection is None else self._connection.versions

    def close(self) -> None:
        """Ends the connection; a later call begins another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
