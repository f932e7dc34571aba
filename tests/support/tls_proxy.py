"""TLS in front of a server that has none, such as an S3 server on loopback."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RECEIVED_BYTES = 1 << 16


@contextmanager
def tls_proxy(target_port: int, own: Path) -> Iterator[int]:
    """The port at which the server is reached with the key and certificates of a file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        arguments = (listening, context, target_port)
        threading.Thread(target=_accept, args=arguments, daemon=True).start()
        yield int(listening.getsockname()[1])


def _accept(listening: socket.socket, context: ssl.SSLContext, target_port: int) -> None:
    with suppress(OSError):
        while True:
            client, _ = listening.accept()
            threading.Thread(
                target=_serve, args=(client, context, target_port), daemon=True
            ).start()


def _serve(client: socket.socket, context: ssl.SSLContext, target_port: int) -> None:
    with suppress(OSError):
        opened = context.wrap_socket(client, server_side=True)
        server = socket.create_connection(("127.0.0.1", target_port))
        back = threading.Thread(target=_pump, args=(server, opened), daemon=True)
        back.start()
        _pump(opened, server)
        back.join()
        opened.close()
        server.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(RECEIVED_BYTES):
            sink.sendall(content)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR if not isinstance(sink, ssl.SSLSocket) else socket.SHUT_RDWR)
