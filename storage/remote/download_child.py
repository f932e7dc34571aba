"""The child's side of `download_process`: ranges into shared memory, and their batches checked.

    broker   --- DownloadRequest [+ a block's descriptor] --->   one thread per channel
             --- CheckRequest + a file's descriptor --->
             <-- BatchIndex, or NotDone ---

It has no store, no SDK and no credentials: each request says where the bytes lie. Blocks of memory
come as descriptors with the first request that names them and stay mapped until the broker says
that they are gone.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import TYPE_CHECKING

from strandline.storage.child_process import connect_to_parent
from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import CorruptRecords
from strandline.storage.remote.batch_index import BatchIndex, BatchWalk
from strandline.storage.remote.download_messages import CheckRequest, DownloadRequest, NotDone
from strandline.storage.remote.file_check import FileCheck
from strandline.storage.remote.ranged_get import RangedGets, Refused

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Cold reads are served to clients that wait, but hot ones come first.
NICENESS = 5


class _Blocks:
    """The mappings of the broker's blocks, of all channels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mappings: dict[int, mmap.mmap] = {}

    def of(self, request: DownloadRequest, connection: Connection) -> mmap.mmap:
        if request.is_new:
            # Here and below: the broker, which imports the requests, needs none of it.
            from multiprocessing.reduction import recv_handle

            descriptor = recv_handle(connection)
            try:
                mapping = mmap.mmap(
                    descriptor, request.block_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
                )
            finally:
                os.close(descriptor)
        with self._lock:
            for number in request.forgotten:
                # Nobody fills it any more, so dropping it unmaps it.
                self._mappings.pop(number, None)
            if request.is_new:
                self._mappings[request.block] = mapping
            return self._mappings[request.block]


def _serve(connection: Connection, blocks: _Blocks, clock: Clock) -> None:
    """One channel: answers requests until the other end is gone."""
    gets, check = RangedGets(clock), FileCheck()
    while True:
        try:
            request = connection.recv()
            if isinstance(request, CheckRequest):
                answer = _check(check, request, connection)
            else:
                assert isinstance(request, DownloadRequest), request
                mapping = blocks.of(request, connection)
                with memoryview(mapping) as whole, whole[: request.size_bytes] as target:
                    answer = _download(gets, request, target)
            connection.send(answer)
        except (EOFError, OSError):
            connection.close()
            return


def _check(check: FileCheck, request: CheckRequest, connection: Connection) -> BatchIndex | NotDone:
    from multiprocessing.reduction import recv_handle

    descriptor = recv_handle(connection)
    try:
        return check.check(
            descriptor, request.start, request.size_bytes, base_offset=request.base_offset
        )
    except CorruptRecords as error:
        return NotDone(detail=str(error), is_corrupt=True)
    except OSError as error:
        return NotDone(detail=f"{type(error).__name__}: {error}")
    finally:
        os.close(descriptor)


def _download(
    gets: RangedGets, request: DownloadRequest, target: memoryview
) -> BatchIndex | NotDone:
    walk = BatchWalk(request.size_bytes, request.base_offset)

    def received(size_bytes: int) -> None:
        # While it is in the processor's cache, and while the rest is on its way.
        window_bytes = size_bytes - walk.position
        if window_bytes >= walk.missing_bytes or size_bytes == request.size_bytes:
            with target[walk.position : size_bytes] as window:
                walk.add(window)

    try:
        gets.get_into(request.source, target, start=request.start, on_received=received)
        assert walk.is_done, walk.position
        return walk.index
    except Refused as error:
        return NotDone(detail=str(error))
    except CorruptRecords as error:
        return NotDone(detail=str(error), is_corrupt=True)


def main() -> None:
    """The child's program."""
    from multiprocessing.connection import Connection
    from multiprocessing.reduction import recv_handle

    connection = connect_to_parent(niceness=NICENESS)
    blocks, clock = _Blocks(), SystemClock()
    try:
        for _ in range(connection.recv()):
            channel = Connection(recv_handle(connection))
            threading.Thread(target=_serve, args=(channel, blocks, clock), daemon=True).start()
        connection.send(True)
        # Nothing more comes here but the end: of the broker, or of its need for this process.
        connection.recv()
    except (EOFError, OSError):
        return
