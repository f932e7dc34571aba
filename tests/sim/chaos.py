"""What happens to a broker at random: cuts, slow disks, a store that fails, and deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.sim.cluster import VirtualBroker, World

PAUSE_S = (0.5, 20.0)
OUTAGE_S = (1.0, 60.0)
# The longest wait for a crash point, which may lie behind the last record.
CRASH_S = 30.0
SLOW_POOLS = ("folder-0", "metadata", "syncs-0", "manifests", "copier", "reader", "changes")

# As often as a broker dies at one step.
DEATHS = 3
# Until it comes to the step again.
DEATH_S = 600.0


async def die_at(step: str, broker: VirtualBroker) -> None:
    """The broker dies at a crash point, again and again."""
    for _ in range(DEATHS):
        assert await broker.crash_at(step, within_s=DEATH_S), f"it never came to {step}"
        await broker.start()


class Chaos:
    """Troubles one broker until it is told to end; heals everything then."""

    def __init__(self, world: World, broker: VirtualBroker, points: Sequence[str] = ()) -> None:
        """It also dies at crash points, if there are any that it comes to."""
        self._world = world
        self._broker = broker
        self._points = points
        self._troubles: list[Callable[[], Awaitable[None]]] = [
            self._cut,
            self._slow,
            self._fail_store,
            self._leave_store,
            self._restart,
            self._kill,
            self._lose_power,
        ]
        if points:
            self._troubles.append(self._crash)

    async def run(self, times: int) -> None:
        world = self._world
        for _ in range(times):
            await asyncio.sleep(world.random.uniform(*PAUSE_S))
            trouble = world.random.choice(self._troubles)
            world.note("trouble", trouble.__name__)
            await trouble()
        world.slow.clear()
        world.store.failing_part, world.store.is_away = 0.0, False
        world.store.deliver_late()

    async def _cut(self) -> None:
        self._world.note("cut", self._world.network.reset_some(0.7))

    async def _slow(self) -> None:
        chosen = self._world.random.choice(SLOW_POOLS)
        self._world.slow ^= {chosen}

    async def _fail_store(self) -> None:
        self._world.store.failing_part = self._world.random.choice([0.0, 0.2, 0.6])

    async def _leave_store(self) -> None:
        self._world.store.is_away = True
        await asyncio.sleep(self._world.random.uniform(*OUTAGE_S))
        self._world.store.is_away = False

    async def _restart(self) -> None:
        await self._broker.stop()
        await self._broker.start()

    async def _kill(self) -> None:
        await self._broker.kill()
        await self._broker.start()

    async def _crash(self) -> None:
        if await self._broker.crash_at(self._world.random.choice(self._points), within_s=CRASH_S):
            await self._broker.start()

    async def _lose_power(self) -> None:
        await self._broker.lose_power()
        await self._broker.start()
