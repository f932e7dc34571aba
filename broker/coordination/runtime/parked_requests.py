"""Parked JoinGroup and SyncGroup requests, which wait for other members.

A group knows only tickets; this module maps them to requests. An answer for a ticket without a
request, because its client gave up, is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from strandline.broker.coordination.model.classic_messages import Answer, Ticket


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

    @contextmanager
    def park(self) -> Iterator[tuple[Ticket, asyncio.Future[Answer]]]:
        """Yields the ticket of one parked request, and the future of its answer."""
        ticket = self.next_ticket()
        answered = self._parked[ticket] = asyncio.get_running_loop().create_future()
        try:
            yield ticket, answered
        finally:
            self._parked.pop(ticket, None)

    def answer(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            answered = self._parked.pop(answer.ticket, None)
            if answered is not None and not answered.done():
                answered.set_result(answer)
