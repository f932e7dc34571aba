"""Brokers and their controller in virtual time: what `strandline serve --brokers N` runs.

    controller   node 100 at 10.0.0.100:9100       brokers   node N at 10.0.0.N:900N

Each is a process of its own in the world (`../cluster.py`), with its folder, its clock, its pools
and its links to the others. They speak Kafka's requests to each other over the simulated network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from strandline.storage.errors import StrandlineError
from tests.sim.cluster import VirtualBroker, World

CONTROLLER_NUMBER = 100
SECURITY = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
# Acknowledged is what survives a loss of power.
DURABLE = {
    "log.flush.interval.messages": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    # Most of a world's computing is that somebody looks and finds nothing to do.
    "log.retention.check.interval.ms": "600000",
}
ARCHIVE = {
    "remote.log.storage.system.enable": "true",
    "strandline.remote.url": "file:///in/memory",
}
# Of a broker's archive and retention.
UPKEEP = {
    "remote.log.manager.task.interval.ms": "2000",
    "log.retention.check.interval.ms": "5000",
    "log.initial.task.delay.ms": "1000",
}
# Between two attempts of a supervisor to start a process.
START_AGAIN_S = 0.5


class VirtualCluster:
    """A controller, and brokers 1 to N."""

    def __init__(
        self,
        world: World,
        brokers: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        is_archived: bool = False,
    ) -> None:
        """`settings` are properties of each broker, with `_` for a dot."""
        self.world = world
        common = {
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": SECURITY,
            **(ARCHIVE if is_archived else {}),
        }
        self.controller = VirtualBroker(
            world,
            CONTROLLER_NUMBER,
            {
                **common,
                "process.roles": "controller",
                "listeners": f"CONTROLLER://10.0.0.{CONTROLLER_NUMBER}:{9000 + CONTROLLER_NUMBER}",
            },
        )
        self._seat = {
            **common,
            **DURABLE,
            **(UPKEEP if is_archived else {}),
            "process.roles": "broker",
            "controller.quorum.bootstrap.servers": f"{self.controller.host}:{self.controller.port}",
            **{name.replace("_", "."): text for name, text in (settings or {}).items()},
        }
        self.brokers = [self.seat(number) for number in range(1, brokers + 1)]

    def seat(self, number: int, **settings: str) -> VirtualBroker:
        """Makes a broker that has not started; `settings` are its own."""
        own = {name.replace("_", "."): text for name, text in settings.items()}
        return VirtualBroker(self.world, number, {**self._seat, **own})

    @property
    def nodes(self) -> list[VirtualBroker]:
        return [self.controller, *self.brokers]

    async def start(self) -> None:
        """Returns when all brokers serve. Raises StrandlineError."""
        async with asyncio.TaskGroup() as tasks:
            for node in self.nodes:
                tasks.create_task(node.start())

    async def stop(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for broker in self.brokers:
                tasks.create_task(broker.stop())
        await self.controller.stop()

    async def start_again(self, node: VirtualBroker) -> None:
        """Starts a process until it serves, as a supervisor does."""
        while True:
            try:
                await node.start()
                return
            except StrandlineError as error:
                self.world.note("does not start", node.port, str(error))
                await node.kill()
                await asyncio.sleep(START_AGAIN_S)
