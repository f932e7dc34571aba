"""Requests to the active controller, whichever that is (Kafka's NodeToControllerChannelManager).

    1 wait until the active controller is known   2 ask it
    it does not answer, or NOT_CONTROLLER         doubt it, wait a little, and go to 1

An answer counts only if its controller is still the one with the highest epoch that was seen: a
controller that was deposed may answer from what it knew then.

Each use has a channel of its own, with its own connection: the controller answers one request of a
connection after the other, and a heartbeat must not wait behind the creation of a topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from strandline.broker.cluster.membership.quorum import ActiveNode, Quorum
from strandline.broker.peers.address import Address
from strandline.broker.peers.errors import PeerError, PeerRefused, PeerTooOld, PeerUnreachable
from strandline.broker.peers.peer import Connect, Peer
from strandline.broker.protocol.schema.api import ApiKey, VersionRange
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT", bound=Response)

# Kafka's retry.backoff.ms and retry.backoff.max.ms.
RETRIES: Final = Backoff(0.1, 1.0, jitter=0.2)
# Of an API that a node does not know.
NO_VERSION: Final = VersionRange(0, -1)


class ControllerChannel:
    """One use of the active controller; used on the event loop only."""

    def __init__(
        self, quorum: Quorum, connect: Connect, clock: Clock, *, request_s_max: float
    ) -> None:
        self._quorum = quorum
        self._connect = connect
        self._clock = clock
        self._request_s_max = request_s_max
        self._peer: Peer | None = None
        self._quiet_log = QuietLog(log, clock)

    async def ask(
        self,
        request: Request,
        answer: type[ResponseT],
        *,
        code_of: Callable[[ResponseT], int],
        within_s: float | None = None,
        answer_s: float | None = None,
    ) -> ResponseT:
        """Returns the answer of the active controller; `code_of` has its error.

        Raises PeerUnreachable if there is none in time, by default in that of a request, and
        PeerTooOld if it does not know the request. One controller may take `answer_s` of that.
        """
        limit_s = self._request_s_max if within_s is None else within_s
        active: ActiveNode | None = None
        reason = "no active controller is known"
        try:
            async with asyncio.timeout(limit_s):
                failures = 0
                while True:
                    active = await self._quorum.found()
                    try:
                        found = await self._peer_at(active.address).call(
                            request, answer, timeout_s=answer_s or limit_s
                        )
                    except PeerTooOld:
                        raise
                    except PeerError as error:
                        reason = str(error)
                        self._note_failure(active, error)
                    else:
                        self._quorum.versions = self._peer_at(active.address).versions
                        code = code_of(found)
                        if code != ErrorCode.NOT_CONTROLLER and self._is_believed(active):
                            return found
                        reason = f"{active} is active no more"
                    self._quorum.doubt(active)
                    failures += 1
                    await asyncio.sleep(RETRIES.wait_s(failures))
        except TimeoutError:
            raise PeerUnreachable(f"no controller answered in {limit_s:g} s: {reason}") from None

    def versions_of(self, key: ApiKey) -> VersionRange | None:
        """Returns the versions that the controllers take, maybe none; None if nothing is known."""
        known = self._quorum.versions
        return known.get(key, NO_VERSION) if known else None

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _is_believed(self, active: ActiveNode) -> bool:
        return active.epoch >= self._quorum.epoch

    def _peer_at(self, address: Address) -> Peer:
        if self._peer is None or self._peer.address != address:
            self.close()
            self._peer = Peer(address, self._connect, self._clock)
        return self._peer

    def _note_failure(self, active: ActiveNode, error: PeerError) -> None:
        level = logging.ERROR if isinstance(error, PeerRefused) else logging.WARNING
        fields = {"controller": str(active), "reason": str(error)}
        self._quiet_log.say(level, "the controller does not answer", str(active), fields)
