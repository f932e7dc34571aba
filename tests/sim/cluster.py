"""Brokers in virtual time, in a world drawn from a seed: network, disks, store, pools and chance.

    World(seed)  ─ loop, clock, network, store, disk, trace
       └─ VirtualBroker(folder, settings)    the broker of `strandline serve`, in an Environment of
                                             the world: start, stop, kill, stand still, lose power

Each start is a process of its own (loop.py), with its pools and its host; the clock is the host's.

All that differs between two runs is drawn from one `Random`, in the order in which the loop asks
for it, so a seed is a run. `trace` has what the world saw: bytes, requests to the store, jobs of
pools, and what scenarios note. `play` runs a scenario.

A killed broker does nothing any more: its jobs have no effect, its connections are reset, its
folders are free. With the power goes what was not synced (`disk.py`), and nobody is told.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from strandline.broker.config.loading import load_config
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.logs import LogParts
from strandline.broker.server.workers import Workers
from strandline.storage import entropy
from strandline.storage.crash_points import SimulatedCrash, simulated_crash
from strandline.storage.local.log.log import LocalLog
from tests.sim.children import start_inline
from tests.sim.client import VirtualClient
from tests.sim.disk import Disk
from tests.sim.loop import Process, VirtualClock, VirtualLoop, run, tasks_of
from tests.sim.network import VirtualNetwork
from tests.sim.pools import JobTime, TimedPool
from tests.sim.store import VirtualStore
from tests.support.cluster import Serving

# How long a job takes, by its pool: of the disk, of the store, of the processor.
DISK_S = (0.0001, 0.003)
SYNC_S = (0.001, 0.02)
STORE_S = (0.005, 0.1)
WORK_S = (0.0001, 0.002)
JOB_S: Mapping[str, tuple[float, float]] = {
    "disk": DISK_S,
    "metadata": SYNC_S,
    "moves": SYNC_S,
    "syncs": SYNC_S,
    **dict.fromkeys(["manifests", "changes", "probes", "copier", "reader", "expiration"], STORE_S),
}
SLOW_S = (0.5, 8.0)


class World:
    """What a simulation consists of, but for its brokers and clients."""

    def __init__(self, seed: int, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.random = Random(seed)
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.folder = folder
        self.trace: list[tuple[object, ...]] = []
        self.network = VirtualNetwork(loop, self.random, self.note)
        self.store = VirtualStore(loop, self.random, self.note)
        self.disk = Disk(self.random)
        # Pools whose jobs take seconds now.
        self.slow: set[str] = set()
        # Called when a crash point is reached where the broker is to die.
        self.on_crash: Callable[[], None] = lambda: None
        loop.set_exception_handler(self._on_exception)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), SimulatedCrash):
            self.on_crash()
        else:
            loop.default_exception_handler(context)

    def note(self, *what: object) -> None:
        self.trace.append((round(self.loop.time(), 6), *what))

    def digest(self) -> str:
        """Two runs of a seed have the same."""
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()

    def draw_job(self, slow: set[str], pool: str) -> JobTime:
        """`slow` are pools whose jobs take seconds, beside those of the world."""
        is_slow = pool in self.slow or pool in slow
        seconds = self.random.uniform(*(SLOW_S if is_slow else JOB_S.get(pool, WORK_S)))
        job = JobTime(seconds=seconds, is_late=self.random.random() < 0.5)
        self.note("job", pool, round(seconds, 6), job.is_late)
        return job

    def broker(self, number: int = 1, **settings: str) -> VirtualBroker:
        """A broker that has not started; `settings` are properties, with `_` for a dot."""
        return VirtualBroker(self, number, settings)

    def client(self, broker: VirtualBroker, *, name: str = "client") -> VirtualClient:
        return VirtualClient(self.network, lambda: broker.port, name=name)


class VirtualBroker:
    """One broker, or controller, through its starts and its deaths."""

    def __init__(self, world: World, number: int, settings: Mapping[str, str]) -> None:
        self.world = world
        self.folder = world.folder / f"broker-{number}"
        self.host = f"10.0.0.{number}"
        self.port = 9000 + number
        self.clock = VirtualClock(world.loop)
        # Pools whose jobs take seconds now.
        self.slow: set[str] = set()
        # That of the last start.
        self.process = Process(self.host)
        # Of its machine.
        self.boots = 1
        self._settings = {
            "node.id": str(number),
            "log.dirs": str(self.folder),
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            # A child process, which knows no virtual time.
            "log.cleaner.enable": "false",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._starting: asyncio.Task[None] | None = None
        self._serving: Serving | None = None
        self._pools: list[TimedPool] = []

    def __repr__(self) -> str:
        return f"<VirtualBroker {self._settings['node.id']} in {self.process!r}>"

    @property
    def node_id(self) -> int:
        return int(self._settings["node.id"])

    @property
    def serving(self) -> Serving | None:
        """None unless it has started."""
        return self._serving

    def log(self, topic: str, partition: int) -> LocalLog:
        """Returns the log of a replica of a broker that serves."""
        found = self.find_log(topic, partition)
        assert found is not None, (self, topic, partition)
        return found

    def find_log(self, topic: str, partition: int) -> LocalLog | None:
        """Returns the log of a replica; None if it does not serve, or has none."""
        started = None if self._serving is None else self._serving.broker.started
        if started is None:
            return None
        (logs,) = (one for one in started.parts if isinstance(one, LogParts))
        found = logs.replicas.partition(topic, partition)
        return None if found is None else found.log.local

    @property
    def is_running(self) -> bool:
        """Whether it has started, and no one has ended it since."""
        return self._serving is not None and self._starting is None

    async def start(self) -> None:
        """Returns when clients are served. Raises StrandlineError."""
        assert self._serving is None, self
        world = self.world
        world.network.power_on(self.host)
        self.process = Process(self.host)
        world.note("start", self.port)
        starting = world.loop.create_task(self._start(), context=self.process.context)
        self._starting = starting
        try:
            await starting
        except BaseException:
            if self._starting is starting:
                self._serving = None
            raise
        finally:
            if self._starting is starting:
                self._starting = None
        world.note("ready", self.port)

    async def _start(self) -> None:
        world = self.world
        config = load_config(None, [f"{name}={text}" for name, text in self._settings.items()])
        environment = Environment(
            clock=self.clock,
            workers=Workers.make(config, self._make_pool),
            open_store=lambda _config, _clock: world.store,
            network=world.network,
            start_child=start_inline,
            boot_of=lambda _folder: f"{self.host}, boot {self.boots}",
        )
        self._serving = Serving(config, environment)
        await self._serving.start()

    def _make_pool(self, size: int, name: str) -> TimedPool:
        draw = partial(self.world.draw_job, self.slow)
        pool = TimedPool(size, name, draw, self._note_crash)
        self._pools.append(pool)
        return pool

    async def stop(self) -> None:
        """Stops cleanly."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self.world.note("stop", self.port)
            self.process.is_leaving = True
            stopping = serving.stop()
            await self.world.loop.create_task(stopping, context=self.process.context)
            self.process.is_dead = True
            self.world.network.end(self.process)
        self._pools.clear()

    def pause(self) -> None:
        """Stands still, as by SIGSTOP."""
        self.world.note("stands still", self.port)
        self.process.stop()

    def go_on(self) -> None:
        self.world.note("goes on", self.port)
        self.process.go_on()

    def _note_crash(self) -> None:
        self.world.on_crash()

    def _die(self) -> None:
        self.process.is_dead = True
        for pool in self._pools:
            pool.die()
        self._pools.clear()
        self.world.network.end(self.process)

    async def crash_at(self, point: str, *, within_s: float) -> bool:
        """Dies where it comes to a crash point; returns whether it did, in so many seconds."""
        crashed = asyncio.Event()

        def on_crash() -> None:
            self._die()
            crashed.set()

        assert self._serving is not None
        self.world.on_crash = on_crash
        waiting = asyncio.ensure_future(crashed.wait())
        with simulated_crash(point):
            # What is no job ends the broker's tasks.
            await self._serving.ended((waiting,), within_s=within_s)
        waiting.cancel()
        self.world.on_crash = lambda: None
        has_died = crashed.is_set() or self._serving.has_ended
        self.world.note("crash point", point, has_died)
        if has_died:
            await self.kill()
        return has_died

    async def kill(self) -> None:
        """The process dies: nothing of it has an effect any more."""
        self.world.note("kill", self.port)
        self._die()
        await self._bury()

    async def lose_power(self) -> None:
        """Dies, and what was not synced is lost; nobody is told that it died."""
        self.world.note("power lost", self.port)
        self.world.network.lose_power(self.process)
        self._die()
        await self._bury()
        self.boots += 1
        lost_bytes = self.world.disk.lose_power(self.folder)
        self.world.note("lost", self.port, lost_bytes)

    async def _bury(self) -> None:
        """Ends what is left of the tasks of a dead process."""
        process = self.process
        serving, self._serving = self._serving, None
        starting, self._starting = self._starting, None
        if process.is_stopped:
            # What has waited must find itself cancelled.
            for task in tasks_of(process):
                task.cancel()
            process.go_on()
        if starting is not None:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        if serving is not None:
            await serving.die()
        left = tasks_of(process)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        process.is_buried = True


def play(seed: int, folder: Path, scenario: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """Runs a scenario in the world of a seed; returns the world, with its trace."""
    worlds: list[World] = []

    async def played() -> None:
        world = World(seed, folder)
        worlds.append(world)
        with entropy.seeded(world.random), world.disk.watched():
            await scenario(world)

    try:
        run(played)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return worlds[0]
