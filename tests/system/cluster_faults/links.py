"""Relays between the nodes of a cluster, one for each node that connects and each that listens.

    node a ──connects──► relay (a, b) ──► node b
                 packets a to b ─►
                 ◄─ packets b to a

A cut from a to b holds what a sends to b, on connections that either of them opened, until it is
healed: as TCP does, which sends again. A connection that is made meanwhile waits, since its
handshake needs both ways. A process that is away refuses: the relay resets.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType

BLOCK_BYTES = 256 * 1024
CALL_S = 60.0


class Links:
    """Used with `with`; `ports` has the relay of each pair of names."""

    def __init__(self, listening: Mapping[str, int], connecting: Iterable[str]) -> None:
        """`listening` are the ports of the nodes; `connecting` those that have relays to them."""
        self._listening = dict(listening)
        self._pairs = [(a, b) for a in connecting for b in listening if a != b]
        self.ports: dict[tuple[str, str], int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        # By (from, to): set while packets pass.
        self._passing: dict[tuple[str, str], asyncio.Event] = {}
        self._open: dict[tuple[str, str], set[asyncio.StreamWriter]] = {}
        self._servers: list[asyncio.Server] = []

    def routes(self, name: str) -> dict[int, int]:
        """For a node: of each port that it may connect to, the relay's."""
        return {self._listening[b]: port for (a, b), port in self.ports.items() if a == name}

    def cut(self, source: str, target: str) -> None:
        """One way. A connection that is open stays open."""
        self._loop.call_soon_threadsafe(self._way(source, target).clear)

    def heal(self, source: str, target: str) -> None:
        self._loop.call_soon_threadsafe(self._way(source, target).set)

    def heal_all(self) -> None:
        for way in list(self._passing):
            self.heal(*way)

    def reset(self, source: str, target: str) -> None:
        """Ends all connections that `source` has to `target`."""
        self._loop.call_soon_threadsafe(self._reset, source, target)

    def _reset(self, source: str, target: str) -> None:
        for writer in list(self._open.get((source, target), ())):
            _abort(writer)

    def _way(self, source: str, target: str) -> asyncio.Event:
        if (source, target) not in self._passing:
            way = self._passing[source, target] = asyncio.Event()
            way.set()
        return self._passing[source, target]

    def __enter__(self) -> Links:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(CALL_S)
        return self

    async def _listen(self) -> None:
        for a, b in self._pairs:
            self._way(a, b), self._way(b, a)

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, a: str = a, b: str = b
            ) -> None:
                await self._relay(a, b, reader, writer)

            server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=BLOCK_BYTES)
            self._servers.append(server)
            self.ports[a, b] = server.sockets[0].getsockname()[1]

    async def _relay(
        self, a: str, b: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = self._way(a, b), self._way(b, a)
        kept = self._open.setdefault((a, b), set())
        kept.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            await there.wait()
            await back.wait()
            answers, onward = await asyncio.open_connection(
                "127.0.0.1", self._listening[b], limit=BLOCK_BYTES
            )
            ways = [
                asyncio.create_task(_pump(reader, onward, there)),
                asyncio.create_task(_pump(answers, writer, back)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            kept.discard(writer)
            for one in (writer, onward):
                if one is not None:
                    _abort(one)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event
) -> None:
    """Returns at the end of the connection, which nobody hears of either while it is cut."""
    while True:
        data = await reader.read(BLOCK_BYTES)
        await passing.wait()
        if not data:
            return
        writer.write(data)
        await writer.drain()


def _abort(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
