"""An HTTP proxy on loopback that breaks what passes through it, request by request.

    client ──► FaultProxy ──► S3 server
                   │
                   └─ the first rule that takes a request decides what happens to it:

    STATUS          answers `status` with S3's error `code`; the server never hears of it
    LATENCY         waits `delay_s` first
    HANG            never answers (until `delay_s` is over)
    RESET_BEFORE    resets the connection; the server never hears of it
    RESET_AFTER     lets the server do it, then resets the connection: a lost answer
    TRUNCATE        sends `at_byte` bytes of the answer's body, then resets
    CORRUPT         flips one bit of the answer's body at `at_byte`
    CORRUPT_UPLOAD  flips one bit of the request's body at `at_byte`
    THROTTLE        sends the answer's body at `bytes_per_s`
    TRUNCATE_UPLOAD lets `at_byte` bytes of the request's body through, then resets both sides
    THROTTLE_UPLOAD lets the request's body through at `bytes_per_s`
    DROP_HEADER     lets the request through without its `header`: a server that ignores it
    STALE           answers as the server did when the same was asked for the first time: what a
                    LIST says of a store that lags
    BLANK           puts blanks over what `blank` matches in the answer's body: a field that some
                    servers leave out

`go_away()` refuses connections, as a server that is down does; `come_back()` ends it. It works with
every client and server, and runs in a thread with a loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus

from tests.support.ports import ReservedPort

HEAD_BYTES_MAX = 1024 * 1024
BLOCK_BYTES = 64 * 1024
START_WAIT_S_MAX = 60.0
HANG_S = 60.0


class Action(Enum):
    """What happens to a request; see the top of this file."""

    STATUS = auto()
    LATENCY = auto()
    HANG = auto()
    RESET_BEFORE = auto()
    RESET_AFTER = auto()
    TRUNCATE = auto()
    CORRUPT = auto()
    CORRUPT_UPLOAD = auto()
    THROTTLE = auto()
    TRUNCATE_UPLOAD = auto()
    THROTTLE_UPLOAD = auto()
    DROP_HEADER = auto()
    STALE = auto()
    BLANK = auto()


TRUNCATING = (Action.TRUNCATE, Action.TRUNCATE_UPLOAD)
CORRUPTING = (Action.CORRUPT, Action.CORRUPT_UPLOAD)
THROTTLING = (Action.THROTTLE, Action.THROTTLE_UPLOAD)
UPLOADING = (Action.TRUNCATE_UPLOAD, Action.CORRUPT_UPLOAD, Action.THROTTLE_UPLOAD)


@dataclass(slots=True, kw_only=True)
class Rule:
    """Takes requests whose method matches whole and whose path (with query) contains `path`; with
    `if_header`, a prefix, only those with such a header, and with `unless_header` the others.

    Lets the first `skip` of them pass and strikes the next `times` (-1: all of them).
    """

    action: Action
    method: str = ".*"
    path: str = ""
    skip: int = 0
    times: int = 1
    if_header: str = ""
    unless_header: str = ""
    status: int = 503
    code: str = "SlowDown"
    delay_s: float = HANG_S
    header: str = ""
    at_byte: int = 0
    bytes_per_s: int = 1024
    hit_count: int = 0
    # A regular expression.
    blank: bytes = b""
    # What STALE remembers: whole answers, by what was asked.
    remembered: dict[str, bytes] = field(default_factory=dict)

    def takes(self, method: str, path: str, headers: Iterable[str]) -> bool:
        """Whether this rule strikes now; counts itself down. `headers` are lowercase names."""
        wanted, unwanted = self.if_header, self.unless_header
        if wanted and not any(name.startswith(wanted) for name in headers):
            return False
        if unwanted and any(name.startswith(unwanted) for name in headers):
            return False
        if not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times == 0:
            return False
        self.times -= 1
        self.hit_count += 1
        return True


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request that came to the proxy, and what was done to it."""

    method: str
    path: str
    action: Action | None


@dataclass(slots=True)
class _Head:
    raw: bytes
    first_line: list[str]
    fields: Mapping[str, str]

    @property
    def content_length(self) -> int:
        return int(self.fields.get("content-length", "0"))


