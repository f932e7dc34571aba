"""The HTTP listener for monitoring: three paths, GET and HEAD, one request per connection.

    /metrics   the page, in OpenMetrics if the client prefers it   200
    /healthz   the event loop runs                                 200
    /readyz    clients are served                                  200, 503 with the reason

The listener shares the loop with Kafka's clients, so all its limits are small: connections, bytes
of a request, seconds per connection. Each turn of the loop builds pieces of the page for at most a
millisecond, and the next turn waits until they are sent, so a client that does not read costs no
whole page. There is no password: bind the listener where only monitoring can reach it, or let it
ask for certificates.

The page may be made of what others answer: a supervisor asks its processes for theirs, and hands
each a connection for it (`attend`), which the listener serves without having accepted it.

With TLS each connection begins with a handshake by the context of that moment, as certificates are
renewed. It costs the loop a millisecond, so handshakes begin one after the other, with pauses.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.telemetry.exposition import PageFormat
from strandline.storage.concurrency.tasks import eager_start
from strandline.storage.quiet_log import QuietLog, place_of

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

# Enough for two Prometheus servers and a person with curl; more are refused.
CONNECTIONS_MAX = 16
# Enough for the request line and headers of a monitoring system.
REQUEST_BYTES_MAX = 8 * 1024
# How long a client may send nothing of its request, or read nothing of its answer.
SILENCE_S_MAX = 15.0
# How long pieces are built in one turn of the loop. With one piece per turn, a large page of
# thousands of pieces would wait for as many turns: half a minute where the loop is busy. Not
# `in_turns`: the pieces of a turn are one chunk, and the socket says when the next turn begins.
TURN_S_MAX = 0.001
# Pieces built in one turn and not taken by the socket stay in memory.
TURN_BYTES_MAX = 64 * 1024
# A page takes as long as the loop lets it: half a second with 10,000 partitions, many times that on
# a busy machine. Prometheus stops at its own scrape_timeout; this limit is for other clients.
CONNECTION_S_MAX = 120.0
# Before each handshake: clients that come again and again get a twentieth of the loop at most.
HANDSHAKE_PAUSE_S = 0.02
_OPENMETRICS = b"application/openmetrics-text"

# Builds a page in pieces, perhaps of what it waits for first.
MakePage = Callable[[PageFormat], Iterator[str] | Awaitable[Iterator[str]]]
# Returns why clients cannot be served; empty if they can.
Readiness = Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTls:
    """TLS of the listener: the context of the moment, and who counts handshakes."""

    context: Callable[[], ssl.SSLContext]
    on_done: Callable[[ssl.SSLObject], None]
    # Gets the client's address.
    on_failed: Callable[[str, OSError], None]


class MetricsServer:
    """Owner of the listening socket and its few connections."""

    def __init__(
        self,
        page: MakePage,
        unready: Readiness,
        tls: HttpTls | None = None,
    ) -> None:
        """`page` builds the metrics; `unready` returns why clients cannot be served, or nothing."""
        self._page = page
        self._unready = unready
        self._tls = tls
        self._handshake_turn = asyncio.Lock()
        self._quiet_log = QuietLog(log)
        self._connections: set[asyncio.StreamWriter] = set()
        self._handed: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Starts serving; returns the port. Raises OSError if the address cannot be bound."""
        self._server = await asyncio.start_server(
            partial(self._serve, self._tls), host or None, port, limit=REQUEST_BYTES_MAX
        )
        bound_port: int = self._server.sockets[0].getsockname()[1]
        return bound_port

    def attend(self, connected: socket.socket) -> None:
        """Serves a connection that was handed over by somebody of this machine, without TLS."""
        task = eager_start(self._attend(connected))
        self._handed.add(task)
        task.add_done_callback(self._handed.discard)

    async def _attend(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        try:
            reader, writer = await asyncio.open_connection(sock=connected, limit=REQUEST_BYTES_MAX)
        except OSError:
            connected.close()
            return
        await self._serve(None, reader, writer)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.transport.abort()

    def __repr__(self) -> str:
        return f"<MetricsServer {len(self._connections)} connections>"

    async def _serve(
        self, tls: HttpTls | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answers one request; aborts a connection that is silent, too old, or gone."""
        self._connections.add(writer)
        try:
            async with asyncio.timeout(CONNECTION_S_MAX):
                if tls is not None:
                    await self._shake_hands(tls, writer)
                await self._answer(reader, writer)
                writer.close()
                # A client may leave the rest of its answer unread.
                async with asyncio.timeout(SILENCE_S_MAX):
                    await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        except Exception as error:
            # A page that ends in the middle counts as no page at all.
            self._quiet_log.say(
                logging.ERROR, "metrics could not be collected", place_of(error), {}, error=error
            )
            writer.transport.abort()
        finally:
            self._connections.discard(writer)

    async def _shake_hands(self, tls: HttpTls, writer: asyncio.StreamWriter) -> None:
        """Raises OSError if the handshake fails."""
        # Before anything was read, which the handshake would miss.
        assert isinstance(writer.transport, asyncio.Transport), writer.transport
        writer.transport.pause_reading()
        if len(self._connections) > CONNECTIONS_MAX:
            raise ConnectionRefusedError("too many connections")
        async with self._handshake_turn:
            await asyncio.sleep(HANDSHAKE_PAUSE_S)
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                await writer.start_tls(tls.context())
        except OSError as error:
            host, port = writer.get_extra_info("peername")[:2]
            tls.on_failed(f"{host}:{port}", error)
            raise
        tls.on_done(writer.get_extra_info("ssl_object"))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) > CONNECTIONS_MAX:
            writer.write(_answer(503, "too many connections\n"))
            return
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            writer.write(_answer(431, "the request is too large\n"))
            return
        line, _, headers = request.partition(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            writer.write(_answer(400, "not a request of HTTP/1\n"))
            return
        method, target, version = words
        with_body = method == b"GET"
        match target.partition(b"?")[0]:
            case _ if method not in (b"GET", b"HEAD"):
                writer.write(_answer(405, "GET or HEAD\n"))
            case b"/metrics":
                wanted = (
                    PageFormat.OPENMETRICS if _prefers_openmetrics(headers) else PageFormat.TEXT
                )
                pieces = await self._pieces(wanted) if with_body else iter(())
                await _send_page(writer, wanted, pieces, is_chunked=version != b"HTTP/1.0")
            case b"/healthz":
                writer.write(_answer(200, "ok\n", with_body=with_body))
            case b"/readyz":
                reason = self._unready()
                status = 503 if reason else 200
                writer.write(_answer(status, f"{reason or 'ok'}\n", with_body=with_body))
            case _:
                writer.write(_answer(404, "/metrics, /healthz, /readyz\n", with_body=with_body))

    async def _pieces(self, wanted: PageFormat) -> Iterator[str]:
        made = self._page(wanted)
        return await made if isinstance(made, Awaitable) else made


async def _send_page(
    writer: asyncio.StreamWriter, wanted: PageFormat, pieces: Iterator[str], *, is_chunked: bool
) -> None:
    """Builds and sends as much as one turn of the loop may take; the rest in later turns."""
    coding = "Transfer-Encoding: chunked\r\n" if is_chunked else ""
    writer.write(_head(200, wanted.value, coding))
    while (piece := _next_of(pieces)) is not None:
        if piece:
            content = piece.encode()
            writer.write(b"%x\r\n%s\r\n" % (len(content), content) if is_chunked else content)
        # While a page is being built the client waits for us.
        async with asyncio.timeout(SILENCE_S_MAX):
            await writer.drain()
        await asyncio.sleep(0)
    if is_chunked:
        writer.write(b"0\r\n\r\n")


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


def _answer(status: int, text: str, *, with_body: bool = True) -> bytes:
    body = text.encode()
    head = _head(status, "text/plain; charset=utf-8", f"Content-Length: {len(body)}\r\n")
    return head + body if with_body else head


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
    """Returns whether Accept names OpenMetrics; Prometheus names it before the older format."""
    return any(
        name.strip().lower() == b"accept" and _OPENMETRICS in value.lower()
        for name, _, value in (line.partition(b":") for line in headers.split(b"\r\n"))
    )
