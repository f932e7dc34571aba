"""What happens to a cluster at random: processes that die or stand still, links that are cut.

Each trouble begins while others may last. Of a process only one thing happens at a time, and who
was stopped or died comes back: as the supervisor starts it again, or its machine gets power. After
the last one everything is healed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from strandline.storage.crash_points import (
    TRANSACTION_AFTER_COMPLETE,
    TRANSACTION_AFTER_MARKER,
    TRANSACTION_AFTER_PREPARE,
)
from strandline.storage.errors import StrandlineError
from tests.sim.cluster import VirtualBroker, World
from tests.sim.network import CLIENT_HOST
from tests.sim.pipes import Link
from tests.sim.several.cluster import VirtualCluster

PAUSE_S = (0.2, 8.0)
# Shorter and longer than a session.
LASTS_S = (0.5, 25.0)
AWAY_S = (0.0, 15.0)
SLOW_LINK_S = (0.05, 1.5)
# Of the answers of a slow leader, to its followers; the second one leaves the in-sync set.
LATE_S, LATER_S = (0.2, 1.0), (1.0, 3.0)
LATE_FOR_S = (2.5, 6.0)
# Longer than a session.
FENCED_S = (10.0, 15.0)
# Records of clients are refused from an hour in the future on.
JUMP_MS = 600_000
SLOW_POOLS = ("folder-0", "metadata", "syncs-0", "disk")
STEPS = (TRANSACTION_AFTER_PREPARE, TRANSACTION_AFTER_MARKER, TRANSACTION_AFTER_COMPLETE)
# Of a second process under an id that is taken.
DOUBLE_NUMBER = 50


class Troubles:
    """Troubles a cluster, and heals it at the end."""

    def __init__(
        self,
        world: World,
        cluster: VirtualCluster,
        only: Sequence[str] | None = None,
        *,
        replicas: int = 1,
        is_in_sync: Callable[[], bool] = lambda: True,
    ) -> None:
        """`only` are names of kinds; without it there are all but doubles, which lose records.

        Brokers of topics with one replica have nothing to say to each other. `is_in_sync` says
        whether all replicas are in sync.
        """
        self._world = world
        self._cluster = cluster
        self._busy: set[VirtualBroker] = set()
        self._kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "power": self._lose_power,
            "pause": self._pause,
            "restart": self._restart,
            "controller": self._kill_controller,
            "pause controller": self._pause_controller,
            "reset": self._reset,
            "cut": self._cut,
            "apart": self._keep_apart,
            "slow leader": self._slow_leader,
            "power alone": self._lose_power_alone,
            "blackout": self._black_out,
            "last one": self._lose_power_of_the_last,
            "rolling": self._restart_all,
            "lossy": self._lose_packets,
            "slow link": self._slow_link,
            "slow disk": self._slow_disk,
            "slow controller": self._slow_controller,
            "jump": self._jump,
            "double": self._double,
        }
        self._is_in_sync = is_in_sync
        self._without_power = asyncio.Lock()
        without = {"double", "power alone", "slow controller", "last one"}
        if replicas == 1:
            without |= {"apart", "slow leader", "blackout", "rolling"}
        self._chosen = [one for one in self._kinds if one not in without] if only is None else only
        self._doubles = 0

    async def run(self, times: int) -> None:
        """Returns when all is healed, and every process serves."""
        world = self._world
        async with asyncio.TaskGroup() as tasks:
            for _ in range(times):
                await asyncio.sleep(world.random.uniform(*PAUSE_S))
                kind = world.random.choice(self._chosen)
                world.note("trouble", kind)
                tasks.create_task(self._begin(kind))
        world.network.heal()
        for node in self._cluster.nodes:
            node.slow.clear()

    async def _begin(self, kind: str) -> None:
        await self._kinds[kind]()

    # --- processes -------------------------------------------------------------------------------

    async def _of_a_broker(self, happens: Callable[[VirtualBroker], Awaitable[None]]) -> None:
        await self._of(self._world.random.choice(self._cluster.brokers), happens)

    async def _of(
        self, node: VirtualBroker, happens: Callable[[VirtualBroker], Awaitable[None]]
    ) -> None:
        if node in self._busy:
            return
        self._busy.add(node)
        try:
            await happens(node)
        finally:
            self._busy.discard(node)

    async def _lasts(self, range_s: tuple[float, float] = LASTS_S) -> None:
        await asyncio.sleep(self._world.random.uniform(*range_s))

    async def _back(self, node: VirtualBroker) -> None:
        if self._world.random.random() < 0.5:
            await self._lasts(AWAY_S)
        await self._cluster.start_again(node)

    async def _killed(self, node: VirtualBroker) -> None:
        await node.kill()
        await self._back(node)

    async def _kill(self) -> None:
        await self._of_a_broker(self._killed)

    async def _kill_controller(self) -> None:
        await self._of(self._cluster.controller, self._killed)

    async def _lost_power(self, node: VirtualBroker) -> None:
        await node.lose_power()
        await self._lasts(AWAY_S)
        await self._cluster.start_again(node)

    async def _lose_power(self) -> None:
        await self._of(self._world.random.choice(self._cluster.nodes), self._lost_power)

    async def _black_out(self) -> None:
        """All that run lose their power at once."""
        async with asyncio.TaskGroup() as tasks:
            for node in self._cluster.nodes:
                tasks.create_task(self._of(node, self._lost_power))

    async def _lose_power_alone(self) -> None:
        """A broker loses its power while all others run, and the next one when all replicas are in
        sync again: what two replicas have survives, synced or not.

        Another one that is dead or stands still may have left the in-sync set before the controller
        knows of the lost power: then the replica without its records leads, as in Kafka.
        """
        async with self._without_power:
            while self._busy:
                await asyncio.sleep(0.5)
            await self._of_a_broker(self._lost_power)
            await self._all_in_sync()

    async def _lose_power_of_the_last(self) -> None:
        """Brokers stop one after the other, the last one loses its power, and is back first: it may
        not lead, for those who stopped have what it has lost.
        """
        async with self._without_power:
            await self._all_in_sync()
            *stopping, last = self._world.random.sample(self._cluster.brokers, 3)
            for node in stopping:
                await node.stop()
                await self._lasts(FENCED_S)
            await last.lose_power()
            await self._lasts(FENCED_S)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._cluster.start_again(last))
                await self._lasts(FENCED_S)
                for node in stopping:
                    tasks.create_task(self._cluster.start_again(node))

    async def _all_in_sync(self) -> None:
        while not self._is_in_sync():
            await asyncio.sleep(0.5)

    async def _slow_leader(self) -> None:
        """Answers of a broker are late, to one more than to the other, and then it dies."""
        one, *others = self._world.random.sample(self._cluster.brokers, 3)
        links = [self._world.network.link(one.host, other.host) for other in others]
        for link, delay_s in zip(links, (LATE_S, LATER_S), strict=True):
            link.delay_s = delay_s
        await self._lasts(LATE_FOR_S)
        await self._of(one, self._killed)
        for link in links:
            link.heal()

    async def _paused(self, node: VirtualBroker) -> None:
        node.pause()
        await self._lasts()
        if self._world.random.random() < 0.2:
            await self._killed(node)
        else:
            node.go_on()

    async def _pause(self) -> None:
        await self._of_a_broker(self._paused)

    async def _pause_controller(self) -> None:
        await self._of(self._cluster.controller, self._paused)

    async def _restarted(self, node: VirtualBroker) -> None:
        await node.stop()
        await self._back(node)

    async def _restart(self) -> None:
        await self._of_a_broker(self._restarted)

    async def _restart_all(self) -> None:
        """A rolling restart: the next one when all replicas are in sync again."""
        for node in self._cluster.brokers:
            await self._of(node, self._restarted)
            await self._all_in_sync()

    async def _double(self) -> None:
        """Another process takes the id of a broker, with folders of its own: never while it lives.

        If it got the id of one that was silent for a session, that one is started again later.
        """
        self._doubles += 1
        brokers = self._cluster.brokers
        silent = [one for one in brokers if one.process.is_stopped]
        broker = self._world.random.choice(silent or brokers)
        double = self._cluster.seat(
            DOUBLE_NUMBER + self._doubles,
            node_id=str(broker.node_id),
            initial_broker_registration_timeout_ms="20000",
        )
        try:
            await double.start()
        except StrandlineError as error:
            self._world.note("double refused", str(error))
            await double.kill()
            return
        await self._lasts()
        await double.kill()
        while broker in self._busy:
            await asyncio.sleep(0.1)
        await self._of(broker, self._killed)

    # --- links and disks -------------------------------------------------------------------------

    def _some_links(self) -> list[Link]:
        """One direction between two hosts, or both, or all of a host."""
        random, network = self._world.random, self._world.network
        hosts = [*(node.host for node in self._cluster.nodes), CLIENT_HOST]
        source, target = random.sample(hosts, 2)
        match random.randrange(3):
            case 0:
                return [network.link(source, target)]
            case 1:
                return [network.link(source, target), network.link(target, source)]
            case _:
                others = [one for one in hosts if one != source]
                return [
                    link
                    for other in others
                    for link in (network.link(source, other), network.link(other, source))
                ]

    async def _trouble_links(self, begin: Callable[[Link], None]) -> None:
        links = self._some_links()
        for link in links:
            begin(link)
        await self._lasts()
        for link in links:
            link.heal()

    async def _cut(self) -> None:
        def cut(link: Link) -> None:
            link.is_cut = True

        await self._trouble_links(cut)

    async def _keep_apart(self) -> None:
        """A broker does not reach the other brokers, and all reach the controller and clients."""
        brokers, network = self._cluster.brokers, self._world.network
        one = self._world.random.choice(brokers)
        links = [
            link
            for other in brokers
            if other is not one
            for link in (network.link(one.host, other.host), network.link(other.host, one.host))
        ]
        for link in links:
            link.is_cut = True
        await self._lasts()
        for link in links:
            link.heal()

    async def _lose_packets(self) -> None:
        def lose(link: Link) -> None:
            link.lossy_part = 0.3

        await self._trouble_links(lose)

    async def _slow_link(self) -> None:
        def slow(link: Link) -> None:
            link.delay_s = SLOW_LINK_S

        await self._trouble_links(slow)

    async def _reset(self) -> None:
        self._world.note("reset", self._world.network.reset_some(0.5))

    async def _slow_disk(self) -> None:
        node = self._world.random.choice(self._cluster.nodes)
        is_controller = node is self._cluster.controller
        pool = "metadata" if is_controller else self._world.random.choice(SLOW_POOLS)
        await self._slow(node, pool)

    async def _slow_controller(self) -> None:
        await self._slow(self._cluster.controller, "metadata")

    async def _slow(self, node: VirtualBroker, pool: str) -> None:
        node.slow.add(pool)
        await self._lasts()
        node.slow.discard(pool)

    async def _jump(self) -> None:
        node = self._world.random.choice(self._cluster.nodes)
        delta_ms = self._world.random.choice([-JUMP_MS, -500, 500, JUMP_MS])
        node.clock.jump_ms(delta_ms)
        await self._lasts()
        node.clock.jump_ms(-delta_ms)
