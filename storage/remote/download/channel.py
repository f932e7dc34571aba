"""The broker's end of one channel to the download process: one request at a time, and its answer.

Nothing here waits for the child but `receive`, so the event loop may use it as well as a worker.
"""

from __future__ import annotations

import select
import socket

from strandline.storage.remote.download.messages import (
    Answer,
    Request,
    decode_answer,
    encode_request,
)

# An index has 24 bytes a batch; in batches of 16 KB that is 12 KiB for a chunk of 8 MiB.
RECEIVE_BYTES = 256 * 1024


class Channel:
    """See the top of this file. Closed when nobody has it any more."""

    __slots__ = ("_answer_bytes_max", "_received", "_socket")

    def __init__(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._received = bytearray()
        self._answer_bytes_max = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, request: Request, descriptor: int | None) -> None:
        """Raises OSError if it cannot be sent at once: then the child does not listen."""
        message = encode_request(request)
        if descriptor is None:
            sent_bytes = self._socket.send(message)
        else:
            sent_bytes = socket.send_fds(self._socket, [message], [descriptor])
        if sent_bytes != len(message):
            raise BlockingIOError("the download process takes no requests")
        # An index is smaller than the bytes it is about; a refusal has a few words.
        self._answer_bytes_max = request.size_bytes + RECEIVE_BYTES

    def receive_some(self) -> Answer | None:
        """The answer, if all of it is here. Raises EOFError if the child is gone, and OSError."""
        try:
            received = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        if not received:
            raise EOFError("the download process closed its socket")
        self._received += received
        answer = decode_answer(self._received)
        if answer is not None:
            self._received = bytearray()
        elif len(self._received) > self._answer_bytes_max:
            raise OSError("the answer has no end")
        return answer

    def receive(self, *, wait_s: float) -> Answer:
        """The answer. Raises TimeoutError after `wait_s` without a byte, EOFError and OSError."""
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        while True:
            if not readable.poll(wait_s * 1000):
                raise TimeoutError(f"no answer in {wait_s:g} s")
            answer = self.receive_some()
            if answer is not None:
                return answer

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()


def words_of(error: Exception) -> str:
    """What is kept of an error. The error itself has the frames that it came through, and a frame
    that keeps it is in a cycle with it: those of its callers have the chunk's place, which would be
    taken until the next collection.
    """
    return f"{type(error).__name__} {error}"
