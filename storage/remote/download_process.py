"""Downloads in a process of their own: receiving and checking share no interpreter with the loop.

    reader threads                                       download process
    fetch(block) --- source, range, block --->  channel  ranged GET into the block, CRCs
    check(file)  --- file, range --->           channel  CRCs of the file where it lies
                 <-- index of its batches ---   (one for each download at a time)

The blocks are shared memory, so the bytes never pass through the broker's Python; it only sends
them on. The child knows one case, that all goes well. Anything else, and also a child that is not
there (yet), makes `fetch` answer None, and the caller downloads in this process as ever: retries,
errors and what they are called have one home, the store. After that the child is left alone for a
while that doubles, so that a store in trouble is not asked twice each time.

    none --- STARTS_AFTER downloads ---> starting --- says that it is ready ---> ready
      ^                                                                            |
      +--- idle for IDLE_S, died, or overdue (killed: it must not write to a block again) ---+

The child ends when its sockets close, so also when the broker is killed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from strandline.storage.child_process import ChildFailed, ChildProcess, program_of
from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import TierError
from strandline.storage.files import OpenFile
from strandline.storage.model import Offset
from strandline.storage.remote.batch_index import BatchIndex
from strandline.storage.remote.block_memory import BlockMemory
from strandline.storage.remote.direct_read import ReadsDirectly
from strandline.storage.remote.download_messages import CheckRequest, DownloadRequest, NotDone
from strandline.storage.remote.segment_index import ChunkKey

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

log = logging.getLogger(__name__)

CHILD_PROGRAM = program_of("strandline.storage.remote.download_child")
# Who reads a record here and there needs no second process.
STARTS_AFTER = 2
# Long enough for a consumer that pauses, short enough to give the memory back.
IDLE_S = 60.0
# How long the child is left alone after something went wrong; doubled up to the second.
REST_FIRST_S = 1.0
REST_S_MAX = 60.0
# Imports take 0.2 s; on a machine with much else to do, many times that.
START_S_MAX = 30.0
# What the child may take beyond the time of the request before it is killed.
OVERDUE_S = 5.0
# For reading and checking one chunk of a local file.
CHECK_S_MAX = 30.0
# Each is a thread in the child and two descriptors.
CHANNELS_MAX = 16


class _Child:
    """A process, its free channels, and the blocks that it has mapped."""

    def __init__(self, channel_count: int, now_s: float) -> None:
        """Raises ChildFailed."""
        from multiprocessing.connection import Pipe
        from multiprocessing.reduction import send_handle

        self.process = ChildProcess(CHILD_PROGRAM)
        self.started_s = now_s
        self.is_ready = False
        self.known: set[int] = set()
        self.free: list[Connection] = []
        self.channel_count = channel_count
        try:
            self.process.connection.send(channel_count)
            for _ in range(channel_count):
                ours, theirs = Pipe(duplex=True)
                send_handle(self.process.connection, theirs.fileno(), self.process.pid)
                theirs.close()
                self.free.append(ours)
        except OSError as error:
            self.process.kill()
            raise ChildFailed(f"cannot set up a child process: {error}") from error

    @property
    def is_idle(self) -> bool:
        return len(self.free) == self.channel_count


class DownloadProcess:
    """Owner of the child. Thread-safe; the methods block and belong in a worker."""

    def __init__(
        self, store: ReadsDirectly, *, parallel_max: int, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._channel_count = min(parallel_max, CHANNELS_MAX)
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._asked_count = 0
        self._used_s = 0.0
        self._rest_s = 0.0
        self._rest_until_s = 0.0
        self._is_closed = False
        # Blocks that are gone and that the child may still have mapped.
        self._forgotten: deque[int] = deque(maxlen=1024)
        self.fetched_count = 0

    def resize(self, parallel_max: int) -> None:
        """The next child takes so many downloads at a time; with this one, others wait or are
        done without it."""
        self._channel_count = min(parallel_max, CHANNELS_MAX)

    @property
    def pid(self) -> int | None:
        """The child's, while there is one."""
        child = self._child
        return None if child is None else child.process.pid

    def fetch(
        self, key: ChunkKey, memory: BlockMemory, *, base_offset: Offset
    ) -> BatchIndex | NotDone | None:
        """Fills the beginning of `memory` with the bytes of `key` and checks them.

        None, or NotDone with what was wrong, if the caller must download by itself; then nobody
        else writes to the block any more.
        """
        if memory.descriptor < 0:
            return None
        try:
            source = self._store.direct_read(key.log_key)
        except TierError:
            return None
        taken = None if source is None else self._take()
        if source is None or taken is None:
            return None
        child, channel = taken
        with self._lock:
            forgotten = tuple(self._forgotten)
            self._forgotten.clear()
            # The block is this caller's alone until it returns.
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
        )
        descriptor = memory.descriptor if is_new else None
        answer = self._ask(child, channel, request, descriptor, wait_s=source.request_s)
        if isinstance(answer, BatchIndex) or (answer is not None and answer.is_corrupt):
            self._store.note_direct_read(key.size_bytes)
        return answer

    def check(
        self, key: ChunkKey, file: OpenFile, *, base_offset: Offset
    ) -> BatchIndex | NotDone | None:
        """Checks the bytes of `key` where they lie, in the object's file.

        None, or NotDone with what was wrong, if the caller must look by itself.
        """
        taken = self._take()
        if taken is None:
            return None
        child, channel = taken
        request = CheckRequest(
            start=key.position, size_bytes=key.size_bytes, base_offset=base_offset
        )
        return self._ask(child, channel, request, file.fileno(), wait_s=CHECK_S_MAX)

    def _ask(
        self,
        child: _Child,
        channel: Connection,
        request: DownloadRequest | CheckRequest,
        descriptor: int | None,
        *,
        wait_s: float,
    ) -> BatchIndex | NotDone | None:
        """The child's answer; None if there is none, and then no child either."""
        try:
            channel.send(request)
            if descriptor is not None:
                from multiprocessing.reduction import send_handle

                send_handle(channel, descriptor, child.process.pid)
            if not channel.poll(wait_s + OVERDUE_S):
                raise TimeoutError(f"no answer in {wait_s + OVERDUE_S:g} s")
            answer: object = channel.recv()
        except (EOFError, OSError) as error:
            self._lose(child, error)
            return None
        assert isinstance(answer, BatchIndex | NotDone), answer
        self._give_back(child, channel, answer)
        return answer

    def forget(self, block_number: int) -> None:
        """Tells the child, with its next request, that a block is gone. Never blocks."""
        self._forgotten.append(block_number)

    def end_if_idle(self) -> bool:
        """Ends the child if nobody needed it for a while; whether there still is one."""
        with self._lock:
            child = self._child
            if child is None:
                self._asked_count = 0
                return False
            if self._clock.monotonic_s() - self._used_s < IDLE_S or not child.is_idle:
                return True
            self._child = None
            self._asked_count = 0
        _end(child)
        return False

    def close(self) -> None:
        """Ends the child for good; what it is downloading fails at once. Never blocks for long."""
        with self._lock:
            self._is_closed = True
            child, self._child = self._child, None
        if child is not None:
            child.process.abandon()

    def __repr__(self) -> str:
        return f"<DownloadProcess pid={self.pid} fetched={self.fetched_count}>"

    # --- the child ---------------------------------------------------------------------------

    def _take(self) -> tuple[_Child, Connection] | None:
        """A ready child and a channel to it; starts one if it is time."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._asked_count += 1
            self._used_s = now_s
            if self._is_closed or now_s < self._rest_until_s or self._asked_count <= STARTS_AFTER:
                return None
            if self._child is None:
                try:
                    self._child = _Child(self._channel_count, now_s)
                except ChildFailed as error:
                    self._rest(str(error))
                return None
            child = self._child
            try:
                is_ready = child.is_ready or self._became_ready(child, now_s)
            except (EOFError, OSError) as error:
                failure: Exception = error
            else:
                if not is_ready or not child.free:
                    return None
                return child, child.free.pop()
        self._lose(child, failure)
        return None

    @staticmethod
    def _became_ready(child: _Child, now_s: float) -> bool:
        if child.process.connection.poll(0):
            child.is_ready = bool(child.process.connection.recv())
        elif now_s - child.started_s > START_S_MAX:
            raise TimeoutError(f"not ready within {START_S_MAX:g} s")
        return child.is_ready

    def _give_back(self, child: _Child, channel: Connection, answer: BatchIndex | NotDone) -> None:
        with self._lock:
            child.free.append(channel)
            self._used_s = self._clock.monotonic_s()
            if isinstance(answer, NotDone):
                if not answer.is_corrupt:
                    self._rest(answer.detail)
            else:
                self._rest_s = 0.0
                self.fetched_count += 1

    def _lose(self, child: _Child, error: Exception) -> None:
        """Makes sure that the child is dead, and that a later fetch starts another."""
        with self._lock:
            is_ours = self._child is child
            if is_ours:
                self._child = None
                self._rest(f"the download process ended: {type(error).__name__} {error}")
        child.process.kill()

    def _rest(self, reason: str) -> None:
        self._rest_s = min(max(2 * self._rest_s, REST_FIRST_S), REST_S_MAX)
        self._rest_until_s = self._clock.monotonic_s() + self._rest_s
        log.info(
            "cold reads go the long way for a while",
            extra={"fields": {"reason": reason, "rest_s": self._rest_s}},
        )


def _end(child: _Child) -> None:
    for channel in child.free:
        channel.close()
    child.process.end()


def download_process(store: object, *, parallel_max: int) -> DownloadProcess | None:
    """The process for a store whose objects can be read by others; None for the rest."""
    return (
        DownloadProcess(store, parallel_max=parallel_max)
        if isinstance(store, ReadsDirectly)
        else None
    )
