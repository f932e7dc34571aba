"""Brokers in this process, all on one event loop in a thread of its own, for clients on sockets.

Each is what `strandline serve` runs, in an environment of its own: its pools, its folders, its
ports. What a process has once stays out: signals, the ready line, the garbage collector. They start
within a second, so a test that needs no kill -9 needs no process.

    with LocalBrokers(folder, count=3) as brokers:
        client = WireClient(brokers[1].port)
        brokers[1].stop()
        brokers[1].start()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.loading import load_config
from strandline.broker.server.broker import Broker
from strandline.broker.server.environment import Environment, process_environment
from strandline.broker.server.parts.storage import StorageParts
from strandline.broker.server.roles import role_of

T = TypeVar("T")
WAIT_S = 60.0


class Serving:
    """A broker from its start to its stop; used on its event loop."""

    def __init__(
        self, config: BrokerConfig, environment: Environment, *, is_read_only: bool = False
    ) -> None:
        self._environment = environment
        self.broker = Broker(environment, config, role_of(config, is_read_only=is_read_only))
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when clients are served. Raises StrandlineError."""
        ready = asyncio.Event()
        try:
            await self.broker.start()
            running = self.broker.run(self._stopping, ready.set)
            self._task = asyncio.create_task(running, name="broker")
            is_ready = asyncio.ensure_future(ready.wait())
            await asyncio.wait([self._task, is_ready], return_when=asyncio.FIRST_COMPLETED)
            is_ready.cancel()
            if self._task.done():
                await self._task
        except BaseException:
            await self.close()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether it serves no more, by itself."""
        return self._task is None or self._task.done()

    async def ended(self, others: Iterable[asyncio.Future[Any]], *, within_s: float) -> None:
        """Returns when it has ended by itself, or one of the others has, or after so long."""
        assert self._task is not None
        waiting = (self._task, *others)
        await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """Stops cleanly, as a signal does."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        await self.close()

    async def die(self) -> None:
        """Ends all tasks, and does nothing more; the folders are unlocked, as by the system.

        Its pools must be dead already: what tasks do when they are cancelled has no effect.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        started = self.broker.started
        for part in started.parts if started is not None else ():
            if isinstance(part, StorageParts):
                part.log_dirs.unlock()

    async def close(self) -> None:
        try:
            await self.broker.stop()
        finally:
            self._environment.workers.stop()


class LocalBroker:
    """One broker of several, which can be stopped and started again; used in a test's thread."""

    def __init__(self, brokers: LocalBrokers, settings: dict[str, str]) -> None:
        self._brokers = brokers
        self.settings = settings
        self._serving: Serving | None = None

    @property
    def port(self) -> int:
        assert self._serving is not None
        return self._serving.broker.listener.port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when clients are served. Raises StrandlineError."""
        self._brokers.run(self._start())

    async def _start(self) -> None:
        config = load_config(None, [f"{name}={value}" for name, value in self.settings.items()])
        self._serving = Serving(config, process_environment(config))
        await self._serving.start()

    def stop(self) -> None:
        """Stops cleanly; a broker that does not run stays as it is."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self._brokers.run(serving.stop())


class LocalBrokers:
    """So many brokers on one loop; used with `with`, which starts and stops them."""

    def __init__(self, folder: Path, *, count: int, **settings: str) -> None:
        """`settings` are properties of each, with `_` for a dot."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brokers", daemon=True)
        common = {name.replace("_", "."): value for name, value in settings.items()}
        self._brokers = [
            LocalBroker(
                self,
                {
                    "node.id": str(number),
                    "log.dirs": str(folder / f"broker-{number}"),
                    "listeners": "PLAINTEXT://127.0.0.1:0",
                    **common,
                },
            )
            for number in range(1, count + 1)
        ]

    def __getitem__(self, index: int) -> LocalBroker:
        return self._brokers[index]

    def __iter__(self) -> Iterator[LocalBroker]:
        return iter(self._brokers)

    def __enter__(self) -> LocalBrokers:
        self._thread.start()
        try:
            for broker in self._brokers:
                broker.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for broker in self._brokers:
                broker.stop()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_S)
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it on the brokers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)
