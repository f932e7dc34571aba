"""Which controller is active, as this broker knows it.

    bootstrap servers ──an answer names the leader──► leader N under epoch E, at an address
            ▲                                              │
            └───────── it does not answer, or is none ─────┘

Epochs only grow: what a controller of a lower epoch says is not believed, also if it still answers
(KAFKA-14154). Of two answers under one epoch the first with a leader counts, for an epoch has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.broker.peers.address import Address
from strandline.broker.protocol.schema.api import VersionRange

NO_NODE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveNode:
    """The active controller."""

    node_id: int
    epoch: int
    address: Address

    def __str__(self) -> str:
        return f"controller {self.node_id} at {self.address}, epoch {self.epoch}"


class Quorum:
    """What is known of the controllers. Used on the event loop only."""

    def __init__(self, bootstrap: Sequence[Address]) -> None:
        assert bootstrap, "no controller is named"
        self._bootstrap = tuple(bootstrap)
        self._next = 0
        self._epoch = 0
        self._active: ActiveNode | None = None
        self._is_known = asyncio.Event()
        # What the last controller that answered takes, by API key.
        self.versions: Mapping[int, VersionRange] = {}

    def __repr__(self) -> str:
        return f"<Quorum epoch={self._epoch} active={self._active}>"

    @property
    def epoch(self) -> int:
        """The highest epoch that was seen; 0 before any answer."""
        return self._epoch

    @property
    def active(self) -> ActiveNode | None:
        return self._active

    @property
    def known(self) -> Sequence[Address]:
        """The addresses to begin with."""
        return self._bootstrap

    def next_server(self) -> Address:
        """Returns the next of the bootstrap servers, one after the other."""
        address = self._bootstrap[self._next % len(self._bootstrap)]
        self._next += 1
        return address

    def note(self, node_id: int, epoch: int, address: Address | None) -> None:
        """Takes over what an answer says of the leader: -1 if there is none under that epoch.

        Without an address it has to be asked for again. What is older is ignored.
        """
        if epoch < self._epoch:
            return
        if epoch > self._epoch:
            self._epoch = epoch
            self._forget()
        if node_id != NO_NODE and address is not None and self._active is None:
            self._active = ActiveNode(node_id=node_id, epoch=epoch, address=address)
            self._is_known.set()

    def doubt(self, active: ActiveNode) -> None:
        """That controller did not answer, or is active no more: it has to be found again."""
        if self._active is active:
            self._forget()

    async def found(self) -> ActiveNode:
        """Waits until the active controller is known."""
        while self._active is None:
            await self._is_known.wait()
        return self._active

    def _forget(self) -> None:
        self._active = None
        self._is_known.clear()
