"""Requests of members that wait for others: JoinGroup and SyncGroup, from the ticket to the answer.

A group knows only tickets; here is who holds them. Whoever gave up waiting is not told, and an
answer for a ticket that nobody holds is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from strandline.broker.coordination.values.group_values import Answer, Ticket


class Waiting:
    """One request that is parked; use it as a context, so that it is forgotten in any case."""

    def __init__(self, ticket: Ticket, parked: dict[Ticket, asyncio.Future[Answer]]) -> None:
        self.ticket = ticket
        self._parked = parked
        self._answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        parked[ticket] = self._answered

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._parked.pop(self.ticket, None)

    async def answer(self) -> Answer:
        """Waits for it."""
        return await self._answered


class WaitingRequests:
    """Every parked request of one coordinator. Used on the event loop only."""

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._parked: dict[Ticket, asyncio.Future[Answer]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def next_ticket(self) -> Ticket:
        """A ticket for a request that is answered without waiting here."""
        return next(self._tickets)

    def park(self) -> Waiting:
        return Waiting(self.next_ticket(), self._parked)

    def answer(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            answered = self._parked.pop(answer.ticket, None)
            if answered is not None and not answered.done():
                answered.set_result(answer)
