"""A server of ranges that answers by a script."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from strandline.storage.remote.object_store.direct_read import DirectRead


class Server:
    """Answers each request with the next of its scripts; a script sends, and closes or not."""

    def __init__(self, *scripts: Callable[[socket.socket], bool]) -> None:
        self._scripts = list(scripts)
        self.requests: list[bytes] = []
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def source(self) -> DirectRead:
        port = self._listening.getsockname()[1]
        return DirectRead(
            url=f"http://127.0.0.1:{port}/b/k%20y.log?X-Amz-Signature=1",
            connect_s=2,
            read_s=0.3,
            request_s=1,
        )

    def _serve(self) -> None:
        while self._scripts:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            # Who closes before it has read everything resets the connection.
            with connected, contextlib.suppress(ConnectionError):
                while self._scripts:
                    request = connected.recv(65536)
                    if not request:
                        break
                    self.requests.append(request)
                    if not self._scripts.pop(0)(connected):
                        break

    def close(self) -> None:
        self._scripts.clear()
        self._listening.close()


def sends(*blocks: bytes, keeps: bool = True) -> Callable[[socket.socket], bool]:
    def script(connected: socket.socket) -> bool:
        for block in blocks:
            connected.sendall(block)
        return keeps

    return script
