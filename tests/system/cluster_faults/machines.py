"""A controller and its brokers: processes in worlds of their own, with relays between them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import TracebackType

from strandline.storage.local.log_dirs import last_run
from tests.sim.disk import Disk
from tests.support.broker import BrokerProcess
from tests.support.controller import LISTENERS, ControllerProcess
from tests.support.fork_server import MAIN
from tests.system.cluster_faults import node
from tests.system.cluster_faults.links import Links
from tests.system.cluster_faults.node import BREAKS, FULL, NodeWorld, SyncedSizes

CONTROLLER = "controller"
SESSION_MS = 6000
REPLICAS = 3
MIN_IN_SYNC = 2
SETTINGS = {
    "process.roles": "broker",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": LISTENERS,
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "8000",
    "min.insync.replicas": str(MIN_IN_SYNC),
    "default.replication.factor": str(REPLICAS),
    "offsets.topic.replication.factor": str(REPLICAS),
    "transaction.state.log.replication.factor": str(REPLICAS),
    "transaction.state.log.min.isr": str(MIN_IN_SYNC),
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # Segments are closed by their age.
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "100",
}


class Machine:
    """A process, which is to run unless it was taken away, and its disk."""

    def __init__(self, name: str, process: BrokerProcess, folder: Path, fault: str) -> None:
        self.name = name
        self.process = process
        self.is_away = False
        self.is_stopped = False
        # It may end, and say whatever it likes, since its disk was taken from it.
        self.may_end = False
        # Asked to end by a signal.
        self.is_ending = False
        self._folder = folder
        self._fault = fault
        self.world = NodeWorld(state=str(folder / "state"), syncs=str(folder / "syncs"))

    def give_world(self, routes: Mapping[int, int]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.world = NodeWorld(
            state=self.world.state,
            syncs=self.world.syncs,
            routes=dict(routes),
            fault=self._fault,
        )
        self.world.set_state()
        self.process.environment |= {MAIN: node.__name__, node.VARIABLE: self.world.text()}

    def kill(self) -> None:
        self.is_away, self.is_stopped = True, False
        self.process.kill()

    def come_back(self) -> None:
        self.is_away = False
        self.keep_running()

    def keep_running(self) -> str | None:
        """Starts a process that has ended; returns how it ended, unless it was asked to."""
        if self.is_away or self.process.running:
            return None
        was_asked, self.is_ending = self.is_ending or self.may_end, False
        code = self.process.wait_for_exit(0)
        self.process.begin()
        return None if was_asked or code == -signal.SIGKILL else f"{self.name} ended: {code}"

    def stop_running(self) -> None:
        self.is_stopped = True
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            os.kill(self.process.pid, signal.SIGCONT)

    def ask_to_end(self) -> None:
        if self.process.running:
            self.is_ending = True
            os.kill(self.process.pid, signal.SIGTERM)

    def lose_power(self, chance: Random) -> int:
        """Kills it; what was not synced may be gone. Returns how many bytes are."""
        self.kill()
        # The machine that it is on goes on: with its power the boot would have another name.
        last_run.remove(self.process.data)
        sizes = SyncedSizes(Path(self.world.syncs))
        try:
            return Disk(chance, sizes).lose_power(self.process.data)
        finally:
            sizes.close()

    def set_clock(self, wrong_ms: int) -> None:
        self.world.set_state(wrong_ms=wrong_ms)

    def fill_disk(self) -> None:
        self.may_end = True
        self.world.set_state(disk=FULL)

    def break_disk(self) -> None:
        self.may_end = True
        self.world.set_state(disk=BREAKS)

    def mend(self) -> None:
        self.world.set_state()


class Machines:
    """Used with `with`; names are `controller` and `broker 1` on."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int,
        settings: Mapping[str, str],
        fault: str = "",
    ) -> None:
        self.folder = folder
        controller = ControllerProcess(
            folder / CONTROLLER, broker_session_timeout_ms=str(SESSION_MS)
        )
        # It decides by them, and knows whether there is an archive.
        controller.settings = {**SETTINGS, **settings, **controller.settings}
        self.controller = Machine(CONTROLLER, controller, folder / CONTROLLER, "")
        self.brokers = [
            Machine(
                f"broker {number}",
                BrokerProcess(
                    folder / f"broker-{number}",
                    settings={
                        **SETTINGS,
                        **settings,
                        "node.id": str(number),
                        "controller.quorum.bootstrap.servers": controller.bootstrap,
                    },
                ),
                folder / f"broker-{number}",
                fault,
            )
            for number in range(1, brokers + 1)
        ]
        self.all = [self.controller, *self.brokers]
        ports = {one.name: one.process.port for one in self.all}
        self.links = Links(ports, list(ports))
        self._open = ExitStack()

    @property
    def bootstrap(self) -> str:
        return ",".join(one.process.bootstrap for one in self.brokers)

    def __enter__(self) -> Machines:
        self._open.enter_context(self.links)
        for one in self.all:
            self._open.callback(one.process.kill)
            one.give_world(self.links.routes(one.name))
        self.controller.process.start()
        for one in self.brokers:
            one.process.begin()
        for one in self.brokers:
            one.process._await_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def heal(self) -> None:
        """All links pass, all disks have room, every process goes on or is there again."""
        self.links.heal_all()
        for one in self.all:
            one.mend()
            one.go_on()
            if one.is_away:
                one.come_back()

    def keep_running(self) -> list[str]:
        """Starts what has ended; says what ended though nobody asked it to."""
        return [told for one in self.all if (told := one.keep_running()) is not None]

    def end(self, told: Callable[[str], None]) -> None:
        """As a signal ends them, the brokers first."""
        for one in self.brokers:
            one.ask_to_end()
        for one in (*self.brokers, self.controller):
            if one is self.controller:
                one.ask_to_end()
            code = one.process.wait_for_exit(120)
            if code != 0:
                told(f"{one.name} ended with {code}")
