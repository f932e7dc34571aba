"""How long a scrape may take: as long as the page does, if its client reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from strandline.broker.telemetry import http_server
from strandline.broker.telemetry.exposition import PageFormat
from strandline.broker.telemetry.http_server import MetricsServer

SILENCE_S = 0.02
SCRAPE = b"GET /metrics HTTP/1.0\r\n\r\n"


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SILENCE_S_MAX", SILENCE_S)


def slow_page(_wanted: PageFormat) -> Iterator[str]:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + 5 * SILENCE_S
    while loop.time() < end_s:
        yield ""
    yield "the end"


def endless_page(_wanted: PageFormat) -> Iterator[str]:
    while True:
        yield "x" * 65536


async def connected(
    server: MetricsServer, sent: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = await server.listen("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def emptied(server: MetricsServer) -> None:
    """Returns when no client is connected any more."""
    async with asyncio.timeout(60):
        while repr(server) != "<MetricsServer 0 connections>":
            await asyncio.sleep(0.01)


def test_a_page_that_the_broker_is_slow_to_make_is_made_to_its_end() -> None:
    async def scrape() -> bytes:
        server = MetricsServer(slow_page, lambda: "")
        reader, writer = await connected(server, SCRAPE)
        content = await reader.read()
        writer.close()
        server.close()
        return content

    assert asyncio.run(scrape()).endswith(b"the end")


@pytest.mark.parametrize("sent", [b"", b"GET /metr", SCRAPE])
def test_a_client_that_sends_or_reads_nothing_is_let_go(sent: bytes) -> None:
    async def wait() -> None:
        server = MetricsServer(endless_page, lambda: "")
        _, writer = await connected(server, sent)
        async with asyncio.timeout(60):
            while repr(server) != "<MetricsServer 1 connections>":
                await asyncio.sleep(0)
        await emptied(server)
        writer.close()
        server.close()

    asyncio.run(wait())


def broken_page(_wanted: PageFormat) -> Iterator[str]:
    yield "half of it"
    raise ValueError("a mistake")


def test_a_page_that_cannot_be_made_is_no_page_and_said_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scrape_often() -> None:
        server = MetricsServer(broken_page, lambda: "")
        port = await server.listen("127.0.0.1", 0)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                content = await reader.read()
                assert not content.endswith(b"0\r\n\r\n"), "it is not told as whole"
            writer.close()
        server.close()

    asyncio.run(scrape_often())
    assert [record.message for record in caplog.records] == ["metrics could not be collected"]
    assert "a mistake" in caplog.text


def test_a_client_that_reads_for_ever_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_S_MAX", 3 * SILENCE_S)

    async def read_on() -> None:
        server = MetricsServer(endless_page, lambda: "")
        reader, writer = await connected(server, SCRAPE)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 20):
                pass
        await emptied(server)
        writer.close()
        server.close()

    asyncio.run(read_on())


async def turns_of_a_scrape(server: MetricsServer) -> int:
    """How often the loop came round while a page was made, sent and read."""
    loop = asyncio.get_running_loop()
    turns = 0

    def count() -> None:
        nonlocal turns, counting
        turns += 1
        counting = loop.call_soon(count)

    reader, writer = await connected(server, SCRAPE)
    counting = loop.call_soon(count)
    assert (await reader.read()).endswith(b"the end")
    counting.cancel()
    writer.close()
    server.close()
    return turns


def test_a_page_of_many_small_pieces_takes_few_turns_of_a_busy_loop() -> None:
    """Ten thousand partitions are 4,000 pieces: with a turn for each of them half a minute."""

    def page(_wanted: PageFormat) -> Iterator[str]:
        for number in range(5000):
            yield "" if number % 2 else "x"
        yield "the end"

    assert asyncio.run(turns_of_a_scrape(MetricsServer(page, lambda: ""))) < 2500


def test_a_page_that_is_much_work_lets_others_run_in_between() -> None:
    def page(_wanted: PageFormat) -> Iterator[str]:
        loop = asyncio.get_running_loop()
        for _ in range(20):
            end_s = loop.time() + http_server.TURN_S_MAX
            while loop.time() < end_s:
                pass
            yield "x"
        yield "the end"

    assert asyncio.run(turns_of_a_scrape(MetricsServer(page, lambda: ""))) >= 20


def test_a_page_that_is_not_read_is_not_made() -> None:
    made = 0

    def page(_wanted: PageFormat) -> Iterator[str]:
        nonlocal made
        while True:
            made += 1
            yield "x" * http_server.TURN_BYTES_MAX

    async def scrape() -> None:
        server = MetricsServer(page, lambda: "")
        _reader, writer = await connected(server, SCRAPE)
        await emptied(server)
        writer.close()
        server.close()

    asyncio.run(scrape())
    # What the sockets and the reader's buffers take.
    assert made * http_server.TURN_BYTES_MAX < 64 * 1024 * 1024
