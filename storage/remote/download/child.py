"""The child's side of `download_process`: ranges into shared memory, and their batches checked.

    broker   --- DownloadRequest [+ a block's descriptor] --->   one thread per channel
             --- CheckRequest + a file's descriptor --->
             <-- BatchIndex, or NotDone ---

It has no store, no SDK and no credentials: each request says where the bytes lie. Blocks of memory
come as descriptors with the first request that names them and stay mapped until the broker says
that they are gone.

A cold read waits for its start, so it loads next to nothing: half of what a child that talks in
pickled objects needs.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
import threading

from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import CorruptRecords
from strandline.storage.remote.download.checked_get import get_checked
from strandline.storage.remote.download.file_check import FileCheck
from strandline.storage.remote.download.fresh_pages import write_pages
from strandline.storage.remote.download.messages import (
    READY,
    Answer,
    CheckRequest,
    DownloadRequest,
    NotDone,
    encode_answer,
    receive_request,
)
from strandline.storage.remote.download.pacing import PacedSteps
from strandline.storage.remote.download.ranged_get import RangedGets

# Cold reads are served to clients that wait, but hot ones come first.
NICENESS = 5
# From then on a check goes as fast as it can: the broker waits for CHECK_S_MAX (download_process).
PACED_CHECK_S_MAX = 10.0


class _Blocks:
    """The mappings of the broker's blocks, of all channels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mappings: dict[int, mmap.mmap] = {}

    def of(self, request: DownloadRequest, descriptor: int) -> mmap.mmap:
        if request.is_new:
            write_pages(descriptor, request.block_bytes)
            mapping = mmap.mmap(
                descriptor, request.block_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
            )
        with self._lock:
            for number in request.forgotten:
                # Nobody fills it any more, so dropping it unmaps it.
                self._mappings.pop(number, None)
            if request.is_new:
                self._mappings[request.block] = mapping
            return self._mappings[request.block]


def _serve(channel: socket.socket, blocks: _Blocks, clock: Clock) -> None:
    """One channel: answers requests until the other end is gone."""
    gets, steps = RangedGets(clock), PacedSteps(clock)
    check = FileCheck(steps)
    while True:
        descriptor = -1
        try:
            request, descriptor = receive_request(channel)
            if isinstance(request, CheckRequest):
                steps.begin(request.bytes_per_s, until_s=clock.monotonic_s() + PACED_CHECK_S_MAX)
                answer = _check(check, request, descriptor)
            else:
                mapping = blocks.of(request, descriptor)
                with memoryview(mapping) as whole, whole[: request.size_bytes] as target:
                    answer = get_checked(
                        gets,
                        request.source,
                        target,
                        start=request.start,
                        base_offset=request.base_offset,
                        bytes_per_s=request.bytes_per_s,
                    )
            channel.sendall(encode_answer(answer))
        except (EOFError, OSError):
            channel.close()
            return
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _check(check: FileCheck, request: CheckRequest, descriptor: int) -> Answer:
    try:
        return check.check(
            descriptor, request.start, request.size_bytes, base_offset=request.base_offset
        )
    except CorruptRecords as error:
        return NotDone(detail=str(error), is_corrupt=True)
    except OSError as error:
        return NotDone(detail=f"{type(error).__name__}: {error}")


def _interrupt_nobody() -> None:
    """Waits for a core until somebody leaves one, when bytes have come, and takes none from anybody
    who works then: from the loop, or from whoever the loop has just answered.

    Its share of the processors stays what it is. A policy that somebody chose is kept.
    """
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """The child's program; its arguments are the descriptors of its sockets."""
    # Ctrl-C reaches the whole terminal; the broker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    _interrupt_nobody()
    control, *channels = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    blocks, clock = _Blocks(), SystemClock()
    for channel in channels:
        threading.Thread(target=_serve, args=(channel, blocks, clock), daemon=True).start()
    try:
        control.sendall(READY)
        # Nothing more comes here but the end: of the broker, or of its need for this process.
        control.recv(1)
    except OSError:
        return
