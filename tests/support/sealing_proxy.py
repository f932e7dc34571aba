"""A proxy that seals what clients send to a broker, and opens what it answers."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.support.sealed_transport import Kind, SealedStream

RECEIVED_BYTES = 200_000


class SealingProxy:
    """Listens on a port of its own; asks each connection of the broker a question now and then."""

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.answered_count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                broker = socket.create_connection(("127.0.0.1", self._broker_port))
                stream = SealedStream(seed=3)
                for relay in (self._seal, self._open):
                    threading.Thread(
                        target=relay, args=(stream, client, broker), daemon=True
                    ).start()

    def _seal(self, stream: SealedStream, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            broker.sendall(stream.record(Kind.GREETING))
            while content := client.recv(RECEIVED_BYTES):
                broker.sendall(stream.record(Kind.QUESTION) + stream.seal(content))
            broker.sendall(stream.record(Kind.END))

    def _open(self, stream: SealedStream, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while sealed := broker.recv(RECEIVED_BYTES):
                stream.received(sealed)
                while stream.has_record:
                    kind, content = stream.next_record()
                    if kind is Kind.DATA:
                        client.sendall(content)
                    else:
                        self.answered_count += 1
        client.close()
        broker.close()
