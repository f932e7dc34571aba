"""Parked JoinGroup and SyncGroup requests, which wait for other members.

A group knows only tickets; this module maps them to requests. An answer for a ticket without a
request, because its client gave up, is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from strandline.broker.coordination.model.classic_messages import Answer, Ticket


class ParkedRequest:
    """One parked request; a context manager, so that it is removed in any case."""

    def __init__(self, ticket: Ticket, parked: dict[Ticket, asyncio.Future[Answer]]) -> None:
        self.ticket = ticket
        self._parked = parked
        self._answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        parked[ticket] = self._answered

    def __enter__(self) -> ParkedRequest:
        return self

    def __exit__(self, *_: object) -> None:
        self._parked.pop(self.ticket, None)

    async def answer(self) -> Answer:
        """Waits for the answer."""
        return await self._answered


class ParkedRequests:
    """All parked requests of one coordinator. Used on the event loop only."""

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._parked: dict[Ticket, asyncio.Future[Answer]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def next_ticket(self) -> Ticket:
        """Returns a ticket for a request that is answered without waiting."""
        return next(self._tickets)

    def park(self) -> ParkedRequest:
        return ParkedRequest(self.next_ticket(), self._parked)

    def answer(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            answered = self._parked.pop(answer.ticket, None)
            if answered is not None and not answered.done():
                answered.set_result(answer)