@dataclass(slots=True)
class _Link:
    """One client's connection and the one to the server behind it."""

    client_reader: asyncio.StreamReader
    client_writer: asyncio.StreamWriter
    server_reader: asyncio.StreamReader | None = None
    server_writer: asyncio.StreamWriter | None = None

    def reset(self) -> None:
        """Ends the client's connection with RST, as a crashed peer does."""
        connection = self.client_writer.get_extra_info("socket")
        # The peer may have been faster.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client_writer.transport.abort()

    def close(self) -> None:
        self.client_writer.close()
        if self.server_writer is not None:
            self.server_writer.close()


class _CutError(Exception):
    """The rule wants this connection reset now."""


@dataclass(slots=True)
class FaultProxy:
    """A context manager; `endpoint_url` is what clients are given."""

    upstream_port: int
    seen: list[SeenRequest] = field(default_factory=list)
    _rules: list[Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _loop: asyncio.AbstractEventLoop | None = None
    _server: asyncio.Server | None = None
    _thread: threading.Thread | None = None
    _links: set[_LinkKey] = field(default_factory=set)
    # Kept while it is away: somebody else would be given the port, and it could not come back.
    _reserved: ReservedPort = field(default_factory=ReservedPort)
    _is_away: bool = False

    @property
    def port(self) -> int:
        return self._reserved.number

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, rule: Rule) -> Rule:
        """Adds a rule behind the others; the first that takes a request decides."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forgets all rules and all requests seen."""
        with self._lock:
            self._rules.clear()
            self.seen.clear()

    def count(self, method: str = ".*", path: str = "") -> int:
        """How many requests like these came so far."""
        with self._lock:
            return sum(
                1
                for request in self.seen
                if re.fullmatch(method, request.method) and re.search(path, request.path)
            )

    def go_away(self) -> None:
        """Resets all connections and refuses new ones."""
        self._run(self._stop_listening())

    def come_back(self) -> None:
        """Listens again, on the same port."""
        self._run(self._listen())

    def __enter__(self) -> FaultProxy:
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self.go_away()
        assert self._loop is not None
        assert self._thread is not None
        self._run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_WAIT_S_MAX)
        self._loop.close()

    # --- in the proxy's thread ---------------------------------------------------------------

    def _run(self, work: object) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(work, self._loop).result(START_WAIT_S_MAX)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        self._is_away = False
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=HEAD_BYTES_MAX, reuse_address=True
        )

    async def _stop_listening(self) -> None:
        self._is_away = True
        if self._server is not None:
            self._server.close()
        for key in list(self._links):
            key.link.reset()
            if key.link.server_writer is not None:
                key.link.server_writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(reader, writer)
        if self._is_away:
            # It was accepted just before.
            link.reset()
            return
        key = _LinkKey(link)
        self._links.add(key)
        try:
            while await self._exchange(link):
                pass
        except _CutError:
            link.reset()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._links.discard(key)
            link.close()

    async def _exchange(self, link: _Link) -> bool:
        """One request and its answer; whether the connection goes on."""
        head = await _read_head(link.client_reader)
        method, path = head.first_line[0], head.first_line[1]
        rule = self._take_rule(method, path, head.fields)
        action = rule.action if rule else None
        if rule is not None and action in (Action.LATENCY, Action.HANG):
            await asyncio.sleep(rule.delay_s)
        if action in (Action.HANG, Action.RESET_BEFORE):
            raise _CutError
        if rule is not None and action is Action.STATUS:
            await _refuse(link, head, rule)
            return False
        if rule is not None and action is Action.STALE and path in rule.remembered:
            await link.client_reader.readexactly(head.content_length)
            link.client_writer.write(rule.remembered[path])
            await link.client_writer.drain()
            return True
        await self._forward_request(link, head, rule)
        assert link.server_reader is not None
        answer = await _read_head(link.server_reader)
        if rule is not None and action in (Action.STALE, Action.BLANK):
            body = await link.server_reader.readexactly(answer.content_length)
            if action is Action.BLANK:
                body = re.sub(rule.blank, lambda found: b" " * len(found[0]), body)
            else:
                rule.remembered[path] = answer.raw + body
            link.client_writer.write(answer.raw + body)
            await link.client_writer.drain()
            return True
        if action is Action.RESET_AFTER:
            raise _CutError
        link.client_writer.write(answer.raw)
        status = int(answer.first_line[1])
        if method != "HEAD" and status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            damage = rule if rule is not None and rule.action not in UPLOADING else None
            await _copy_body(link.server_reader, link.client_writer, answer, damage)
        await link.client_writer.drain()
        return answer.fields.get("connection", "").lower() != "close"

    def _take_rule(self, method: str, path: str, headers: Iterable[str]) -> Rule | None:
        with self._lock:
            rule = next((rule for rule in self._rules if rule.takes(method, path, headers)), None)
            self.seen.append(SeenRequest(method, path, rule.action if rule else None))
        return rule

    async def _forward_request(self, link: _Link, head: _Head, rule: Rule | None) -> None:
        if link.server_writer is None:
            link.server_reader, link.server_writer = await asyncio.open_connection(
                "127.0.0.1", self.upstream_port, limit=HEAD_BYTES_MAX
            )
        assert link.server_reader is not None
        expects = head.fields.get("expect", "").lower() == "100-continue"
        raw = _without(head.raw, "expect") if expects else head.raw
        if rule is not None and rule.action is Action.DROP_HEADER:
            raw = _without(raw, rule.header)
        link.server_writer.write(raw)
        if expects:
            # Answered here: the server behind gets a plain request.
            link.client_writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await link.client_writer.drain()
        damage = rule if rule is not None and rule.action in UPLOADING else None
        await _copy_body(link.client_reader, link.server_writer, head, damage)
        await link.server_writer.drain()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@dataclass(frozen=True, slots=True, eq=False)
