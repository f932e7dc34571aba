"""The end of a broker, in a loop of ours: what comes in together with the signal."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import struct
import termios
import warnings
from pathlib import Path

import pytest

from strandline.broker.config.loading import load_config
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from strandline.broker.server.broker import Broker
from strandline.broker.server.environment import process_environment
from strandline.broker.server.local import start_local
from tests.support.broker import eventually
from tests.support.wire import WireClient

VERSION = 9


def has_arrived(client: WireClient) -> bool:
    """Whether the other end's kernel has all that was sent."""
    (unacknowledged,) = struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)))
    return unacknowledged == 0


@pytest.mark.slow
def test_a_request_that_comes_in_with_the_signal_ends_without_a_warning(
    tmp_path: Path,
) -> None:
    """It is read in the turn of the loop that sets the event, so that its task is there when the
    broker ends its tasks, and has not begun.
    """
    settings = ("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path}")

    async def serve() -> None:
        config = load_config(None, settings)
        environment = process_environment(config)
        broker = Broker(environment, config, start_local)
        ready = asyncio.Event()
        stopping = asyncio.Event()
        await broker.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(broker.run(stopping, ready.set))
                await ready.wait()
                await send_and_stop(broker.listener.port, stopping)
                await running
        finally:
            await broker.stop()
            environment.workers.stop()

    async def send_and_stop(port: int, stopping: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        client = await asyncio.to_thread(WireClient, port)
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
