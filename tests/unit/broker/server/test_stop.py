"""The end of a broker, in a loop of ours: what comes in together with the signal."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import re
import struct
import termios
import warnings
from pathlib import Path

import pytest

from strandline.broker.config.loading import load_config
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from strandline.broker.server.app import Broker
from strandline.storage.clock import SystemClock
from tests.support.broker import eventually
from tests.support.wire import WireClient

VERSION = 9


def has_arrived(client: WireClient) -> bool:
    """Whether the other end's kernel has all that was sent."""
    (unacknowledged,) = struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)))
    return unacknowledged == 0


@pytest.mark.slow
def test_a_request_that_comes_in_with_the_signal_ends_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is read in the turn of the loop that sets the event, so that its task is there when the
    broker ends its tasks, and has not begun.
    """
    settings = ("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path}")

    async def serve() -> None:
        broker = Broker(load_config(None, settings), SystemClock())
        stopping = asyncio.Event()
        await broker.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(broker.run(stopping))
                await send_and_stop(stopping)
                await running
        finally:
            await broker.stop()

    async def send_and_stop(stopping: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        ready = re.search(r"at 127\.0\.0\.1:(\d+)", capsys.readouterr().out)
        assert ready is not None
        client = await asyncio.to_thread(WireClient, int(ready[1]))
        ask = (MetadataRequest(topics=()), MetadataResponse, VERSION)
        await asyncio.to_thread(client.ask, *ask)

        def send() -> None:
            client.send(MetadataRequest(topics=()), VERSION)
            eventually(lambda: has_arrived(client), interval_s=0.001)
            loop.call_soon(stopping.set)

        loop.call_soon(send)
        await stopping.wait()
        client.close()

    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            asyncio.run(serve())
        finally:
            gc.unfreeze()
        gc.collect()
    messages = [str(warning.message) for warning in told]
    assert [message for message in messages if "never awaited" in message] == []
