"""Carries out a plan: begins each trouble at its time, and heals it when it has lasted.

Who is struck already is left alone. The power goes only while every replica is in sync: nothing
that was acknowledged may be lost then, and with it nothing that others lose at the same time.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from random import Random

from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from tests.support.fault_proxy import FaultProxy
from tests.support.wire import WireClient
from tests.system.cluster_faults.machines import CONTROLLER, REPLICAS, Machine, Machines
from tests.system.cluster_faults.people import People
from tests.system.cluster_faults.plan import JUMP_MS, Trouble

TICK_S = 0.05
CALL_S = 2.0
ROLL_S = 2.0


class Troubles:
    """Of one run; `say` tells what is done."""

    def __init__(
        self,
        machines: Machines,
        people: People,
        topics: Sequence[str],
        partitions: int,
        say: Callable[[str], None],
        proxy: FaultProxy | None = None,
    ) -> None:
        self._machines, self._people, self._proxy = machines, people, proxy
        self._topics, self._partitions, self._say = topics, partitions, say
        self._busy: set[str] = set()
        # When, and what is done then.
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self.ended: list[str] = []
        self.done = 0

    def run(self, plan: Sequence[Trouble], seconds: float) -> None:
        """Returns after so many seconds, when all is healed."""
        began_s = time.monotonic()
        for trouble in plan:
            self._later(trouble.at_s, lambda trouble=trouble: self._begin(trouble))  # type: ignore[misc]
        self._began_s = began_s
        while (now_s := time.monotonic() - began_s) < seconds or self._due:
            while self._due and self._due[0][0] <= now_s:
                heapq.heappop(self._due)[2]()
            self.tick()
            time.sleep(TICK_S)
        self._machines.heal()

    def tick(self) -> None:
        """Starts again what has ended."""
        self.ended += self._machines.keep_running()
        self._people.keep_running()

    def have_all_begun(self) -> bool:
        """Whether each client was told something."""
        self.tick()
        return self._people.have_begun()

    def _later(self, at_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._number), do))

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        self._later(time.monotonic() - self._began_s + seconds, do)

    def _begin(self, trouble: Trouble) -> None:
        method = getattr(self, "_" + trouble.kind.replace(" ", "_"))
        done = method(trouble)
        what = done if isinstance(done, str) else str(trouble)
        self._say(f"{time.monotonic() - self._began_s:6.1f} s  {what}{'' if done else ': not now'}")
        self.done += bool(done)

    def _broker(self, number: int) -> Machine:
        return self._machines.brokers[number - 1]

    def _strike(
        self,
        machine: Machine,
        trouble: Trouble,
        begin: Callable[[], object],
        end: Callable[[], object],
    ) -> bool:
        """One trouble of a machine at a time."""
        if machine.name in self._busy or machine.is_ending or not machine.process.running:
            return False
        self._busy.add(machine.name)
        begin()

        def over() -> None:
            end()
            self._busy.discard(machine.name)

        self._after(trouble.lasts_s, over)
        return True

    # --- processes -------------------------------------------------------------------------------

    def _kill(self, trouble: Trouble) -> bool:
        one = self._broker(trouble.brokers[0])
        return self._strike(one, trouble, one.kill, one.come_back)

    def _stop(self, trouble: Trouble) -> bool:
        one = self._broker(trouble.brokers[0])
        return self._strike(one, trouble, one.stop_running, one.go_on)

    def _kill_controller(self, trouble: Trouble) -> bool:
        one = self._machines.controller
        return self._strike(one, trouble, one.kill, one.come_back)

    def _stop_controller(self, trouble: Trouble) -> bool:
        one = self._machines.controller
        return self._strike(one, trouble, one.stop_running, one.go_on)

    def _kill_all(self, trouble: Trouble) -> bool:
        struck = [self._strike(one, trouble, one.kill, one.come_back) for one in self._machines.all]
        return any(struck)

    def _restart(self, trouble: Trouble) -> bool:
        return self._ask_to_end(self._broker(trouble.brokers[0]))

    def _ask_to_end(self, one: Machine) -> bool:
        if one.name in self._busy or one.is_ending:
            return False
        one.ask_to_end()
        return True

    def _roll(self, trouble: Trouble) -> bool:
        for place, number in enumerate(trouble.brokers):
            self._after(
                place * ROLL_S,
                lambda number=number: self._ask_to_end(self._broker(number)),  # type: ignore[misc]
            )
        return True

    def _kill_client(self, trouble: Trouble) -> str:
        return f"kill client {self._people.kill_one(Random(trouble.chance))}"

    # --- links -----------------------------------------------------------------------------------

    def _hold(self, ways: Sequence[tuple[str, str]], trouble: Trouble) -> str:
        for way in ways:
            self._machines.links.cut(*way)

        def heal() -> None:
            for way in ways:
                self._machines.links.heal(*way)

        self._after(trouble.lasts_s, heal)
        words = ", ".join(f"{a} to {b}" for a, b in ways)
        return f"{trouble.kind} for {trouble.lasts_s:.1f} s: {words}"

    def _names(self, trouble: Trouble) -> list[str]:
        return [self._broker(number).name for number in trouble.brokers]

    def _cut(self, trouble: Trouble) -> str:
        a, b, *_ = self._names(trouble)
        return self._hold([(a, b), (b, a)], trouble)

    def _cut_one_way(self, trouble: Trouble) -> str:
        a, b, *_ = self._names(trouble)
        return self._hold([(a, b)], trouble)

    def _cut_from_the_controller(self, trouble: Trouble) -> str:
        ways = [(self._names(trouble)[0], CONTROLLER), (CONTROLLER, self._names(trouble)[0])]
        return self._hold([ways, ways[:1], ways[1:]][trouble.chance % 3], trouble)

    def _isolate(self, trouble: Trouble) -> str:
        """From all other brokers; in half of the cases also from the controller."""
        one, *others = self._names(trouble)
        others += [CONTROLLER] * (trouble.chance % 2)
        return self._hold([way for b in others for way in ((one, b), (b, one))], trouble)

    def _ring(self, trouble: Trouble) -> str:
        """Each broker reaches its two neighbours alone; of three, the ends miss each other."""
        names = self._names(trouble)
        size = len(names)
        if size <= REPLICAS:
            return self._hold([(names[0], names[-1]), (names[-1], names[0])], trouble)
        apart = [
            (names[a], names[b])
            for a in range(size)
            for b in range(size)
            if (a - b) % size not in (0, 1, size - 1)
        ]
        return self._hold(apart, trouble)

    def _reset(self, trouble: Trouble) -> bool:
        names = [*self._names(trouble), CONTROLLER]
        for target in names:
            self._machines.links.reset(names[0], target)
            self._machines.links.reset(target, names[0])
        return True

    def _store_away(self, trouble: Trouble) -> bool:
        if self._proxy is None or "store" in self._busy:
            return False
        proxy = self._proxy
        self._busy.add("store")
        proxy.go_away()

        def come_back() -> None:
            proxy.come_back()
            self._busy.discard("store")

        self._after(trouble.lasts_s, come_back)
        return True

    # --- disks and clocks ------------------------------------------------------------------------

    def _lose_power(self, trouble: Trouble) -> str | bool:
        one = self._broker(trouble.brokers[0])
        if self._busy or not self._people.all_in_sync():
            return False
        lost: list[int] = []
        chance = Random(trouble.chance)
        if not self._strike(
            one, trouble, lambda: lost.append(one.lose_power(chance)), one.come_back
        ):
            return False
        return f"{trouble}: {sum(lost)} bytes are gone"

    def _full_disk(self, trouble: Trouble) -> bool:
        one = self._broker(trouble.brokers[0])
        return self._strike(one, trouble, one.fill_disk, one.mend)

    def _broken_disk(self, trouble: Trouble) -> bool:
        one = self._broker(trouble.brokers[0])
        return self._strike(one, trouble, one.break_disk, one.mend)

    def _jump(self, trouble: Trouble) -> str | bool:
        one = self._broker(trouble.brokers[0])
        wrong_ms = Random(trouble.chance).randint(-JUMP_MS, JUMP_MS)
        done = self._strike(one, trouble, lambda: one.set_clock(wrong_ms), one.mend)
        return done and f"{trouble}, by {wrong_ms} ms"

    # --- administration --------------------------------------------------------------------------

    def _reassign(self, trouble: Trouble) -> str | bool:
        chance = Random(trouble.chance)
        topic, partition = chance.choice(self._topics), chance.randrange(self._partitions)
        replicas = chance.choice([REPLICAS, REPLICAS, REPLICAS - 1])
        nodes = list(trouble.brokers[:replicas])
        request = AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[ReassignablePartition(partition_index=partition, replicas=nodes)],
                )
            ]
        )
        return self._asked(request, AlterPartitionReassignmentsResponse, 0) and (
            f"reassign {topic}-{partition} to {nodes}"
        )

    def _elect(self, _: Trouble) -> bool:
        request = ElectLeadersRequest(topic_partitions=None)
        return self._asked(request, ElectLeadersResponse, 2)

    def _asked(self, request: object, answer: type, version: int) -> bool:
        """Whether a broker answered; it may refuse, or wait for a controller that is away."""
        for one in self._machines.brokers:
            if one.name in self._busy or one.is_ending:
                continue
            with (
                suppress(OSError),
                WireClient(one.process.port, timeout_s=CALL_S) as client,
            ):
                client.ask(request, answer, version)  # type: ignore[type-var,arg-type]
                return True
        return False
