"""The HTTP listener for monitoring: three paths, GET and HEAD, one request per connection.

    /metrics   the page, in OpenMetrics if the client prefers it   200
    /healthz   the event loop runs                                 200
    /readyz    clients are served                                  200, 503 with the reason

It shares the loop with Kafka's clients, so all its resources are small: connections, bytes of a
request, seconds per connection. The page is built in pieces, as many per turn of the loop as take a
millisecond and fit into the socket; the next ones are built when these are sent: a client that does
not read costs these and no page. In between the loop serves others. There is no password: bind it
where only monitoring can reach it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import cast

from strandline.broker.telemetry.exposition import Format
from strandline.storage.quiet_log import QuietLog, place_of

log = logging.getLogger(__name__)

# Enough for two Prometheus servers and a person with curl; more are refused.
CONNECTIONS_MAX = 16
# The request line and headers of a monitoring system; a larger request is from another client.
REQUEST_BYTES_MAX = 8 * 1024
# How long a client may send nothing of its request, or read nothing of its answer.
SILENCE_S_MAX = 15.0
# How long pieces are built in one turn of the loop. With one piece per turn, a large page of
# thousands of pieces would wait for as many turns: half a minute where the loop is busy.
TURN_S_MAX = 0.001
# Pieces built in one turn and not taken by the socket stay in memory.
TURN_BYTES_MAX = 64 * 1024
# A page takes as long as the loop lets it: half a second with 10,000 partitions, many times that on
# a busy machine. Prometheus stops at its own scrape_timeout; this limit is for other clients.
CONNECTION_S_MAX = 120.0
_OPENMETRICS = b"application/openmetrics-text"
_END_OF_HEADERS = b"\r\n\r\n"

# Returns why clients cannot be served; empty if they can.
Readiness = Callable[[], str]


class MetricsServer:
    """Owner of the listening socket and its few connections."""

    def __init__(self, page: Callable[[Format], Iterator[str]], unready: Readiness) -> None:
        """`page` builds the metrics; `unready` returns why clients cannot be served, or nothing."""
        self._page = page
        self._unready = unready
        self._quiet_log = QuietLog(log)
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Starts serving; returns the port. Raises OSError if the address cannot be bound."""
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
        """Checks again after a while; closes a connection that is silent, or too old."""
        loop = asyncio.get_running_loop()
        is_over = loop.time() - self._began_s >= CONNECTION_S_MAX
        # While a page is being built the client waits for us.
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
        """Builds and sends as much as one turn of the loop may take; the rest in later turns."""
        if self._pieces is None or self._paused or self._transport is None:
            return
        try:
            piece = _next_of(self._pieces)
        except Exception as error:
            # A page that ends in the middle counts as no page at all.
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
        """Closes the connection in any state."""
        self._pieces = None
        if self._transport is not None:
            self._transport.abort()


def _next_of(pieces: Iterator[str]) -> str | None:
    """Joins as many pieces as one turn of the loop may build; None after the last."""
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
