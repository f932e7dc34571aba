"""The role of a controller in a process of its own, for brokers elsewhere.

It has the metadata log, in its first log folder, and no records. Each start begins an epoch of the
log. Brokers register, send heartbeats and follow the log (`broker/handlers/controller/`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from strandline.broker.cluster.metadata.active_controller import ActiveController
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listeners import Listener, listen_at
from strandline.broker.config.min_isr import MIN_ISR, begin_elr
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.controller.attended_time import AttendedTime
from strandline.broker.controller.feed import OffsetAndEpoch, ServedMetadataLog
from strandline.broker.controller.partitions.index import PartitionIndex
from strandline.broker.controller.sessions import BrokerSessions
from strandline.broker.controller.snapshot import encode_snapshot
from strandline.broker.handlers.auth.failed_logins import FailedLogins
from strandline.broker.handlers.controller.brokers import BrokerHandlers
from strandline.broker.handlers.controller.dispatcher import ControllerDispatcher
from strandline.broker.handlers.controller.followers import FollowerHandlers
from strandline.broker.handlers.controller.members import ClusterHandler
from strandline.broker.handlers.controller.wiring import make_controller_handlers
from strandline.broker.handlers.metadata.quorum import KeptLog, QuorumHandler
from strandline.broker.handlers.services.services import NodeServices
from strandline.broker.network.connection import Spawn
from strandline.broker.network.server import Server
from strandline.broker.protocol.formats.quorum_records import (
    KRaftVersionRecord,
    QuorumRecord,
    Voter,
    VoterEndpoint,
    VoterFeature,
    VotersRecord,
)
from strandline.broker.protocol.schema.api import EVERY_SPEC
from strandline.broker.server.broker import Started
from strandline.broker.server.decisions import controller_decisions, decisions
from strandline.broker.server.environment import Environment
from strandline.broker.server.logins.sasl import ConnectionHandlers
from strandline.broker.server.parts.front import (
    http_tls,
    kept_record,
    listen_for_monitoring,
    tls_of,
    tls_sources,
)
from strandline.broker.server.parts.metadata import (
    MetadataParts,
    load_metadata,
    make_metadata_log,
)
from strandline.broker.server.parts.part import Front, in_worker
from strandline.broker.server.parts.storage import StorageParts, open_log_dirs
from strandline.broker.server.upkeep.sessions import SessionUpkeep
from strandline.broker.telemetry.controller_rows import ControllerSources, controller_page
from strandline.broker.telemetry.http_server import MetricsServer
from strandline.broker.telemetry.requests import RequestTraffic
from strandline.storage.local.formats.checkpoint import decode_id

if TYPE_CHECKING:
    from strandline.broker.server.parts.record import KeptRecord

log = logging.getLogger(__name__)

# The log itself says who votes (KIP-853).
KRAFT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFront(Front):
    """The listeners of a controller."""

    running: RunningConfig
    server: Server
    metrics: MetricsServer
    # Who did what here, if that is recorded.
    record: KeptRecord | None
    is_supervised: bool
    # Called when it listens, with its addresses.
    on_listening: Callable[[], Awaitable[None]]

    @property
    def listener(self) -> Listener:
        return self.running.static.listeners[0]

    async def listen(self) -> None:
        metrics = self.running.static.metrics.listener
        if metrics is not None and not self.is_supervised:
            await listen_for_monitoring(self.metrics, metrics)
        self.running.bind(listen_at(self.running.static.listeners, self.server.listen))
        await self.on_listening()

    def observe(self, connected: socket.socket) -> None:
        self.metrics.attend(connected)

    def stop_serving(self) -> None:
        self.server.close()

    async def end(self) -> None:
        self.metrics.close()
        if self.record is not None:
            await self.record.close()


async def start_controller(
    environment: Environment, config: BrokerConfig, spawn: Spawn, opened: ExitStack
) -> Started:
    """Starts a controller: reads its log, and begins a new epoch. Raises StrandlineError."""
    clock, worker = environment.clock, environment.workers.metadata
    opening = partial(open_log_dirs, config, clock)
    storage = await StorageParts.make(environment, config, opened, opening)
    metadata_log = make_metadata_log(storage, clock)
    await in_worker(worker, partial(load_metadata, metadata_log, config, storage.log_dirs, None))
    if begun := begin_elr(metadata_log.image, config.topics.properties.get(MIN_ISR, "1")):
        await in_worker(worker, partial(metadata_log.append, begun))
    before = metadata_log.image
    await in_worker(worker, metadata_log.begin_epoch)
    view, running = MetadataView(metadata_log.image), RunningConfig(config)
    log.info("controller begins", extra={"fields": {"epoch": view.image.epoch}})
    feed = ServedMetadataLog(before, view.image.epoch)
    time = AttendedTime(clock.monotonic_s)
    sessions = BrokerSessions(
        view.image, timeout_s=config.controller.session_timeout_ms / 1000, now_s=time.now_s()
    )
    index = PartitionIndex()
    await view.publish_to(index.follow)
    active = ActiveController(
        view,
        metadata_log,
        {
            **decisions(running, notes_purges=False),
            **controller_decisions(running, index, sessions, time),
        },
        executor=worker,
        on_append=lambda records, offset: feed.append(records, offset, clock.now_ms()),
    )
    metadata = await MetadataParts.make(environment, running, view, active)
    front = await _make_front(environment, storage, metadata, feed, sessions, time, spawn=spawn)
    return Started(front, storage, metadata)


class Snapshots:
    """The bytes of the newest snapshot that was asked for."""

    def __init__(self, environment: Environment, feed: ServedMetadataLog) -> None:
        self._clock = environment.clock
        self._worker = environment.workers.decoding
        self._feed = feed
        self._encoding = asyncio.Lock()
        self._encoded: tuple[OffsetAndEpoch, bytes] | None = None

    async def get(self, asked: OffsetAndEpoch) -> bytes | None:
        """Returns the snapshot that ends there; None if the feed does not begin there."""
        async with self._encoding:
            if self._encoded is None or self._encoded[0] != asked:
                feed = self._feed
                if asked != feed.start:
                    return None
                encode = partial(encode_snapshot, feed.image, feed.quorum, self._clock.now_ms())
                self._encoded = asked, await in_worker(self._worker, encode)
            return self._encoded[1]


async def _make_front(
    environment: Environment,
    storage: StorageParts,
    metadata: MetadataParts,
    feed: ServedMetadataLog,
    sessions: BrokerSessions,
    time: AttendedTime,
    *,
    spawn: Spawn,
) -> ControllerFront:
    clock, running, view = environment.clock, metadata.running, metadata.metadata
    services = NodeServices(
        running=running,
        metadata=view,
        controller=metadata.controller,
        quotas=metadata.quotas,
        traffic=RequestTraffic(EVERY_SPEC.values()),
        clock=clock,
        records=environment.workers.records,
        authorizer=metadata.authorizer,
    )
    followers = FollowerHandlers(
        feed,
        node_id=running.static.node_id,
        cluster_id=view.image.cluster_id,
        advertised=running.advertised,
        snapshot=Snapshots(environment, feed).get,
        clock=clock,
    )

    def follow(_delta: MetadataDelta, image: MetadataImage) -> None:
        feed.settle(image)
        followers.wake()

    directory_id = decode_id(storage.log_dirs.directories[0].directory_id)

    async def begin() -> None:
        feed.begin(_quorum(running, directory_id), clock.now_ms())
        await view.publish_to(follow)

    await view.publish_to(sessions.follow)
    brokers = BrokerHandlers(metadata.controller, view, sessions, time)

    def kept_log() -> KeptLog:
        return KeptLog(feed.epoch, feed.end, directory_id, followers.observers(view.image.brokers))

    quorum = QuorumHandler(services, kept_log, running.advertised)
    kept = kept_record(environment, metadata, replicas=None)
    record = None if kept is None else kept.record
    handlers = make_controller_handlers(
        services,
        brokers=brokers,
        followers=followers,
        quorum=quorum,
        cluster=ClusterHandler(services, running.advertised),
        record=record,
    )
    dispatcher = ControllerDispatcher(services, handlers, decoding=environment.workers.decoding)
    failed_logins = FailedLogins(clock)
    tls = tls_of(running.static)
    connected = ConnectionHandlers(
        running.static,
        dispatcher,
        view,
        clock,
        failed_logins,
        worker=environment.workers.logins,
        record=record,
        user_of=None if tls is None else partial(tls.user_of, clock),
    )
    handshakes = (
        None
        if tls is None
        else tls.handshakes(
            environment.workers.handshakes, clock, running.static.sasl.failed_delay_ms
        )
    )
    server = Server(
        connected,
        limits=lambda: running.current.network,
        clock=clock,
        spawn=spawn,
        network=environment.network,
        handshakes=handshakes,
        on_closed=brokers.disconnected,
    )
    sources = ControllerSources(
        clock=clock,
        requests=services.traffic,
        server=server,
        failed_logins=failed_logins.by_address,
        metadata=view,
        log_dirs=storage.log_dirs,
        node_id=running.static.node_id,
        feed=feed,
        sessions=sessions,
        time=time,
        observer_count=lambda: len(followers.observers(view.image.brokers)),
        tls=None if tls is None or handshakes is None else tls_sources(tls, handshakes, clock),
        authorizer=metadata.authorizer,
        lost_lines=None if kept is None else lambda: kept.lost_count,
    )
    upkeep = SessionUpkeep(metadata.controller, sessions, time, lambda: running.current.controller)
    return ControllerFront(
        running=running,
        server=server,
        metrics=MetricsServer(
            partial(controller_page, sources),
            lambda: "" if server.is_listening else "stopping",
            None if handshakes is None else http_tls(handshakes),
        ),
        record=kept,
        is_supervised=environment.is_supervised,
        on_listening=begin,
        loops={
            "connection sweep": server.sweep_forever,
            "request windows": services.traffic.turn_forever,
            "requests": dispatcher.run,
            **connected.loops,
            **({} if kept is None else kept.loops),
            **({} if tls is None else {"TLS": partial(tls.renew_forever, running, clock)}),
            "sessions": upkeep.fence_forever,
            "leaders": upkeep.balance_forever,
            "unclean elections": upkeep.elect_uncleanly_forever,
        },
    )


def _quorum(running: RunningConfig, directory_id: uuid.UUID) -> Sequence[QuorumRecord]:
    """Who votes: this controller alone. Brokers find it by that."""
    config = running.current
    addresses = [
        VoterEndpoint(name=listener.name, host=listener.host, port=listener.port)
        for listener in config.advertised_listeners
    ]
    feature = VoterFeature(min_supported_version=0, max_supported_version=KRAFT_VERSION)
    voter = Voter(
        voter_id=config.node_id,
        voter_directory_id=directory_id,
        endpoints=addresses,
        k_raft_version_feature=feature,
    )
    return [KRaftVersionRecord(k_raft_version=KRAFT_VERSION), VotersRecord(voters=[voter])]
