"""Carries out the steps of a plan: a method for each event, and the clients that live meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from tests.support.fault_proxy import Action, Rule
from tests.support.wire import WireClient
from tests.system.calls import batch, delete_records
from tests.system.soak.brokers import ask_to_move
from tests.system.soak.clients import KeenProducer, Member, Probe, Reader
from tests.system.soak.keyed_producer import KeyedProducer
from tests.system.soak.libraries import LIBRARIES
from tests.system.soak.model import GroupProgress, PartitionModel
from tests.system.soak.plan import Event, Step
from tests.system.soak.transacted.scene import TransactionScene
from tests.system.soak.world import CHURN, MAIN, PROBE, SWITCHED, TABLE, TRANSACTED, World

GROUPS = {"classic-group": "classic", "new-group": "consumer"}
REPLICA_LIBRARY = "librdkafka"
MEMBERS = ("classic-group", "classic-group", "new-group")
# Of each producer to each of its partitions. A record has 3 KB on average.
RECORDS_PER_S = 25.0
KEPT_BYTES = 1024 * 1024
# Without anything getting on. What a compacted topic copies is cleaned before, by a process that
# yields to all others (nice 10): where many want the same core it waits for minutes.
SETTLE_S_MAX = 240.0
LOCAL_KEPT = ("1", "2097152", "-2")
ROLL_MS = ("200", "700", "3000")


class Story:
    """See the top of this file."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.progress = {group: GroupProgress() for group in GROUPS}
        self.producers: list[KeenProducer] = []
        self.readers: list[Reader] = []
        self.members: list[Member] = []
        self.sent_count = 0
        self._seed = seed
        self._producer_count = 0
        self._writing: dict[str, KeenProducer] = {}
        # Topics that are written to for good; and of these, those that groups read: no gaps.
        self.lasting = {key: model for key, model in world.models.items() if model.topic != CHURN}
        self.grouped = {key: m for key, m in self.lasting.items() if m.topic != TABLE}
        self.transactions = TransactionScene(world)
        self.probe = Probe(world.broker, PROBE, batch(1), world.violations)
        self._events: dict[Event, Callable[[Step], None]] = {
            Event.KILL: self._kill,
            Event.STOP: self._stop,
            Event.CRASH_AT: self._crash_at,
            Event.STORE_AWAY: self._store_away,
            Event.STORE_REFUSES: self._store_refuses,
            Event.STORE_HANGS: self._store_hangs,
            Event.DELETE_RECORDS: self._delete_records,
            Event.RECREATE: self._recreate,
            Event.PAUSE_COPYING: self._pause_copying,
            Event.TURN_OFF: self._turn_off,
            Event.RETAIN: self._retain,
            Event.KEEP_LOCALLY: self._keep_locally,
            Event.ROLL: self._roll,
            Event.LOSE_DISK: self._lose_disk,
            Event.REJOIN: self._rejoin,
            Event.MOVE: self._move,
            Event.REPLICA: self._restart_replica,
        }

    # --- clients -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Everybody starts."""
        self._start_writing()
        for number, library in enumerate(LIBRARIES):
            reader = Reader(
                library,
                self.world.broker.bootstrap,
                list(self.world.models.values()),
                self.world.violations,
                seed=self._seed + number,
            )
            self.readers.append(reader)
            reader.start()
        follower = Reader(
            REPLICA_LIBRARY,
            self.world.replica.bootstrap,
            # A topic that is made again is for a while here what it was there.
            list(self.lasting.values()),
            self.world.violations,
            seed=self._seed,
            at_replica=True,
        )
        self.readers.append(follower)
        follower.start()
        for group in MEMBERS:
            self._join(group)
        self.transactions.start_writing()
        self.transactions.start_reading()
        self.probe.start()

    def end(self) -> None:
        """Everybody but the groups stops; everything that was sent has an answer."""
        self._stop_writing()
        self.transactions.stop_writing()
        self.transactions.stop_reading()
        for reader in self.readers:
            reader.ask_to_stop()
        for reader in self.readers:
            reader.stop()
        self.probe.stop()

    def _start_writing(self) -> None:
        for topic in (MAIN, SWITCHED, CHURN, TABLE):
            self._write(topic)

    def _write(self, topic: str) -> None:
        self._producer_count += 1
        writer = (KeyedProducer if topic == TABLE else KeenProducer)(
            self._producer_count,
            self.world.broker.bootstrap,
            self.world.of(topic),
            self.world.violations,
            records_per_s=RECORDS_PER_S,
        )
        self._writing[topic] = writer
        writer.start()

    def _stop_writing(self, *topics: str) -> None:
        """Returns when everything that was sent is acknowledged."""
        ending = [self._writing.pop(topic) for topic in topics or tuple(self._writing)]
        for writer in ending:
            writer.ask_to_stop()
        for writer in ending:
            writer.stop()
            self.sent_count += writer.sent_count

    def _join(self, group: str) -> None:
        member = Member(
            self.world.broker.bootstrap,
            self.grouped,
            self.progress[group],
            self.world.violations,
            group=group,
            protocol=GROUPS[group],
        )
        self.members.append(member)
        member.start()

    def stop_members(self) -> None:
        for member in self.members:
            member.ask_to_stop()
        for member in self.members:
            member.stop()
        self.members.clear()

    # --- events ------------------------------------------------------------------------------

    def carry_out(self, step: Step) -> None:
        """One step. Raises Abort."""
        world = self.world
        world.set_rules(list(step.rules))
        world.counts[step.event.value] += 1
        self._events[step.event](step)
        world.ensure_running()
        time.sleep(step.pause_s)

    def _kill(self, _step: Step) -> None:
        self.world.kill()
        self.world.start()

    def _stop(self, _step: Step) -> None:
        self.world.stop()
        self.world.start()

    def _crash_at(self, step: Step) -> None:
        """The work that comes by at the step is asked for, where it does not come by itself."""
        world, point = self.world, step.point
        kind = point.split(".")[0]
        is_purge, is_delete = kind == "purge", kind == "delete"
        victim = self._deletable(step) if is_delete else self._chosen(step)
        if is_purge:
            self._close_churn()
        world.kill()
        target = self._target(victim, step)
        if is_delete:
            victim.ceiling = max(victim.ceiling, target)
        if world.start(point):
            with contextlib.suppress(OSError):
                self._provoke(kind, victim, target)
        is_dead = world.wait_for_death()
        world.counts[f"died at {point}" if is_dead else "step not reached"] += 1
        world.start()
        if is_purge:
            self._open_churn()

    def _provoke(self, kind: str, victim: PartitionModel, target: int) -> None:
        broker = self.world.broker
        with WireClient(broker.port) as client:
            if kind == "purge":
                self.world.try_delete(client, CHURN)
            elif kind == "delete":
                delete_records(client, victim.topic, target, partition=victim.number)
            elif kind == "move":
                folder = broker.other_folder(victim.topic, victim.number)
                ask_to_move(client, victim.topic, victim.number, folder)

    def _store_away(self, step: Step) -> None:
        self.world.proxy.go_away()
        time.sleep(0.5 + 3 * step.choice)
        self.world.proxy.come_back()

    def _store_refuses(self, step: Step) -> None:
        self.world.set_rules([Rule(action=Action.STATUS, times=-1)])
        time.sleep(0.5 + 3 * step.choice)
        self.world.set_rules([])

    def _store_hangs(self, step: Step) -> None:
        duration_s = 0.5 + 3 * step.choice
        self.world.set_rules([Rule(action=Action.HANG, times=-1, delay_s=duration_s)])
        time.sleep(duration_s)
        self.world.set_rules([])

    def _delete_records(self, step: Step) -> None:
        model = self._deletable(step)
        self.world.delete_records(model, self._target(model, step))

    def _chosen(self, step: Step) -> PartitionModel:
        models = [*self.world.models.values(), *self.world.transactions.partitions]
        return models[int(step.choice * len(models))]

    def _deletable(self, step: Step) -> PartitionModel:
        """One that is not compacted: of such Kafka refuses DeleteRecords."""
        models = [model for model in self.world.models.values() if model.topic != TABLE]
        return models[int(step.choice * len(models))]

    def _target(self, model: PartitionModel, step: Step) -> int:
        """Some offset in the first half of what there is."""
        kept = max(0, model.acknowledged_end - model.floor)
        return model.floor + int(kept * step.choice / 2)

    def _recreate(self, _step: Step) -> None:
        self._close_churn()
        self._open_churn()

    def _close_churn(self) -> None:
        self._stop_writing(CHURN)
        for model in self.world.of(CHURN):
            model.close()

    def _open_churn(self) -> None:
        self.world.delete(CHURN)
        self.world.create(CHURN)
        for model in self.world.of(CHURN):
            model.begin_anew()
            model.open()
        self._write(CHURN)

    def _pause_copying(self, step: Step) -> None:
        world = self.world
        # Kafka's rule: without copying, nothing local may go before its time.
        world.alter(
            MAIN,
            {
                "remote.log.copy.disable": "true",
                "local.retention.bytes": "-2",
                "local.retention.ms": "-2",
            },
        )
        time.sleep(0.5 + 2 * step.choice)
        world.alter(MAIN, world.configs[MAIN])

    def _turn_off(self, step: Step) -> None:
        world, models = self.world, self.world.of(SWITCHED)
        world.let_go(models)
        world.alter(
            SWITCHED, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        )
        time.sleep(0.2 + 2 * step.choice)
        world.alter(SWITCHED, {"remote.log.delete.on.disable": "false", **world.configs[SWITCHED]})
        world.keep(models)

    def _retain(self, step: Step) -> None:
        world = self.world
        topic = (MAIN, SWITCHED, CHURN)[int(step.choice * 3)]
        world.let_go(world.of(topic))
        # Kafka's rule: no more is kept locally than at all.
        world.alter(topic, {"retention.bytes": str(KEPT_BYTES), "local.retention.bytes": "1"})
        time.sleep(1.0)
        world.alter(topic, world.configs[topic])
        world.keep(world.of(topic))

    def _keep_locally(self, step: Step) -> None:
        kept = LOCAL_KEPT[int(step.choice * len(LOCAL_KEPT))]
        for topic in (MAIN, CHURN, TABLE, TRANSACTED):
            self.world.configs[topic]["local.retention.bytes"] = kept
            self.world.alter(topic, {"local.retention.bytes": kept})

    def _roll(self, step: Step) -> None:
        roll_ms = ROLL_MS[int(step.choice * len(ROLL_MS))]
        for topic in (MAIN, SWITCHED, TABLE, TRANSACTED):
            self.world.configs[topic]["segment.ms"] = roll_ms
            self.world.alter(topic, {"segment.ms": roll_ms})

    def _lose_disk(self, step: Step) -> None:
        """Everything in the bucket comes back; half of the time that is everything."""
        world = self.world
        self._stop_writing()
        self.transactions.stop_writing()
        self.stop_members()
        for model in world.models.values():
            model.close()
        is_covered = step.choice < 0.5
        if is_covered:
            world.set_rules([])
            self._wait_until_covered()
            self.transactions.wait_until_covered(SETTLE_S_MAX)
        world.kill()
        # What the broker was told to do last may still be under way in the store.
        time.sleep(0.2)
        bounds = {model.name: world.in_bucket(model) for model in world.models.values()}
        self.transactions.close()
        world.broker.lose_disks()
        world.is_disk_lost = True
        world.set_rules([])
        world.restore(step.point)
        lost = {model.name: model.cut(*bounds[model.name]) for model in world.models.values()}
        if is_covered and sum(lost.values()):
            world.violations.add(f"all was in the bucket, and yet records were lost: {lost}")
        world.lost_records += sum(lost.values())
        for model in world.models.values():
            for progress in self.progress.values():
                progress.cut(model, bounds[model.name][1])
        world.start()
        world.settle_configs()
        for model in world.models.values():
            if model.topic != CHURN:
                model.open()
        self.transactions.open(SETTLE_S_MAX, is_covered=is_covered)
        self._open_churn()
        for topic in (MAIN, SWITCHED, TABLE):
            self._write(topic)
        for group in MEMBERS:
            self._join(group)
        self.transactions.start_writing()

    def _wait_until_covered(self) -> None:
        """However much there is to copy: it is too long when nothing comes any more."""
        ends: list[int] = []
        moved_s = time.monotonic()
        world = self.world
        models = list(world.models.values())
        while (
            any(end < m.acknowledged_end for end, m in zip(ends, models, strict=False)) or not ends
        ):
            found = [world.in_bucket(model)[1] for model in models]
            if found != ends:
                ends, moved_s = found, time.monotonic()
            assert time.monotonic() - moved_s < SETTLE_S_MAX, f"nothing is copied any more: {ends}"
            time.sleep(0.2)

    def _move(self, step: Step) -> None:
        """Everything that is done next meets it on its way, half of the time."""
        model = self._chosen(step)
        self.world.move(model)
        if int(step.choice * 1000) % 2:
            time.sleep(2.0)

    def _restart_replica(self, step: Step) -> None:
        self.world.restart_replica(killed=step.choice < 0.5)

    def _rejoin(self, step: Step) -> None:
        number = int(step.choice * len(self.members))
        leaving = self.members.pop(number)
        leaving.stop()
        self._join(leaving.group)
