"""Questions to other brokers whose answers a synchronous step takes when it is tried again.

    step ──► take(key): no answer yet ──► asked, in the background, with what else waits for that
    step, tried again ──► take(key): the answer, once

What asks goes on trying: the coordinator its markers, a client its batch. So nothing is waited for
here, and an answer that nobody takes is dropped after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.peers.errors import PeerError
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import eager_start

KeyT = TypeVar("KeyT", bound=Hashable)

# Asks one broker all these; the answer has the codes that are known, by key. Raises PeerError.
Ask: TypeAlias = Callable[[NodeId, Sequence[KeyT]], Awaitable[Mapping[KeyT, ErrorCode]]]

# Of one broker at once; the rest follows.
TOGETHER_MAX: Final = 1000
WAITING_MAX: Final = 100_000
# An answer that is older says nothing of now.
ANSWER_S_MAX: Final = 10.0


class AskedElsewhere(Generic[KeyT]):
    """Questions by key, each to one broker. Used on the event loop only."""

    def __init__(
        self, ask: Ask[KeyT], clock: Clock, *, on_answers: Callable[[], None] = lambda: None
    ) -> None:
        """`on_answers` is called when steps may be tried again."""
        self._ask = ask
        self._clock = clock
        self._on_answers = on_answers
        self._waiting: dict[NodeId, dict[KeyT, None]] = {}
        self._asking: dict[NodeId, asyncio.Task[None]] = {}
        # With the time of each.
        self._answers: dict[KeyT, tuple[float, ErrorCode]] = {}

    def __len__(self) -> int:
        """Returns the number of questions without an answer."""
        return sum(map(len, self._waiting.values()))

    def take(self, node_id: NodeId, key: KeyT) -> ErrorCode | None:
        """Returns the answer, once; None if there is none yet, and then it is asked for."""
        answered = self._answers.pop(key, None)
        if answered is not None and self._clock.monotonic_s() - answered[0] <= ANSWER_S_MAX:
            return answered[1]
        if len(self) < WAITING_MAX:
            self._waiting.setdefault(node_id, {})[key] = None
            if node_id not in self._asking:
                self._begin(node_id)
        return None

    def forget(self, is_meant: Callable[[KeyT], bool]) -> None:
        """Drops answers that something has overtaken."""
        for key in [key for key in self._answers if is_meant(key)]:
            del self._answers[key]

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()

    def _begin(self, node_id: NodeId) -> None:
        task = eager_start(self._ask_all(node_id))
        if not task.done():
            self._asking[node_id] = task
            task.add_done_callback(lambda _: self._asking.pop(node_id, None))

    async def _ask_all(self, node_id: NodeId) -> None:
        # What the same turn asks for goes with it.
        await asyncio.sleep(0)
        while keys := tuple(self._waiting.get(node_id, ()))[:TOGETHER_MAX]:
            try:
                answers = await self._ask(node_id, keys)
            except PeerError:
                # Whoever asked tries again, and the leader may be another one by then.
                answers = {}
            now_s = self._clock.monotonic_s()
            waiting = self._waiting[node_id]
            for key in keys:
                waiting.pop(key, None)
                if key in answers:
                    self._answers[key] = now_s, answers[key]
            if not waiting:
                del self._waiting[node_id]
            self._drop_old(now_s)
            if answers:
                self._on_answers()

    def _drop_old(self, now_s: float) -> None:
        for key, (answered_s, _) in tuple(self._answers.items()):
            if now_s - answered_s <= ANSWER_S_MAX:
                break
            del self._answers[key]
