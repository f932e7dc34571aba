"""One range of an object, received into memory that is there already: HTTP without a library.

The way of a cold read in the download process, and only for the answer that is expected: 206, the
range that was asked for, a body of known length. Everything else is `Refused`, and whoever asked
takes the long way through the store.

A plain socket is read in blocks with MSG_WAITALL: the kernel fills a block while the packets come
in, and Python takes part once per block. The socket's own receive timeout bounds each of them.

Who shares the machine with live traffic takes its time: then blocks are small, with a sleep between
them (`paced_steps`), whether they come from a server or from a file.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from strandline.storage.remote.download.pacing import PacedSteps
from strandline.storage.system.socket_timeouts import timeval

if TYPE_CHECKING:
    from strandline.storage.clock import Clock
    from strandline.storage.remote.object_store.direct_read import DirectRead

# In between the deadline is looked at, and what came is checked, which is in the cache still.
RECEIVE_BYTES = 1024 * 1024
# S3's heads have less than 1 KiB.
HEAD_BYTES_MAX = 64 * 1024
PARTIAL_CONTENT = b"206"
# No server has closed a connection that was used so recently; later ones are made anew.
KEPT_S_MAX = 15.0


class Refused(Exception):
    """The range did not come as it should; the store may do better, or say what is wrong."""


class _ClosedBefore(Exception):
    """The server had closed the connection before it saw the request."""


class RangedGets:
    """Reads ranges one after the other; keeps the connection. Not thread-safe."""

    def __init__(self, clock: Clock, *, wait_s: Callable[[float], object] | None = None) -> None:
        """`wait_s` waits so many seconds; it is given with a clock that is not the system's."""
        self._clock = clock
        self._steps = PacedSteps(clock, wait_s=wait_s)
        self._socket: socket.socket | None = None
        self._origin = ("", "", "")
        self._used_s = 0.0
        self._on_received: Callable[[int], None] = lambda _: None

    def get_into(
        self,
        source: DirectRead,
        target: memoryview,
        *,
        start: int,
        on_received: Callable[[int], None] = lambda _: None,
        bytes_per_s: int = 0,
    ) -> None:
        """Fills all of `target` with the object's bytes from `start`. Raises Refused.

        `on_received` is told again and again how much of `target` is filled, and may raise. A body
        comes no faster than `bytes_per_s`; 0: as fast as it comes.
        """
        self._on_received = on_received
        deadline_s = self._clock.monotonic_s() + source.request_s
        self._steps.begin(bytes_per_s, until_s=deadline_s)
        try:
            if source.path:
                self._read_file(source.path, target, start)
            else:
                self._request(source, target, start, deadline_s)
        except OSError as error:
            self.close()
            raise Refused(f"{type(error).__name__}: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        kept, self._socket = self._socket, None
        if kept is not None:
            kept.close()

    # --- files -------------------------------------------------------------------------------

    def _read_file(self, path: str, target: memoryview, start: int) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(target):
                block = target[done : done + self._steps.step_bytes(len(target))]
                count = os.preadv(descriptor, [block], start + done)
                if count == 0:
                    raise Refused(f"the file ends after {start + done} bytes")
                done += count
                self._on_received(done)
                if done < len(target):
                    self._steps.rest(done)
        finally:
            os.close(descriptor)

    # --- HTTP --------------------------------------------------------------------------------

    def _request(
        self, source: DirectRead, target: memoryview, start: int, deadline_s: float
    ) -> None:
        url = urlsplit(source.url)
        is_kept = self._is_kept(url, source)
        if not is_kept:
            self._connect(url, source)
        try:
            self._exchange(url, target, start, deadline_s)
        except _ClosedBefore as error:
            if not is_kept:
                raise Refused("the connection was closed without an answer") from error
            self._connect(url, source)
            try:
                self._exchange(url, target, start, deadline_s)
            except _ClosedBefore as again:
                raise Refused("the connection was closed without an answer") from again
        self._used_s = self._clock.monotonic_s()

    def _is_kept(self, url: SplitResult, source: DirectRead) -> bool:
        return (
            self._socket is not None
            and self._origin == (url.scheme, url.netloc, source.ca_file)
            and self._clock.monotonic_s() - self._used_s < KEPT_S_MAX
        )

    def _connect(self, url: SplitResult, source: DirectRead) -> None:
        self.close()
        if url.hostname is None or url.scheme not in ("http", "https"):
            raise Refused(f"no http URL: {url.scheme}://{url.netloc}")
        port = url.port or (443 if url.scheme == "https" else 80)
        connected = socket.create_connection((url.hostname, port), source.connect_s)
        self._socket = connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if url.scheme == "https":
            # Not before it is needed: it takes as long to load as all else here together.
            import ssl

            connected.settimeout(source.read_s)
            context = ssl.create_default_context(cafile=source.ca_file or None)
            self._socket = context.wrap_socket(connected, server_hostname=url.hostname)
        else:
            # Bounds each call by itself; Python's timeouts would poll before each of them.
            bound = timeval(source.read_s)
            connected.settimeout(None)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
        self._origin = (url.scheme, url.netloc, source.ca_file)

    def _exchange(
        self, url: SplitResult, target: memoryview, start: int, deadline_s: float
    ) -> None:
        connected = self._socket
        assert connected is not None
        query = f"?{url.query}" if url.query else ""
        request = (
            f"GET {url.path or '/'}{query} HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Range: bytes={start}-{start + len(target) - 1}\r\n"
            "Accept-Encoding: identity\r\nUser-Agent: strandline\r\n\r\n"
        )
        try:
            connected.sendall(request.encode("ascii"))
            head, body = _receive_head(connected)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _ClosedBefore from error
        fields = _checked_fields(head, start, len(target))
        if len(body) > len(target):
            raise Refused("more bytes than were asked for")
        target[: len(body)] = body
        if body:
            self._on_received(len(body))
        self._receive(connected, target, len(body), deadline_s)
        if fields.get(b"connection", b"").lower() == b"close":
            self.close()

    def _receive(
        self, connected: socket.socket, target: memoryview, done: int, deadline_s: float
    ) -> None:
        # TLS has its own records, and no flags.
        flags = 0 if self._origin[0] == "https" else socket.MSG_WAITALL
        block_bytes = self._steps.step_bytes(RECEIVE_BYTES)
        while done < len(target):
            if self._clock.monotonic_s() > deadline_s:
                raise Refused(f"{done} of {len(target)} bytes came in time")
            block = target[done : done + block_bytes]
            count = connected.recv_into(block, len(block), flags)
            if not count:
                raise Refused(f"body ended after {done} of {len(target)} bytes")
            done += count
            self._on_received(done)
            if done < len(target):
                self._steps.rest(done)


def _receive_head(connected: socket.socket) -> tuple[bytes, bytes]:
    """The head of the answer, and what came of its body with it. Raises _ClosedBefore, Refused."""
    received = b""
    while True:
        block = connected.recv(HEAD_BYTES_MAX)
        if not block and not received:
            raise _ClosedBefore
        received += block
        head, end, body = received.partition(b"\r\n\r\n")
        if end:
            return head, body
        if not block or len(received) > HEAD_BYTES_MAX:
            raise Refused("the answer has no head")


def _checked_fields(head: bytes, start: int, size_bytes: int) -> dict[bytes, bytes]:
    """The header fields of an answer that brings exactly this range. Raises Refused."""
    status_line, *lines = head.split(b"\r\n")
    status = status_line.split(b" ", 2)
    if len(status) < 2 or status[0] != b"HTTP/1.1" or status[1] != PARTIAL_CONTENT:
        raise Refused(f"answered {status_line[:100]!r}")
    fields = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(b":") for line in lines)
    }
    length = -1
    with contextlib.suppress(ValueError):
        length = int(fields.get(b"content-length", b""))
    if (
        length != size_bytes
        or b"transfer-encoding" in fields
        or fields.get(b"content-encoding", b"identity") not in (b"", b"identity")
        or not fields.get(b"content-range", b"").startswith(b"bytes %d-" % start)
    ):
        raise Refused(f"[{start}, {start + size_bytes}) were asked for, the answer brings others")
    return fields