class _LinkKey:
    link: _Link


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    raw = await reader.readuntil(b"\r\n\r\n")
    lines = raw.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if ":" in line)
    return _Head(
        raw, lines[0].split(" ", 2), {name.lower(): value.strip() for name, _, value in pairs}
    )


def _without(head: bytes, header: str) -> bytes:
    return re.sub(rb"(?i)\r\n" + header.encode() + rb":[^\r]*", b"", head)


async def _refuse(link: _Link, head: _Head, rule: Rule) -> None:
    if "expect" not in head.fields:
        await link.client_reader.readexactly(head.content_length)
    body = (
        f'<?xml version="1.0"?><Error><Code>{rule.code}</Code><Message>injected</Message></Error>'
    ).encode()
    if head.first_line[0] == "HEAD":
        body = b""
    link.client_writer.write(
        f"HTTP/1.1 {rule.status} Injected\r\nContent-Type: application/xml\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await link.client_writer.drain()


async def _copy_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: _Head, rule: Rule | None
) -> None:
    if "chunked" in head.fields.get("transfer-encoding", "").lower():
        await _copy_chunked(reader, writer)
        return
    action = rule.action if rule else None
    left, done = head.content_length, 0
    while left:
        limit = left
        if rule is not None and action in THROTTLING:
            limit = max(1, rule.bytes_per_s // 10)
        block = await reader.read(min(limit, BLOCK_BYTES))
        if not block:
            raise _CutError
        if rule is not None and action in TRUNCATING and done + len(block) > rule.at_byte:
            writer.write(block[: rule.at_byte - done])
            await writer.drain()
            raise _CutError
        if rule is not None and action in CORRUPTING and done <= rule.at_byte < done + len(block):
            changed = bytearray(block)
            changed[rule.at_byte - done] ^= 1
            block = bytes(changed)
        writer.write(block)
        await writer.drain()
        left -= len(block)
        done += len(block)
        if rule is not None and action in THROTTLING:
            await asyncio.sleep(len(block) / rule.bytes_per_s)


async def _copy_chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        line = await reader.readuntil(b"\r\n")
        writer.write(line)
        size_bytes = int(line.split(b";")[0], 16)
        writer.write(await reader.readexactly(size_bytes + 2))
        await writer.drain()
        if size_bytes == 0:
            return
