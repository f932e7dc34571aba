"""Downloads in a process of their own: receiving and checking share no interpreter with the loop.

    broker                                               download process
    fetch(block) --- source, range, block --->  channel  ranged GET into the block, CRCs
    check(file)  --- file, range --->           channel  CRCs of the file where it lies
                 <-- index of its batches ---   (one for each download at a time)

The blocks are shared memory, so the bytes never pass through the broker's Python; it only sends
them on. The child knows one case, that all goes well. Anything else makes `fetch` answer NotDone or
None, and the caller downloads by the store as ever: retries, errors and what they are called have
one home. After that the child is left alone for a while that doubles, so that a store in trouble is
not asked twice each time.

As long as there is no child (yet), or all its channels are taken, the worker that called `fetch`
does what the child would do (`checked_get`): the SDK takes several times the processor time, just
when a reader waits for its first chunks. Not over TLS: the SDK has connections that are open.

`fetch` and `check` wait for the answer and belong in a worker. Most chunks need none: where the
child is ready and it is known where the object lies, `begin_fetch` and `begin_check` send the
request from the event loop, and the answer comes there as a callback. So a chunk costs two wake-ups
of the broker, and no thread of it competes with the loop for the interpreter.

    none --- a chunk is needed soon ---> starting --- says that it is ready ---> ready
      ^                                                                            |
      +--- idle for IDLE_S, died, or overdue (killed: it must not write to a block again) ---+

A start takes 35 ms of a core and is begun (`prepare`) while the first index and the first chunk are
on their way, so that a consumer that reads on finds it done.

The child ends when its sockets close, so also when the broker is killed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import TierError
from strandline.storage.files import OpenFile
from strandline.storage.model import Offset, Position
from strandline.storage.remote.download.block_memory import BlockMemory
from strandline.storage.remote.download.channel import Channel, words_of
from strandline.storage.remote.download.checked_get import CheckedGets
from strandline.storage.remote.download.messages import (
    Answer,
    CheckRequest,
    DownloadRequest,
    NotDone,
    Request,
)
from strandline.storage.remote.download.started_child import StartedChild
from strandline.storage.remote.download.width import DownloadWidth
from strandline.storage.remote.object_store.direct_read import DirectRead, ReadsDirectly
from strandline.storage.remote.object_store.known_sources import KnownSources
from strandline.storage.remote.segment.batch_index import BatchIndex
from strandline.storage.remote.segment.index import ChunkKey
from strandline.storage.system.child_process import ChildFailed

log = logging.getLogger(__name__)

# Long enough for a consumer that pauses, short enough to give the memory back.
IDLE_S = 60.0
# How long the child is left alone after something went wrong; doubled up to the second.
REST_FIRST_S = 1.0
REST_S_MAX = 60.0
# What the child may take beyond the time of the request before it is killed.
OVERDUE_S = 5.0
# For reading and checking one chunk of a local file.
CHECK_S_MAX = 30.0
# Each is a thread in the child and two descriptors.
CHANNELS_MAX = 16
# How long the loop goes by what a worker was told of where an object lies. Less than the time by
# which a signed URL outlives its use (`S3Store`).
SOURCE_KNOWN_S = 60.0
# As many segments as are read at the same time, with room to spare.
SOURCES_MAX = 512


@dataclass(frozen=True, slots=True)
class Lost:
    """The child did not answer. It may write to the block until `bury`, which blocks, returns."""

    bury: Callable[[], None]


OnAnswer: TypeAlias = Callable[[BatchIndex | NotDone | Lost], None]


class DownloadProcess:
    """Owner of the child. Thread-safe; methods block where nothing else is said of them."""

    def __init__(
        self, store: ReadsDirectly, *, parallel_max: int, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._channel_count = min(parallel_max, CHANNELS_MAX)
        self._lock = threading.Lock()
        self._child: StartedChild | None = None
        self._is_starting = False
        self._used_s = 0.0
        self._rest_s = 0.0
        self._rest_until_s = 0.0
        self._is_closed = False
        # What comes before a child is ready, or while all its channels are taken.
        self._here = CheckedGets(self._clock)
        # What is no chunk.
        self._small = CheckedGets(self._clock)
        # By log key.
        self._sources = KnownSources(known_s=SOURCE_KNOWN_S, count_max=SOURCES_MAX)
        # Blocks that are gone and that the child may still have mapped.
        self._forgotten: deque[int] = deque(maxlen=1024)
        self.fetched_count = 0
        # How fast each range that begins may be received or checked; 0: as fast as it goes.
        self.bytes_per_s = 0
        self._width = DownloadWidth()

    def resize(self, parallel_max: int) -> None:
        """The next child takes so many downloads at a time; this one keeps its channels."""
        self._channel_count = min(parallel_max, CHANNELS_MAX)

    def width(self, most: int) -> int:
        """How many ranges at the same time bring all that the store gives; `most` at the most."""
        # Whoever is held back is so by other means.
        return most if self.bytes_per_s else self._width.of(most)

    @property
    def is_missing(self) -> bool:
        """Whether `prepare` would start a child. Does not block."""
        if self._child is not None or self._is_starting or self._is_closed:
            return False
        return self._clock.monotonic_s() >= self._rest_until_s

    @property
    def pid(self) -> int | None:
        """The child's, while there is one."""
        child = self._child
        return None if child is None else child.process.pid

    def fetch(self, key: ChunkKey, memory: BlockMemory, *, base_offset: Offset) -> Answer | None:
        """Fills the beginning of `memory` with the bytes of `key` and checks them.

        None, or NotDone with what was wrong, if the caller must ask the store; then nobody else
        writes to the block any more. Without a child this thread does it, if it is plain http.
        """
        if memory.descriptor < 0:
            return None
        try:
            source = self._store.direct_read(key.log_key)
        except TierError:
            return None
        if source is None:
            return None
        taken = self._take()
        if taken is None:
            answer = self._fetch_here(source, key, memory, base_offset)
            self._note_read(key, answer)
            return answer
        child, channel = taken
        self._here.close()
        with self._lock:
            self._sources.note(key.log_key, source, self._clock.monotonic_s())
            request, descriptor = self._request(child, source, key, memory, base_offset)
        answer = self._ask(child, channel, request, descriptor, wait_s=source.request_s)
        self._note_read(key, answer)
        return answer

    def _fetch_here(
        self, source: DirectRead, key: ChunkKey, memory: BlockMemory, base_offset: Offset
    ) -> Answer | None:
        """As the child would do it, by this thread; None if the store shall do it."""
        with self._lock:
            is_resting = self._clock.monotonic_s() < self._rest_until_s
            if self._is_closed or is_resting or not self._here.takes(source):
                return None
        memory.populate()
        began_s, bytes_per_s = self._clock.monotonic_s(), self.bytes_per_s
        with memoryview(memory.mapping) as whole, whole[: key.size_bytes] as target:
            answer = self._here.get(
                source,
                target,
                start=key.position,
                base_offset=base_offset,
                bytes_per_s=bytes_per_s,
            )
        if not bytes_per_s:
            self._note_time(key, answer, began_s)
        if isinstance(answer, NotDone) and not answer.is_corrupt:
            with self._lock:
                self._rest(answer.detail)
        return answer

    def get_range(self, key: str, start: Position, end: Position) -> bytes | None:
        """A few bytes of an object that is no chunk, in this thread and past the SDK, which takes
        ten times as long for them. None if the caller must ask the store.
        """
        with self._lock:
            if self._is_closed or self._clock.monotonic_s() < self._rest_until_s:
                return None
        try:
            source = self._store.direct_read(key)
        except TierError:
            return None
        if source is None or not self._small.takes(source):
            return None
        found = self._small.get_bytes(source, start, end)
        if isinstance(found, NotDone):
            with self._lock:
                self._rest(found.detail)
            return None
        self._store.note_direct_read(len(found))
        return found

    def begin_fetch(
        self, key: ChunkKey, memory: BlockMemory, *, base_offset: Offset, on_answer: OnAnswer
    ) -> bool:
        """As `fetch`, on the event loop: `on_answer` is called there. Does not block.

        False if somebody has to be waited for first: then nothing has begun, and `fetch` is asked.
        """
        if memory.descriptor < 0 or not self._lock.acquire(blocking=False):
            return False
        try:
            is_known, source = self._sources.find(key.log_key, self._clock.monotonic_s())
            if not is_known or source is None:
                return False
            taken = self._take_ready()
            if taken is None:
                return False
            child, channel = taken
            request, descriptor = self._request(child, source, key, memory, base_offset)
        finally:
            self._lock.release()
        began_s = self._clock.monotonic_s()

        def answered(answer: BatchIndex | NotDone | Lost) -> None:
            if not request.bytes_per_s:
                self._note_time(key, answer, began_s)
            self._note_read(key, None if isinstance(answer, Lost) else answer)
            on_answer(answer)

        self._begin(child, channel, request, descriptor, answered, wait_s=source.request_s)
        return True

    def _request(
        self,
        child: StartedChild,
        source: DirectRead,
        key: ChunkKey,
        memory: BlockMemory,
        base_offset: Offset,
    ) -> tuple[DownloadRequest, int | None]:
        """The request for a range, and the descriptor that goes with it. With the lock held."""
        # One by one: whatever thread drops a block may add it meanwhile.
        forgotten = tuple(self._forgotten.popleft() for _ in range(len(self._forgotten)))
        # The block is the caller's alone until the answer is there.
        is_new = memory.number not in child.known
        child.known.add(memory.number)
        child.known.difference_update(forgotten)
        request = DownloadRequest(
            source=source,
            start=key.position,
            size_bytes=key.size_bytes,
            base_offset=base_offset,
            block=memory.number,
            block_bytes=len(memory),
            is_new=is_new,
            forgotten=forgotten,
            bytes_per_s=self.bytes_per_s,
        )
        return request, memory.descriptor if is_new else None

    def _note_read(self, key: ChunkKey, answer: Answer | None) -> None:
        if isinstance(answer, BatchIndex) or (answer is not None and answer.is_corrupt):
            self._store.note_direct_read(key.size_bytes)

    def _note_time(self, key: ChunkKey, answer: Answer | Lost, began_s: float) -> None:
        if isinstance(answer, BatchIndex):
            self._width.note(key.size_bytes, self._clock.monotonic_s() - began_s)

    def check(self, key: ChunkKey, file: OpenFile, *, base_offset: Offset) -> Answer | None:
        """Checks the bytes of `key` where they lie, in the object's file.

        None, or NotDone with what was wrong, if the caller must look by itself.
        """
        taken = self._take()
        if taken is None:
            return None
        child, channel = taken
        request = self._check_request(key, base_offset)
        return self._ask(child, channel, request, file.fileno(), wait_s=CHECK_S_MAX)

    def begin_check(
        self, key: ChunkKey, file: OpenFile, *, base_offset: Offset, on_answer: OnAnswer
    ) -> bool:
        """As `check`, on the event loop; see `begin_fetch`. Does not block."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            taken = self._take_ready()
        finally:
            self._lock.release()
        if taken is None:
            return False
        request = self._check_request(key, base_offset)
        self._begin(*taken, request, file.fileno(), on_answer, wait_s=CHECK_S_MAX)
        return True

    def _check_request(self, key: ChunkKey, base_offset: Offset) -> CheckRequest:
        return CheckRequest(
            start=key.position,
            size_bytes=key.size_bytes,
            base_offset=base_offset,
            bytes_per_s=self.bytes_per_s,
        )

    def _ask(
        self,
        child: StartedChild,
        channel: Channel,
        request: Request,
        descriptor: int | None,
        *,
        wait_s: float,
    ) -> Answer | None:
        """The child's answer; None if there is none, and then no child either."""
        try:
            channel.send(request, descriptor)
            answer = channel.receive(wait_s=wait_s + OVERDUE_S)
        except (EOFError, OSError) as error:
            self._lose(child, words_of(error))
            return None
        self._give_back(child, channel, answer)
        return answer

    def _begin(
        self,
        child: StartedChild,
        channel: Channel,
        request: Request,
        descriptor: int | None,
        on_answer: OnAnswer,
        *,
        wait_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        number = channel.fileno()

        def end(answer: BatchIndex | NotDone | Lost) -> None:
            overdue.cancel()
            loop.remove_reader(number)
            if not isinstance(answer, Lost):
                self._give_back(child, channel, answer)
            on_answer(answer)

        def lose(reason: str) -> None:
            end(Lost(lambda: self._lose(child, reason)))

        def readable() -> None:
            try:
                answer = channel.receive_some()
            except (EOFError, OSError) as error:
                lose(words_of(error))
            else:
                if answer is not None:
                    end(answer)

        late_s = wait_s + OVERDUE_S
        overdue = loop.call_later(late_s, lambda: lose(f"no answer in {late_s:g} s"))
        try:
            channel.send(request, descriptor)
        except OSError as error:
            # Not from here: the caller does not know yet that anything has begun.
            loop.call_soon(lose, words_of(error))
        else:
            loop.add_reader(number, readable)

    def forget(self, block_number: int) -> None:
        """Tells the child, with its next request, that a block is gone. Never blocks."""
        self._forgotten.append(block_number)

    def end_if_idle(self) -> bool:
        """Ends the child if nobody needed it for a while; whether there still is one."""
        with self._lock:
            child = self._child
            is_pausing = self._clock.monotonic_s() - self._used_s < IDLE_S
            if child is not None and (is_pausing or not child.is_idle):
                return True
            self._child = None
        self._here.close()
        self._small.close()
        if child is not None:
            child.end()
        return False

    def close(self) -> None:
        """Ends the child for good; what it is downloading fails at once. Never blocks for long."""
        with self._lock:
            self._is_closed = True
            child, self._child = self._child, None
        self._here.close()
        self._small.close()
        if child is not None:
            child.process.abandon()

    def __repr__(self) -> str:
        return f"<DownloadProcess pid={self.pid} fetched={self.fetched_count}>"

    # --- the child ---------------------------------------------------------------------------

    def prepare(self) -> None:
        """Starts the child where there is none: a chunk will be asked for soon."""
        with self._lock:
            if not self.is_missing:
                return
            self._is_starting = True
            now_s = self._note_use()
        child: StartedChild | None = None
        try:
            # Without the lock, which the event loop takes.
            child = StartedChild(self._channel_count, now_s)
        except ChildFailed as error:
            with self._lock:
                self._rest(str(error))
        finally:
            with self._lock:
                self._is_starting = False
                if not self._is_closed:
                    self._child, child = child, None
        if child is not None:
            child.process.kill()

    def _take(self) -> tuple[StartedChild, Channel] | None:
        """The child and a channel to it, if it is ready."""
        with self._lock:
            now_s, child = self._note_use(), self._child
            if self._is_closed or now_s < self._rest_until_s or child is None:
                return None
            try:
                is_ready = child.is_ready or child.became_ready(now_s)
            except (EOFError, OSError) as error:
                reason = words_of(error)
            else:
                return (child, child.free.pop()) if is_ready and child.free else None
        self._lose(child, reason)
        return None

    def _take_ready(self) -> tuple[StartedChild, Channel] | None:
        """As `_take`, if nothing is to be done for it. With the lock held."""
        child = self._child
        if child is None or not child.is_ready or not child.free or self._is_closed:
            return None
        return (child, child.free.pop()) if self._note_use() >= self._rest_until_s else None

    def _note_use(self) -> float:
        """Somebody needs the child now. With the lock held."""
        self._used_s = self._clock.monotonic_s()
        return self._used_s

    def _give_back(self, child: StartedChild, channel: Channel, answer: Answer) -> None:
        with self._lock:
            child.free.append(channel)
            self._used_s = self._clock.monotonic_s()
            if isinstance(answer, NotDone):
                if not answer.is_corrupt:
                    self._rest(answer.detail)
            else:
                self._rest_s = 0.0
                self.fetched_count += 1

    def _lose(self, child: StartedChild, reason: str) -> None:
        """Makes sure that the child is dead, and that a later fetch starts another."""
        with self._lock:
            is_ours = self._child is child
            if is_ours:
                self._child = None
                self._rest(f"the download process ended: {reason}")
        child.process.kill()

    def _rest(self, reason: str) -> None:
        self._rest_s = min(max(2 * self._rest_s, REST_FIRST_S), REST_S_MAX)
        self._rest_until_s = self._clock.monotonic_s() + self._rest_s
        log.info(
            "cold reads go the long way for a while",
            extra={"fields": {"reason": reason, "rest_s": self._rest_s}},
        )


def download_process(store: object, *, parallel_max: int) -> DownloadProcess | None:
    """The process for a store whose objects can be read by others; None for the rest."""
    if isinstance(store, ReadsDirectly):
        return DownloadProcess(store, parallel_max=parallel_max)
    return None
