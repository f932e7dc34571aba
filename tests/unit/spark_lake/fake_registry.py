"""A schema registry that answers what a test put into it."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry(ThreadingHTTPServer):
    """Answers by path; counts what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.answers: dict[str, Any] = {}
        # Sent as they stand, with a pause behind each, and then the connection is cut.
        self.bytes_of_all: Iterable[bytes] = ()
        # Paths that are answered with 500.
        self.failures: set[str] = set()
        self.asked: list[str] = []
        self.password: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, FakeRegistry)
        server.asked.append(self.path)
        if server.bytes_of_all:
            self._send_raw(server.bytes_of_all)
            return
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        if server.password is not None and base64.b64decode(given).decode() != server.password:
            self.send_error(401)
        elif self.path in server.failures:
            self.send_error(500)
        elif self.path not in server.answers:
            self.send_error(404)
        else:
            body = json.dumps(server.answers[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _send_raw(self, pieces: Iterable[bytes]) -> None:
        self.close_connection = True
        try:
            for piece in pieces:
                self.wfile.write(piece)
                time.sleep(0.01)
        except OSError:  # whoever asked has gone
            pass

    def log_message(self, *args: object) -> None:
        pass
