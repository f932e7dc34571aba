"""Asks a provider over HTTP: for the keys that sign its tokens, or for a token.

The whole answer has REQUEST_S, however slowly it comes: the broker has one thread for this. A
redirect may not leave TLS, or whoever is in the network would choose who may log in. A request with
a secret follows none.
"""

from __future__ import annotations

import io
import socket
import ssl
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import IO, Any
from urllib.error import URLError
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
)

from strandline.storage.clock import Clock

# Of one request, from the first byte to the last, and before it for each wait on the socket.
REQUEST_S = 10.0


def read_url(asked: str | Request, authority: str, clock: Clock, *, bytes_max: int) -> bytes:
    """Returns the answer, of which no more is read than a byte above `bytes_max`.

    `authority` has certificates in PEM that alone are trusted; empty: those of the system. Raises
    OSError, also for an answer other than 200, or one that takes too long.
    """
    try:
        context = ssl.create_default_context(cadata=authority or None)
        patience = _Patience(clock)
        opener = build_opener(_Plain(patience), _Sealed(patience, context), _Redirects())
        with opener.open(asked, timeout=REQUEST_S) as answer:
            body: bytes = answer.read(bytes_max + 1)
            return body
    except (HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class _Patience:
    """The time that is left for a request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_s = clock.monotonic_s() + REQUEST_S

    def left_s(self) -> float:
        """Raises TimeoutError if there is none."""
        left_s = self._ends_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError(f"no whole answer within {REQUEST_S:.0f} s")
        return left_s


class _Received(io.RawIOBase):
    """What a socket receives as long as there is patience."""

    def __init__(self, connected: socket.socket, patience: _Patience) -> None:
        self._socket = connected
        self._stream = connected.makefile("rb", buffering=0)
        self._patience = patience

    def readable(self) -> bool:
        return True

    def readinto(self, space: Any, /) -> int | None:  # as RawIOBase
        self._socket.settimeout(self._patience.left_s())
        return self._stream.readinto(space)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Answering:
    """A socket, as far as an HTTPResponse needs it."""

    def __init__(self, connected: socket.socket, patience: _Patience) -> None:
        self._received = _Received(connected, patience)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._received)


def _hurry(connection: HTTPConnection, patience: _Patience) -> HTTPConnection:
    def answer(connected: socket.socket, **more: Any) -> HTTPResponse:
        return HTTPResponse(_Answering(connected, patience), **more)  # type: ignore[arg-type]

    connection.response_class = answer  # type: ignore[assignment]
    return connection


class _Plain(HTTPHandler):
    def __init__(self, patience: _Patience) -> None:
        super().__init__()
        self._patience = patience

    def http_open(self, asked: Request) -> HTTPResponse:
        def connection(host: str, **more: Any) -> HTTPConnection:
            return _hurry(HTTPConnection(host, **more), self._patience)

        return self.do_open(connection, asked)


class _Sealed(HTTPSHandler):
    def __init__(self, patience: _Patience, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._patience, self._trust = patience, context

    def https_open(self, asked: Request) -> HTTPResponse:
        def connection(host: str, **more: Any) -> HTTPConnection:
            return _hurry(HTTPSConnection(host, context=self._trust, **more), self._patience)

        return self.do_open(connection, asked)


class _Redirects(HTTPRedirectHandler):
    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Request | None:
        fp.close()  # Its body, which urllib would read to the end.
        if req.data is not None:
            raise URLError("a redirect of a request with a secret, which is not followed")
        scheme = newurl.partition(":")[0].lower()
        if scheme not in ("https", req.type):
            raise URLError(f"a redirect from {req.type} to {scheme}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
