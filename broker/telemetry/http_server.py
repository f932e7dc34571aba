"""The HTTP listener for monitoring: three paths, GET and HEAD, one request per connection.

    /metrics   the page, in OpenMetrics if the client prefers it   200
    /healthz   the loop turns: somebody answers                    200
    /readyz    clients are served                                  200, 503 with the reason

It shares the loop with Kafka's clients, so it is kept small in everything: connections, bytes of a
request, seconds per connection. The page is made piece by piece, so many in a turn of the loop as
take a millisecond and are no more than the socket takes; the next ones are made when the last are
in the socket: a client that does not read costs these and no page. In between the loop serves
others. It has no password: bind it where only the monitoring gets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import cast

from strandline.broker.telemetry.exposition import Format
from strandline.storage.quiet_log import QuietLog, place_of

log = logging.getLogger(__name__)

# Prometheus, its twin, and somebody with curl; more are turned away.
CONNECTIONS_MAX = 16
# The request line and headers of a monitoring system; what is larger is something else.
REQUEST_BYTES_MAX = 8 * 1024
# So long a client may send nothing of its request, or read nothing of its answer.
SILENCE_S_MAX = 15.0
# So long pieces are made in one turn of the loop. A turn for each of a large page's thousands of
# pieces would take as often as long as a turn does: half a minute where the loop is busy.
TURN_S_MAX = 0.001
# What is made in one turn and not taken by the socket lies in memory.
TURN_BYTES_MAX = 64 * 1024
# A page takes as long as the loop lets it: half a second with 10,000 partitions, many times that on
# a machine that is busy. Prometheus ends it after its own scrape_timeout; this is for who does not.
CONNECTION_S_MAX = 120.0
_OPENMETRICS = b"application/openmetrics-text"
_END_OF_HEADERS = b"\r\n\r\n"

# Why clients cannot be served; empty if they can.
Readiness = Callable[[], str]


class MetricsServer:
    """Owner of the listening socket and its few connections."""

    def __init__(self, page: Callable[[Format], Iterator[str]], unready: Readiness) -> None:
        """`page` makes the metrics; `unready` says why clients cannot be served, or nothing."""
        self._page = page
        self._unready = unready
        self._quiet_log = QuietLog(log)
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Starts to serve; the port. Raises OSError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._page, self._unready, self._connections, self._quiet_log),
            host or None,
            port,
        )
        bound_port: int = self._server.sockets[0].getsockname()[1]
        return bound_port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.abort()

    def __repr__(self) -> str:
        return f"<MetricsServer {len(self._connections)} connections>"


class _Connection(asyncio.Protocol):
    """One request and its answer."""

    def __init__(
        self,
        page: Callable[[Format], Iterator[str]],
        unready: Readiness,
        connections: set[_Connection],
        quiet_log: QuietLog,
    ) -> None:
        self._page = page
        self._unready = unready
        self._connections = connections
        self._quiet_log = quiet_log
        self._received = bytearray()
        self._pieces: Iterator[str] | None = None
        self._paused = False
        self._is_chunked = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._pieces_sent = 0
        self._pieces_seen = 0
        self._began_s = asyncio.get_running_loop().time()

    # --- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._watch()
        self._connections.add(self)
        if len(self._connections) > CONNECTIONS_MAX:
            self._answer(503, "too many connections\n")

    def _watch(self) -> None:
        """Looks again in a while; ends the connection if nothing has moved, or for too long."""
        loop = asyncio.get_running_loop()
        is_over = loop.time() - self._began_s >= CONNECTION_S_MAX
        # A page that is being made is waiting for us, not for the client.
        is_client_due = self._paused or self._pieces is None
        is_silent = is_client_due and self._pieces_sent == self._pieces_seen
        if self._deadline is not None and (is_over or is_silent):
            self.abort()
            return
        self._pieces_seen = self._pieces_sent
        self._deadline = loop.call_later(SILENCE_S_MAX, self._watch)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._pieces = None
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or self._pieces is not None:
            return  # A second request: there is one per connection.
        self._received += data
        if len(self._received) > REQUEST_BYTES_MAX:
            self._answer(431, "the request is too large\n")
        elif _END_OF_HEADERS in self._received:
            self._serve(bytes(self._received))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send_on()

    # --- answering -----------------------------------------------------------------------------

    def _serve(self, request: bytes) -> None:
        line, _, headers = request.partition(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._answer(400, "not a request of HTTP/1\n")
            return
        method, target, version = words
        if method not in (b"GET", b"HEAD"):
            self._answer(405, "GET or HEAD\n")
            return
        with_body = method == b"GET"
        match target.partition(b"?")[0]:
            case b"/metrics":
                self._begin_page(headers, version, with_body=with_body)
            case b"/healthz":
                self._answer(200, "ok\n", with_body=with_body)
            case b"/readyz":
                reason = self._unready()
                self._answer(503 if reason else 200, f"{reason or 'ok'}\n", with_body=with_body)
            case _:
                self._answer(404, "/metrics, /healthz, /readyz\n", with_body=with_body)

    def _begin_page(self, headers: bytes, version: bytes, *, with_body: bool) -> None:
        wanted = Format.OPENMETRICS if _prefers_openmetrics(headers) else Format.TEXT
        self._is_chunked = version != b"HTTP/1.0"
        coding = "Transfer-Encoding: chunked\r\n" if self._is_chunked else ""
        self._write(_head(200, wanted.value, coding))
        self._pieces = self._page(wanted) if with_body else iter(())
        self._send_on()

    def _send_on(self) -> None:
        """Makes and sends as much as a turn of the loop may take; more in another turn."""
        if self._pieces is None or self._paused or self._transport is None:
            return
        try:
            piece = _next_of(self._pieces)
        except Exception as error:
            # A page that ends in the middle is taken for no page at all.
            self._quiet_log.say(
                logging.ERROR,
                "metrics could not be collected",
                place_of(error),
                {},
                error=error,
            )
            self.abort()
            return
        self._pieces_sent += 1
        if piece is None:
            self._pieces = None
            if self._is_chunked:
                self._write(b"0\r\n\r\n")
            self._transport.close()
            return
        if piece:
            content = piece.encode()
            self._write(b"%x\r\n%s\r\n" % (len(content), content) if self._is_chunked else content)
        asyncio.get_running_loop().call_soon(self._send_on)

    def _answer(self, status: int, text: str, *, with_body: bool = True) -> None:
        body = text.encode()
        head = _head(status, "text/plain; charset=utf-8", f"Content-Length: {len(body)}\r\n")
        self._write(head + body if with_body else head)
        if self._transport is not None:
            self._transport.close()

    def _write(self, content: bytes) -> None:
        if self._transport is not None:
            self._transport.write(content)

    def abort(self) -> None:
        """Ends the connection, whatever it is at."""
        self._pieces = None
        if self._transport is not None:
            self._transport.abort()


def _next_of(pieces: Iterator[str]) -> str | None:
    """As many of them as one turn of the loop may make; None behind the last."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + TURN_S_MAX
    made: list[str] = []
    size = 0
    for piece in pieces:
        made.append(piece)
        size += len(piece)
        if size >= TURN_BYTES_MAX or loop.time() >= end_s:
            break
    return "".join(made) if made else None


_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def _head(status: int, content_type: str, more: str) -> bytes:
    return (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n{more}"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    ).encode()


def _prefers_openmetrics(headers: bytes) -> bool:
    """Whether Accept names OpenMetrics; Prometheus names it before the older format."""
    return any(
        name.strip().lower() == b"accept" and _OPENMETRICS in value.lower()
        for name, _, value in (line.partition(b":") for line in headers.split(b"\r\n"))
    )
