"""Bytes of an object straight into one buffer: the short way beside s3fs, which stays in charge.

    s3fs      finds credentials, region and address, and signs        one URL per object
    here      GET with a Range over a connection that is kept         recv into the buffer
    s3fs      again, with its retries and its words, for whatever is not exactly the bytes asked for

Through s3fs each byte is copied three times by aiohttp and its event loop, which took as much CPU
as checking and decoding the records in it (docs/decisions, 22). A range needs no signature of its
own, so that one signed URL serves all ranges of an object.

This way is given up for good after FAILURES_MAX failures in a row, such as behind a proxy, with
certificates that only botocore knows, or where a policy forbids signed URLs.
"""

from __future__ import annotations

import http.client
import threading
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable

from strandline.storage.clock import SystemClock

FAILURES_MAX = 3
# How long a signature is good, and how long it is used; credentials may end earlier, which then is
# a failure like any other.
SIGNED_S = 3600
USED_S = 900
# Objects of which a URL is kept: more than are read at once.
URLS_MAX = 64
OK_PARTIAL = 206


class RangedGets:
    """Thread-safe; holds a connection for each thread that reads at the same time."""

    def __init__(
        self, sign: Callable[[str], str], *, connect_timeout_s: float, read_timeout_s: float
    ) -> None:
        """`sign` makes the URL of a path, good for SIGNED_S; it may raise anything."""
        self._sign = sign
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._urls: dict[str, tuple[float, urllib.parse.SplitResult]] = {}
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}
        weakref.finalize(self, _close_all, self._idle)
        self._failures = 0

    def get(self, path: str, start: int, end: int) -> bytearray | None:
        """Exactly the bytes [start, end); None if they have to be got otherwise."""
        if self._failures >= FAILURES_MAX:
            return None
        try:
            content = self._get(self._url(path), start, end)
        except Exception:  # whatever it is, s3fs will meet it again and name it
            content = None
        if content is None:
            with self._lock:
                self._failures += 1
                self._urls.pop(path, None)
        else:
            self._failures = 0
        return content

    def _url(self, path: str) -> urllib.parse.SplitResult:
        now_s = self._clock.monotonic_s()
        with self._lock:
            known = self._urls.get(path)
        if known is not None and now_s - known[0] < USED_S:
            return known[1]
        url = urllib.parse.urlsplit(self._sign(path))
        if url.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(
            url.hostname or ""
        ):
            raise OSError("a proxy stands in between")
        with self._lock:
            if len(self._urls) >= URLS_MAX:
                self._urls.clear()
            self._urls[path] = now_s, url
        return url

    def _get(self, url: urllib.parse.SplitResult, start: int, end: int) -> bytearray | None:
        connection = self._connection(url)
        is_whole = False
        try:
            target = f"{url.path}?{url.query}" if url.query else url.path
            connection.request("GET", target, headers={"Range": f"bytes={start}-{end - 1}"})
            answer = connection.getresponse()
            if answer.status != OK_PARTIAL or answer.length != end - start:
                return None
            content = bytearray(end - start)
            view = memoryview(content)
            filled = 0
            while filled < len(content):
                received = answer.readinto(view[filled:])
                if not received:
                    return None
                filled += received
            answer.close()
            is_whole = not answer.will_close
            return content
        finally:
            if is_whole:
                with self._lock:
                    self._idle.setdefault(url.netloc, []).append(connection)
            else:
                connection.close()

    def _connection(self, url: urllib.parse.SplitResult) -> http.client.HTTPConnection:
        with self._lock:
            idle = self._idle.get(url.netloc)
            if idle:
                return idle.pop()
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        made = kind(url.hostname or "", url.port, timeout=self._connect_timeout_s)
        made.connect()
        made.sock.settimeout(self._read_timeout_s)
        return made


def _close_all(idle: dict[str, list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()
