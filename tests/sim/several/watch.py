"""What must hold in a cluster at any time, looked at from outside of all of its processes.

Each image of the metadata is seen when a process takes it over, and so is each heartbeat that a
controller hears, and each answer that a broker believes.

    images       of one offset are equal at the controller, after its restarts, and at all brokers;
                 a broker's offset does not go back, nor does the controller's log
    leaders      one for each epoch of a partition, and never a fenced broker
    brokers      an epoch is one incarnation's; another one comes only if its predecessor is dead,
                 or was not heard for a session; an unfenced one has reached its registration
    fencing      a session ends by time in which the controller ran (L7)
    answers      of a controller of an older epoch are not believed (S9)
    shutdown     is allowed when nothing is led any more, and all others know who leads now
    leading      who answers as the leader of a partition led it by its own image meanwhile
    logs         of partitions with several replicas (watch_logs.py)
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import wraps
from typing import Any
from unittest.mock import patch

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.controller import heartbeats
from strandline.broker.controller.feed import ServedMetadataLog
from strandline.broker.controller.sessions import BrokerSessions
from strandline.broker.handlers.controller.brokers import BrokerHandlers
from strandline.broker.peers.connection import PeerConnection
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord
from strandline.broker.protocol.messages.fetch import FetchRequest
from strandline.broker.protocol.messages.produce import ProduceRequest
from strandline.broker.protocol.schema.schema import Request
from strandline.broker.server.parts import membership
from strandline.storage.model import TopicId, TopicPartition
from tests.sim.cluster import World
from tests.sim.loop import PROCESS, Process
from tests.sim.network import PeerTransport
from tests.sim.several.cluster import VirtualCluster
from tests.sim.several.routing import error_codes, place_of
from tests.sim.several.watch_logs import LogWatch

# broker.session.timeout.ms.
SESSION_S = 9.0
# Of one stop the controller may count so much, and its looks are so far apart.
COUNTED_STOP_S = 1.0
LOOKS_S = 0.3
FEED_BYTES_MAX = 1500


class Watch:
    """The invariants of one cluster; a violation fails the world with an AssertionError."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cluster: VirtualCluster
        self._logs: LogWatch
        self._controllers: set[Process] = set()
        # By their next offset, as controllers had them.
        self._images: dict[int, MetadataImage] = {}
        self._last_offset = 0
        # What each process had, and since when.
        self._history: defaultdict[Process, list[tuple[float, MetadataImage]]] = defaultdict(list)
        self._leaders: dict[tuple[TopicId, int, int], int] = {}
        self._incarnations: dict[tuple[int, int], uuid.UUID] = {}
        self._process_of: dict[uuid.UUID, Process] = {}
        # Of a registration, how long its controller had run when it heard it last.
        self._heard: dict[tuple[int, int], tuple[Process, float]] = {}
        # Registrations whose session was over when it was decided to fence them.
        self._over: set[tuple[int, int]] = set()
        # Of a broker, where its leaderships changed last; of a registration, where the log ended
        # when it wanted to stop first.
        self._moved_at: dict[int, int] = {}
        self._leaving_at: dict[tuple[int, int], int] = {}
        # That of each controller process.
        self._epoch_of: dict[Process, int] = {}
        # The last answer that came from a controller, and the epoch of that.
        self._answered_by: tuple[object, int] = (None, 0)
        self.violations: list[str] = []
        self._violated = asyncio.Event()
        self.clients_ended = asyncio.Event()

    def require(self, is_so: object, *what: object) -> None:
        """Fails the world. A violation within a process must not look like an error of its own."""
        if not is_so:
            self.violations.append(" ".join(map(str, what)))
            self._violated.set()
            self._world.note("violation", *what)

    def check(self) -> None:
        """Raises AssertionError for what was violated so far."""
        assert not self.violations, self.violations[:3]

    async def fail_early(self) -> None:
        """Returns when all clients have ended. Raises AssertionError at the first violation."""
        waiting = [
            asyncio.ensure_future(one.wait()) for one in (self._violated, self.clients_ended)
        ]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        self.check()

    # --- metadata ----------------------------------------------------------------------------

    def image_of(self, process: Process) -> MetadataImage:
        """Returns the newest image of a process."""
        history = self._history[process]
        return history[-1][1] if history else MetadataImage()

    def _on_image(self, image: MetadataImage) -> None:
        process = PROCESS.get()
        if process is None or process.is_dead or image.next_offset == 0:
            return
        history = self._history[process]
        before = history[-1][1] if history else MetadataImage()
        history.append((self._world.loop.time(), image))
        self.require(
            image.next_offset >= before.next_offset,
            f"{process.host} went back from {before.next_offset} to {image.next_offset}",
        )
        if process in self._controllers:
            self._on_decided(process, before, image)
        else:
            known = self._images.get(image.next_offset)
            self.require(known, f"{process.host} ends where no entry does, at {image.next_offset}")
            self.require(
                known is None or _content(known) == _content(image),
                f"{process.host} has another image at {image.next_offset}",
                "" if known is None else _difference(known, image),
            )

    def _on_decided(self, process: Process, before: MetadataImage, image: MetadataImage) -> None:
        offset = image.next_offset
        known = self._images.setdefault(offset, image)
        self.require(
            known is image or _content(known) == _content(image), f"two images at {offset}"
        )
        self.require(
            offset >= self._last_offset,
            f"the log of the controller went back from {self._last_offset} to {offset}",
        )
        is_first = before.next_offset == 0
        before = self._images.get(self._last_offset, before) if is_first else before
        self._last_offset = offset
        self._look_at_leaders(before, image)
        self._logs.on_decided(before, image)
        for broker in image.brokers.values():
            was = before.brokers.get(broker.broker_id)
            if was is not broker:
                self._look_at_broker(process, was, broker)

    def _look_at_leaders(self, before: MetadataImage, image: MetadataImage) -> None:
        for topic in image.topics.values():
            was = before.topics_by_id.get(topic.topic_id)
            if was is topic and image.brokers is before.brokers:
                continue
            for one in topic.partitions:
                key = (topic.topic_id, one.partition, one.leader_epoch)
                known = self._leaders.setdefault(key, one.leader)
                self.require(
                    known == one.leader,
                    f"two leaders of {topic.name}-{one.partition} under {one.leader_epoch}",
                )
                leads = image.brokers.get(one.leader)
                self.require(
                    one.leader == NO_LEADER or (leads is not None and not leads.fenced),
                    f"{one.leader} leads {topic.name}-{one.partition}, and is fenced",
                )
                old = None if was is None or one.partition >= len(was.partitions) else was
                led = None if old is None else old.partitions[one.partition].leader
                if led is not None and led != one.leader:
                    self._moved_at[led] = image.next_offset

    def _look_at_broker(
        self, process: Process, was: RegisterBrokerRecord | None, broker: RegisterBrokerRecord
    ) -> None:
        node, epoch = broker.broker_id, broker.broker_epoch
        known = self._incarnations.setdefault((node, epoch), broker.incarnation_id)
        self.require(known == broker.incarnation_id, f"two incarnations of {node} under {epoch}")
        runs = self._process_of.get(broker.incarnation_id)
        if was is not None and was.incarnation_id != broker.incarnation_id:
            self.require(epoch > was.broker_epoch, f"the epoch of {node} went back to {epoch}")
            lives = self._process_of.get(was.incarnation_id)
            is_over = was.fenced or lives is None or lives.is_dead or self._is_over(was)
            self.require(is_over, f"{node} was taken from a living broker")
        elif was is not None and broker.fenced and not was.fenced:
            is_leaving = runs is None or runs.is_dead or runs.is_leaving
            is_over = (node, epoch) in self._over or self._is_over(broker)
            self.require(is_leaving or is_over, f"{node} was fenced, and its session lasts")
        if runs is not None and not broker.fenced and (was is None or was.fenced):
            reached = self.image_of(runs).next_offset
            self.require(reached > epoch, f"{node} is unfenced before it has its registration")

    def _is_over(self, broker: RegisterBrokerRecord) -> bool:
        """Whether its controller has run for a session since it heard it."""
        heard = self._heard.get((broker.broker_id, broker.broker_epoch))
        controller = PROCESS.get()
        if heard is None or controller is not heard[0]:
            return True
        silent_s = controller.ran_s() - heard[1]
        return silent_s + COUNTED_STOP_S * controller.stop_count + LOOKS_S >= SESSION_S

    # --- requests ----------------------------------------------------------------------------

    def on_answer(
        self,
        node_id: int,
        processes: Collection[Process],
        request: Request,
        answer: Any,
        began_s: float,
    ) -> None:
        """A client was answered by a broker, whose process was one of these."""
        if not isinstance(request, FetchRequest | ProduceRequest) or any(error_codes(answer)):
            return
        place = place_of(request)
        assert place is not None
        topic, number = place
        assert isinstance(topic, str)
        assert isinstance(number, int)
        found = [
            partition
            for process in processes
            for image in self._images_since(process, began_s)
            if (partition := image.partition(TopicPartition(topic, number))) is not None
        ]
        self.require(
            any(one.leader == node_id for one in found),
            f"{node_id} answered as the leader of {topic}-{number}",
        )
        if isinstance(request, FetchRequest):
            ((asked,),) = (one.partitions for one in request.topics)
            epoch = asked.current_leader_epoch
            self.require(
                epoch < 0 or any(one.leader_epoch == epoch for one in found),
                f"{node_id} answered under epoch {epoch} of {topic}-{number}",
            )

    def _images_since(self, process: Process, began_s: float) -> Iterator[MetadataImage]:
        """Yields the images that were in force from then on."""
        history = self._history[process]
        for place in range(len(history) - 1, -1, -1):
            yield history[place][1]
            if history[place][0] <= began_s:
                return

    # --- spies -------------------------------------------------------------------------------

    def add(self, cluster: VirtualCluster) -> None:
        """Watches the processes of a cluster."""
        self._cluster = cluster
        self._logs = LogWatch(
            cluster, self.require, lambda: self._images.get(self._last_offset, MetadataImage())
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block all that concerns the invariants is seen."""
        with ExitStack() as spies:
            for cls, name, spy in (
                (MetadataView, "__init__", self._spy_view),
                (MetadataView, "take_over", self._spy_take_over),
                (BrokerSessions, "heard", self._spy_heard),
                (BrokerHandlers, "beat", self._spy_beat),
                (heartbeats, "fence", self._spy_fence),
                (ServedMetadataLog, "_restart", self._spy_restart),
                (PeerConnection, "call", self._spy_call),
                (ControllerChannel, "ask", self._spy_ask),
                (membership, "new_registration", self._spy_registration),
                *self._logs.spies(),
            ):
                spies.enter_context(patch.object(cls, name, spy(getattr(cls, name))))
            # Small, so that those who were away get a snapshot.
            defaults = ServedMetadataLog.__init__.__kwdefaults__
            spies.enter_context(patch.dict(defaults, {"bytes_max": FEED_BYTES_MAX}))
            yield

    def _is_controller(self) -> bool:
        process = PROCESS.get()
        if process is not None and process.host == self._cluster.controller.host:
            self._controllers.add(process)
            return True
        return False

    def _spy_view(self, make: Callable[..., None]) -> Callable[..., None]:
        @wraps(make)
        def made(view: MetadataView, image: MetadataImage) -> None:
            if self._is_controller():
                process = PROCESS.get()
                assert process is not None
                self._epoch_of[process] = image.epoch
            self._on_image(image)
            make(view, image)

        return made

    def _spy_take_over(self, take_over: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(take_over)
        async def taken(view: MetadataView, image: MetadataImage, *more: Any) -> None:
            if image is not view.image:
                self._on_image(image)
            await take_over(view, image, *more)

        return taken

    def _spy_heard(self, heard: Callable[..., None]) -> Callable[..., None]:
        @wraps(heard)
        def noted(sessions: BrokerSessions, registration: tuple[int, int], now_s: float) -> None:
            process = PROCESS.get()
            if process is not None:
                self._heard[registration] = process, process.ran_s()
            heard(sessions, registration, now_s)

        return noted

    def _spy_fence(self, fence: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fence)
        def decided(partitions: Any, asked: Any, **more: Any) -> Any:
            # A heartbeat that comes while the entry is written unfences it again.
            broker = partitions.image.brokers.get(asked.node_id)
            if broker is not None and broker.broker_epoch == asked.broker_epoch:
                self._over.discard((asked.node_id, asked.broker_epoch))
                if self._is_over(broker):
                    self._over.add((asked.node_id, asked.broker_epoch))
            return fence(partitions, asked, **more)

        return decided

    def _spy_registration(self, make: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(make)
        def made(*arguments: Any) -> Any:
            record = make(*arguments)
            process = PROCESS.get()
            assert process is not None
            self._process_of[record.incarnation_id] = process
            return record

        return made

    def _spy_beat(self, beat: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(beat)
        async def beaten(handlers: BrokerHandlers, request: Any, context: Any) -> Any:
            if request.want_shut_down:
                registration = request.broker_id, request.broker_epoch
                self._leaving_at.setdefault(registration, self._last_offset)
            answer = await beat(handlers, request, context)
            process = PROCESS.get()
            if process is None or answer.error_code:
                return answer
            node, image = request.broker_id, self.image_of(process)
            known = image.brokers.get(node)
            self.require(
                known is not None and known.broker_epoch == request.broker_epoch,
                f"a heartbeat of {node} was accepted under epoch {request.broker_epoch}",
            )
            if answer.should_shut_down:
                self._look_at_shutdown(node, image)
            return answer

        return beaten

    def _look_at_shutdown(self, node: int, image: MetadataImage) -> None:
        led = [one for one in _partitions(image) if one.leader == node]
        self.require(not led, f"{node} may stop, and leads {len(led)} partitions")
        moved_at = self._moved_at.get(node, 0)
        if moved_at <= self._leaving_at[node, image.brokers[node].broker_epoch]:
            return
        for broker in image.brokers.values():
            runs = self._process_of.get(broker.incarnation_id)
            if (
                runs is None
                or runs.is_dead
                or broker.fenced
                or broker.in_controlled_shutdown
                or broker.broker_id == node
            ):
                continue
            reached = self.image_of(runs).next_offset
            self.require(
                reached >= moved_at,
                f"{node} may stop, and {broker.broker_id} at {reached} does not know {moved_at}",
            )

    def _spy_restart(self, restart: Callable[..., None]) -> Callable[..., None]:
        @wraps(restart)
        def restarted(feed: ServedMetadataLog, image: MetadataImage) -> None:
            known = self._images.setdefault(image.next_offset, image)
            self.require(
                known is image or _content(known) == _content(image),
                f"another snapshot at {image.next_offset}",
            )
            restart(feed, image)

        return restarted

    def _spy_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        async def called(connection: PeerConnection, *arguments: Any, **more: Any) -> Any:
            transport = connection._stream._transport
            answer = await call(connection, *arguments, **more)
            if isinstance(transport, PeerTransport):
                # The process that has answered, not the one that has the port now.
                server = transport.server_process
                if server in self._controllers:
                    self._answered_by = answer, self._epoch_of[server]
            return answer

        return called

    def _spy_ask(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(ask)
        async def asked(own: ControllerChannel, *arguments: Any, **more: Any) -> Any:
            answer = await ask(own, *arguments, **more)
            answered, epoch = self._answered_by
            if answered is answer:
                highest = own._quorum.epoch
                self.require(
                    epoch >= highest, f"an answer of epoch {epoch} was believed after {highest}"
                )
            return answer

        return asked


def _partitions(image: MetadataImage) -> Iterator[PartitionImage]:
    for topic in image.topics.values():
        yield from topic.partitions


def _difference(image: MetadataImage, other: MetadataImage) -> str:
    """Names the sections in which two images differ."""
    names = [one.name for one in fields(image) if one.compare]
    return ", ".join(
        f"{name}: {getattr(image, name)} {getattr(other, name)}"
        for name in names
        if name not in ("version", "epoch") and getattr(image, name) != getattr(other, name)
    )


def _content(image: MetadataImage) -> MetadataImage:
    """Returns what all who follow the log must agree in."""
    return replace(image, version=0, epoch=0)
