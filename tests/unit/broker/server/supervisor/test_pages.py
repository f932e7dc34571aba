"""Processes are asked for their metrics, and one that does not answer is named."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from strandline.broker.server.supervised import SupervisorChannel
from strandline.broker.server.supervisor import pages
from strandline.broker.server.supervisor.pages import MeasuredProcess, MergedPages
from strandline.broker.telemetry.exposition import PageFormat
from strandline.broker.telemetry.http_server import MetricsServer

PAGE = "# HELP threads Threads.\n# TYPE threads gauge\nthreads 4\n"


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_S_MAX", 0.05)


class Process:
    """A process behind its standard input; it reads it only while it is awake."""

    def __init__(self, label: str, text: str = PAGE) -> None:
        self.here, self.there = socket.socketpair()
        self.here.setblocking(False)
        self.has_ended = False
        self.page_count = 0
        self._text = text
        self._server = MetricsServer(self._page, lambda: "")
        self._channel = SupervisorChannel(
            self.there.fileno(), observe=self._server.attend, end=self._end
        )
        self.asked = MeasuredProcess(label=label, channel=lambda: self.here, restarts=lambda: 0)

    def _page(self, _wanted: PageFormat) -> Iterator[str]:
        self.page_count += 1
        yield self._text

    def _end(self) -> None:
        self.has_ended = True
        self.sleep()

    def wake(self) -> None:
        asyncio.get_running_loop().add_reader(self.there, self._channel.read)

    def sleep(self) -> None:
        asyncio.get_running_loop().remove_reader(self.there)

    def close(self) -> None:
        self.sleep()
        self.here.close()
        self.there.close()


async def page_of(merged: MergedPages, wanted: PageFormat = PageFormat.TEXT) -> str:
    return "".join(await merged.page(wanted))


def test_a_page_has_all_that_answer_and_says_who_does_not() -> None:
    async def ask() -> tuple[str, str]:
        awake, asleep = Process("1"), Process("2")
        away = MeasuredProcess(label="3", channel=lambda: None, restarts=lambda: 7)
        merged = MergedPages([awake.asked, asleep.asked, away])
        awake.wake()
        first = await page_of(merged)
        asleep.wake()
        second = await page_of(merged)
        merged.close()
        awake.close()
        asleep.close()
        return first, second

    first, second = asyncio.run(ask())
    assert 'threads{broker="1"} 4\n' in first
    assert 'strandline_supervised_up{broker="1"} 1\n' in first
    assert 'strandline_supervised_up{broker="2"} 0\n' in first
    assert 'strandline_supervised_up{broker="3"} 0\n' in first
    assert 'strandline_supervised_restarts_total{broker="3"} 7\n' in first
    assert 'threads{broker="2"}' not in first
    assert 'threads{broker="2"} 4\n' in second
    assert 'process_threads{broker="supervisor"}' in second


def test_a_process_that_hangs_is_asked_once() -> None:
    async def ask() -> int:
        asleep = Process("2")
        merged = MergedPages([asleep.asked])
        for _ in range(5):
            await page_of(merged)
        asleep.wake()
        while 'up{broker="2"} 1' not in await page_of(merged):
            pass
        merged.close()
        asleep.close()
        return asleep.page_count

    assert asyncio.run(ask()) <= 2


def test_the_page_ends_as_its_format_wants() -> None:
    async def ask() -> str:
        process = Process("1", f"{PAGE}# EOF\n")
        process.wake()
        merged = MergedPages([process.asked])
        page = await page_of(merged, PageFormat.OPENMETRICS)
        merged.close()
        process.close()
        return page

    page = asyncio.run(ask())
    assert page.endswith("# EOF\n")
    assert page.count("# EOF") == 1


def test_half_a_page_is_none() -> None:
    async def ask() -> str:
        process = Process("1", "threads 4\nhalf of a li")
        process.wake()
        merged = MergedPages([process.asked])
        page = await page_of(merged)
        merged.close()
        process.close()
        return page

    page = asyncio.run(ask())
    assert 'strandline_supervised_up{broker="1"} 0\n' in page
    assert 'threads{broker="1"}' not in page


def test_the_end_of_the_supervisor_is_the_end() -> None:
    async def end() -> bool:
        process = Process("1")
        process.wake()
        process.here.close()
        while not process.has_ended:
            await asyncio.sleep(0)
        process.there.close()
        return process.has_ended

    assert asyncio.run(end())
