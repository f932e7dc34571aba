"""The metrics of several processes as one page: each is asked for its own, and has a few seconds.

A process that does not answer is left out, and `strandline_supervised_up` is 0 for it. It is asked
once until it answers: one that was stopped, and goes on, does not find a heap of requests.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from strandline.broker.server.supervised import hand
from strandline.broker.server.supervisor.merge import merge_pages
from strandline.broker.telemetry.collector import written
from strandline.broker.telemetry.common_rows import process_rows
from strandline.broker.telemetry.exposition import PageFormat, Sample, end_of
from strandline.broker.telemetry.families import row_of
from strandline.storage.concurrency.tasks import eager_start
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Prometheus waits for 10 s by default, `strandline cluster status` for 6. A page of 20,000
# partitions takes a second.
PAGE_S_MAX: Final = 3.0
PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_REQUEST: Final = "GET /metrics HTTP/1.0\r\nAccept: {}\r\n\r\n"
_READ_BYTES: Final = 256 * 1024
SUPERVISOR: Final = "supervisor"
_NOT_READY: Final = "it starts, or has ended"


class NoPage(Exception):
    """A process has no page to show; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProcess:
    """A process as its metrics are asked for."""

    label: str
    # The other end of its standard input; None while it does not run.
    channel: Callable[[], socket.socket | None]
    restarts: Callable[[], int]


class ProcessPage:
    """The page of one process."""

    def __init__(self, asked: MeasuredProcess) -> None:
        self.asked = asked
        self._asking: dict[PageFormat, asyncio.Task[str]] = {}

    async def get(self, wanted: PageFormat) -> str:
        """Returns its page, as it is now or at most PAGE_S_MAX later. Raises NoPage."""
        asking = self._asking.get(wanted)
        if asking is None or asking.done():
            asking = self._asking[wanted] = eager_start(self._ask(wanted))
        # It stays if nobody waits for it any more: the next one that wants it finds it.
        await asyncio.wait((asking,), timeout=PAGE_S_MAX)
        if not asking.done():
            raise NoPage(f"no answer in {PAGE_S_MAX:g} s")
        return asking.result()

    def close(self) -> None:
        for asking in self._asking.values():
            asking.cancel()

    async def _ask(self, wanted: PageFormat) -> str:
        channel = self.asked.channel()
        if channel is None:
            raise NoPage("it does not run")
        here, there = socket.socketpair()
        try:
            with there:
                hand(channel, there)
            here.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=here)
        except OSError as error:
            here.close()
            raise NoPage(f"it takes no request: {error.strerror or error}") from None
        try:
            writer.write(_REQUEST.format(wanted.value).encode())
            return _page_of(await _read(reader))
        except ConnectionError:
            raise NoPage(_NOT_READY) from None
        except OSError as error:
            raise NoPage(f"its answer broke: {error.strerror or error}") from None
        finally:
            writer.transport.abort()


class MergedPages:
    """The pages of all processes; used on the event loop only."""

    def __init__(self, processes: Sequence[MeasuredProcess]) -> None:
        self._pages = [ProcessPage(one) for one in processes]
        self._quiet_log = QuietLog(log)

    async def page(self, wanted: PageFormat) -> Iterator[str]:
        """Asks all at once, and returns one page, in pieces."""
        answers = await asyncio.gather(
            *(one.get(wanted) for one in self._pages), return_exceptions=True
        )
        found: dict[str, str] = {}
        for page, answer in zip(self._pages, answers, strict=True):
            label = page.asked.label
            if isinstance(answer, str):
                found[label] = answer
            elif isinstance(answer, NoPage | asyncio.CancelledError):
                fields = {"node": label, "reason": str(answer)}
                self._quiet_log.say(
                    logging.WARNING, "metrics of a process are missing", label, fields
                )
            else:
                raise answer
        return self._pieces(found, wanted)

    def close(self) -> None:
        for page in self._pages:
            page.close()

    def _pieces(self, found: Mapping[str, str], wanted: PageFormat) -> Iterator[str]:
        asked = [page.asked for page in self._pages]
        yield from written(
            [
                row_of(
                    "strandline_supervised_up",
                    [Sample(int(one.label in found), (one.label,)) for one in asked],
                ),
                row_of(
                    "strandline_supervised_restarts_total",
                    [Sample(one.restarts(), (one.label,)) for one in asked],
                ),
            ],
            wanted,
            ends=False,
        )
        own = "".join(written(process_rows({}), wanted, ends=False))
        yield from merge_pages({**found, SUPERVISOR: own})
        yield end_of(wanted)


async def _read(reader: asyncio.StreamReader) -> bytes:
    parts, size = [], 0
    while part := await reader.read(_READ_BYTES):
        parts.append(part)
        size += len(part)
        if size > PAGE_BYTES_MAX:
            raise NoPage(f"its page is larger than {PAGE_BYTES_MAX:,} bytes")
    return b"".join(parts)


def _page_of(answer: bytes) -> str:
    """Returns the body of an answer of HTTP."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        raise NoPage(_NOT_READY)
    status = head.partition(b"\r\n")[0].decode(errors="replace")
    if status.split(" ")[1:2] != ["200"]:
        raise NoPage(f"it answers {status}: {body[:200].decode(errors='replace').strip()}")
    if not body.endswith(b"\n"):
        raise NoPage("its page has no end")
    return body.decode()
