"""A broker of any role: starts its parts, runs their loops, and stops them.

    start   the role (`local.py`, `tiered.py`, `read_only.py`, `seat.py`) makes its parts, in order:
            1 lock the log folders            5 load the logs (recovering after an unclean stop)
            2 open the object store           6 attach them to their tiers
            3 load the metadata log           7 create what the image has and the disk lacks
            4 record this start (new epochs)

    run     listen, tell that it is ready, run the loops of all parts until the stop

    leave   what others can take over moves to them

    stop    1 stop accepting, drop connections   4 write the checkpoints, mark the stop as clean
            2 end the tasks                      5 write the last changes to the bucket
            3 flush and close the logs           6 unlock the log folders

What is global to a process (signals, threads, garbage) is in `process.py` and `environment.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from typing import TypeAlias

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listeners import Listener
from strandline.broker.network.connection import Spawn
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.part import Front, Part
from strandline.broker.server.upkeep.background import keep_running
from strandline.storage.errors import StrandlineError

log = logging.getLogger(__name__)


class Started:
    """The parts of a broker that has started."""

    def __init__(self, front: Front, *parts: Part) -> None:
        """`parts` in the order in which they are closed last."""
        self.front = front
        self.parts: tuple[Part, ...] = (*parts, front)


# Makes the parts of a role. What it opens and has to be closed after a failed start, too, it enters
# into the stack. Raises StrandlineError.
Role: TypeAlias = Callable[[Environment, BrokerConfig, Spawn, ExitStack], Awaitable[Started]]


class Broker:
    """One broker, which starts, runs and stops the parts of its role."""

    def __init__(self, environment: Environment, config: BrokerConfig, role: Role) -> None:
        self._environment = environment
        self._config = config
        self._role = role
        self._tasks = asyncio.TaskGroup()
        self._opened = ExitStack()
        self.started: Started | None = None

    @property
    def listener(self) -> Listener:
        """The first listener, with the port that it got."""
        assert self.started is not None
        return self.started.front.listener

    def observe(self, connected: socket.socket) -> None:
        """Answers the monitoring request that comes by a connection; closes it before the start."""
        if self.started is None:
            connected.close()
        else:
            self.started.front.observe(connected)

    async def start(self) -> None:
        """Runs all steps before the ready line. Raises StrandlineError."""
        make = self._role(self._environment, self._config, self._tasks.create_task, self._opened)
        self.started = await make

    async def run(
        self, stopping: asyncio.Event, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        """Serves until `stopping` is set. Raises CannotListen, and why a part gave up."""
        started, failed = self.started, None
        assert started is not None
        await started.front.listen()
        try:
            async with self._tasks as tasks:
                for part in started.parts:
                    for name, loop in part.loops.items():
                        tasks.create_task(keep_running(name, loop), name=name)
                    tasks.create_task(part.give_up(), name="give up")
                tasks.create_task(_tell_ready(started.parts, on_ready), name="ready")
                await stopping.wait()
                log.info("stopping")
                for part in started.parts:
                    await part.leave()
                started.front.stop_serving()  # 1
                # A coroutine that is cancelled before its first step warns on stderr.
                await asyncio.sleep(0)
                raise _Stop  # 2
        except* _Stop:
            pass
        except* StrandlineError as group:
            failed = group.exceptions[0]
        if failed is not None:
            raise failed

    async def stop(self) -> None:
        """Stops cleanly; the next start recovers the logs of unreachable folders."""
        parts = self.started.parts[::-1] if self.started is not None else ()
        with self._opened:
            for part in parts:
                await part.end()
            for part in parts:
                await part.close()  # 3 to 6
        log.info("stopped")


async def _tell_ready(parts: Iterable[Part], on_ready: Callable[[], None]) -> None:
    for part in parts:
        await part.serve()
    on_ready()


class _Stop(Exception):
    """Raised inside the task group to end it."""
