"""The active controller: the only one that changes the metadata, one entry after the other.

    1 decide on the image (pure)   2 append the records to the metadata log (durable)
    3 the view takes over the new image, and its followers apply it   4 answer

A crash after 2 loses the answer, not the change: a start publishes the whole image. One entry is in
flight; whoever comes meanwhile waits, and decides on the image after it. A heartbeat that changes
nothing does not wait: on a disk whose syncs are late, brokers that live would seem to hang. A
change of very many things is several entries, one after the other (`Decision.then`). An entry that
was begun is published also if whoever asked for it has gone: nobody else would tell those who
follow the log.

What it decides on a request of a type is a pure function, given when it is made: those of
configurations and quotas lie above.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeAlias

from strandline.broker.cluster.metadata.controller_messages import (
    ControllerRequest,
    Decision,
    ResultT,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata_log import MetadataLog, MetadataRaced
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.storage.concurrency.tasks import to_its_end
from strandline.storage.errors import StorageError
from strandline.storage.model import Offset

# By the type of the request, what is decided on an image.
Decisions: TypeAlias = Mapping[
    type[ControllerRequest[Any]], Callable[[MetadataImage, Any], Decision[Any]]
]

# Losing the race this often in a row means that another writer appends in a loop.
RACES_MAX = 10


class ActiveController:
    """Decides on the metadata, and appends to their log."""

    def __init__(
        self,
        view: MetadataView,
        metadata_log: MetadataLog,
        decisions: Decisions,
        *,
        executor: Executor,
        on_append: Callable[[Sequence[MetadataRecord], Offset], None] = lambda *_: None,
    ) -> None:
        """`executor` runs the blocking appends; one worker is enough.

        `on_append` is called with the records of an entry that is durable, and the offset of the
        first one, before anybody follows it.
        """
        self._on_append = on_append
        self.view = view
        self._decisions = decisions
        self._metadata_log = metadata_log
        self._executor = executor
        self._changing = asyncio.Lock()
        # The outcome of the last append is unknown.
        self._unsure = False

    async def ask(self, request: ControllerRequest[ResultT]) -> Sequence[ResultT]:
        """Decides on the newest image and carries the decision out.

        Raises StorageError if the metadata log cannot be written. The outcome of the append is then
        unknown, so the next change reads the log again first and applies what it holds.
        """
        if request.overtakes and self._changing.locked() and not self._unsure:
            decision = self.decide(request)
            if not decision.records and decision.then is None:
                return decision.results
        await self._changing.acquire()
        return await to_its_end(self._ask(request))

    async def finish(self) -> None:
        """Returns when no entry is in flight."""
        async with self._changing:
            pass

    async def _ask(self, request: ControllerRequest[ResultT]) -> Sequence[ResultT]:
        """Decides, and lets the next one change the metadata."""
        try:
            if self._unsure:
                await self._refresh()
            decision = await self._carry_out(lambda _: self.decide(request))
            while decision.then is not None:
                decision = await self._carry_out(decision.then)
            return decision.results  # 4
        finally:
            self._changing.release()

    async def _carry_out(
        self, decide: Callable[[MetadataImage], Decision[ResultT]]
    ) -> Decision[ResultT]:
        """Appends what is decided on the newest image; returns that. Raises StorageError."""
        loop = asyncio.get_running_loop()
        for _ in range(RACES_MAX):
            decision = decide(self.view.image)  # 1
            if not decision.records:
                return decision
            try:
                delta, image = await loop.run_in_executor(  # 2
                    self._executor, self._metadata_log.append, decision.records
                )
            except MetadataRaced:
                # Another broker appended first: the image now includes its change.
                await self.view.take_over(self._metadata_log.image)
                continue
            except StorageError:
                self._unsure = True
                raise
            self._on_append(decision.records, image.next_offset - len(decision.records))
            await self.view.take_over(image, delta)  # 3
            return decision
        raise StorageError(f"the metadata log was changed by others {RACES_MAX} times in a row")

    def decide(self, request: ControllerRequest[ResultT]) -> Decision[ResultT]:
        """Returns what is decided on the image of now."""
        return self._decisions[type(request)](self.view.image, request)

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        image = await loop.run_in_executor(self._executor, self._metadata_log.refresh)
        self._unsure = False
        await self.view.take_over(image)
