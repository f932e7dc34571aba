"""A broker's seat in a cluster of controllers elsewhere: metadata, registration, forwarding.

    1 the feed reads the metadata as they are   2 features that this broker lacks refuse it, by name
    3 it registers                              4 the feed has its registration, so all before it
    then the logs are loaded                    5 if they lack what they had, it registers anew
    6 it notes this run in the log folders
    then listeners open                         7 the controller unfences it, and it leads

It registers with the broker epoch of the last run if its folders have all that this one wrote: it
stopped cleanly, or was killed, and the machine did not go down (KIP-966; last_run.py). Then it
stays an eligible leader replica. A kill before 3 leaves that note, and it holds for the next start.
One between 3 and 6 leaves a note of an earlier registration, which nobody believes: what 5 has seen
may be repaired then, and nobody would see it again.

Each of the two loops begins during the start: a recovery may last longer than a session.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.membership.envelope import Forwarder
from strandline.broker.cluster.membership.feed import MetadataFeed, Observer
from strandline.broker.cluster.membership.find_cluster import find_cluster
from strandline.broker.cluster.membership.folder_assignments import FOLDERS_SINCE
from strandline.broker.cluster.membership.lifecycle import (
    BrokerLifecycle,
    Registration,
    features_of,
)
from strandline.broker.cluster.membership.manager import LifecycleManager
from strandline.broker.cluster.membership.quorum import Quorum
from strandline.broker.cluster.membership.remote_controller import RemoteController
from strandline.broker.cluster.metadata.features import CLAIMED
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.peer_security import controller_security
from strandline.broker.peers.peer import Connect, connect_by
from strandline.broker.protocol.messages.broker_registration import RegisteringListener
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.part import Part, in_worker
from strandline.broker.server.parts.storage import StorageParts
from strandline.broker.server.registration import new_registration
from strandline.storage.clock import Clock
from strandline.storage.concurrency.early_loop import EarlyLoop
from strandline.storage.crash_points import (
    MEMBER_AFTER_LOGS,
    MEMBER_AFTER_NOTE,
    MEMBER_AFTER_REGISTRATION,
    MEMBER_BEFORE_REGISTRATION,
    crash_point,
)
from strandline.storage.errors import DiskError, StrandlineError
from strandline.storage.local.formats.checkpoint import (
    META_PROPERTIES,
    decode_id,
    read_properties,
)
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import Offset, TopicPartition

log = logging.getLogger(__name__)

# How long a start waits to see itself among the brokers, so that its first answers name it.
KNOWN_S_MAX = 10.0
FOLDERS_CHECK_S = 0.5


class NoControllers(StrandlineError):
    """No controller let this broker begin, in the time that a start may take."""


def connect_to_controllers(config: BrokerConfig, clock: Clock) -> Connect:
    """Returns what connects to controllers. Raises InvalidConfig."""
    return connect_by(
        controller_security(config), client_id=f"broker-{config.node_id}", clock=clock
    )


async def cluster_id_of(config: BrokerConfig, environment: Environment, connect: Connect) -> str:
    """Returns the cluster of the log folders, of new ones that of the controllers.

    Raises NoControllers, StorageError.
    """
    known = await in_worker(environment.workers.disk, partial(_known_cluster_id, config))
    if known is not None:
        return known
    wait_s = config.membership.registration_ms_max / 1000
    found = await find_cluster(config.membership.addresses(), connect, wait_s=wait_s)
    if found.cluster_id is None:
        raise NoControllers(f"no controller told its cluster in {wait_s:g} s: {found.reason}")
    return found.cluster_id


def _known_cluster_id(config: BrokerConfig) -> str | None:
    """Returns the cluster that a log folder was made for; None if all are new. Blocks.

    A folder that cannot be read is one that failed: others tell it.
    """
    for folder in config.logs.dirs:
        properties: Mapping[str, str] = {}
        with suppress(DiskError):
            properties = read_properties(folder / META_PROPERTIES) or {}
        if (known := properties.get("cluster.id")) is not None:
            return known
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipParts(Part):
    """What connects a broker to its controllers."""

    view: MetadataView
    controller: RemoteController
    forwarder: Forwarder
    manager: LifecycleManager
    # The last record of the metadata that is in force here.
    followed: Callable[[], Offset]
    # Makes a channel to the active controller, for one more use.
    channel: Callable[[], ControllerChannel]
    # Returns when something is so in the view.
    until: Callable[[Callable[[], bool]], Awaitable[None]]
    # When this broker last knew all that was decided, in monotonic seconds.
    caught_up_s: Callable[[], float]
    node_id: int
    hands_over: bool
    log_dirs: LogDirs
    # Registers as a process that lacks what the last run wrote. Raises as `join`.
    register_anew: Callable[[], Awaitable[None]]
    # Notes this run in the log folders.
    write_note: Callable[[], Awaitable[None]]

    @classmethod
    async def join(
        cls,
        environment: Environment,
        config: BrokerConfig,
        storage: StorageParts,
        opened: ExitStack,
        connect: Connect,
        *,
        features: Mapping[str, range] = CLAIMED,
    ) -> MembershipParts:
        """Registers with these features; returns when the metadata here have its registration.

        Raises NoControllers, RegistrationRefused, OtherCluster, UnsupportedFeature, StorageError.
        """
        clock, settings, disk = environment.clock, config.membership, environment.workers.disk
        log_dirs, boot_of = storage.log_dirs, environment.boot_of
        last_epoch = await in_worker(disk, partial(log_dirs.last_epoch, boot_of))
        quorum = Quorum(settings.addresses())
        view = MetadataView(MetadataImage())

        def channel() -> ControllerChannel:
            request_s_max = config.peers.request_ms_max / 1000
            made = ControllerChannel(quorum, connect, clock, request_s_max=request_s_max)
            opened.callback(made.close)
            return made

        feed = MetadataFeed(
            Observer(
                node_id=config.node_id,
                directory_id=decode_id(storage.log_dirs.directories[0].directory_id),
                cluster_id=storage.log_dirs.cluster_id,
            ),
            quorum,
            connect,
            clock,
            view=view,
            executor=environment.workers.metadata,
        )
        manager = LifecycleManager(
            BrokerLifecycle(
                registration=_registration(config, storage.log_dirs, features, last_epoch),
                heartbeat_ms=settings.heartbeat_ms,
            ),
            channel(),
            clock,
            metadata_offset=lambda: feed.applied_offset,
            failed_dirs=partial(_failed_dirs, storage.log_dirs),
            lacks_folders=lambda: lacks_folders(view.image, config.node_id),
        )
        following = EarlyLoop(feed.run)
        opened.callback(following.cancel)
        wait_s = settings.registration_ms_max / 1000

        @asynccontextmanager
        async def in_time() -> AsyncIterator[None]:
            try:
                async with asyncio.timeout(wait_s):
                    yield
            except TimeoutError:
                reason = manager.last_refusal or feed.last_fault or "no active controller answers"
                raise NoControllers(
                    f"broker {config.node_id} is not registered after {wait_s:g} s: {reason}"
                ) from None

        async with in_time():
            await following.meanwhile(feed.caught_up())  # 1, 2
            crash_point(MEMBER_BEFORE_REGISTRATION)
            living = EarlyLoop(manager.run)
            opened.callback(living.cancel)
            epoch = await following.meanwhile(living.meanwhile(manager.registered()))  # 3
        crash_point(MEMBER_AFTER_REGISTRATION)
        log.info("broker registered", extra={"fields": {"broker_epoch": epoch}})
        await following.meanwhile(living.meanwhile(feed.reached(epoch)))  # 4

        async def register_anew() -> None:
            async with in_time():
                epoch = await following.meanwhile(living.meanwhile(manager.register_anew()))
            log.info("broker registered", extra={"fields": {"broker_epoch": epoch}})
            await following.meanwhile(living.meanwhile(feed.reached(epoch)))

        async def write_note() -> None:
            noting = partial(log_dirs.note_run, manager.epoch, boot_of)
            await following.meanwhile(living.meanwhile(in_worker(disk, noting)))

        controller = RemoteController(
            channel(),
            view,
            node_id=config.node_id,
            broker_epoch=lambda: manager.epoch,
            request_ms_max=config.peers.request_ms_max,
            until=feed.until,
        )
        return cls(
            view=view,
            controller=controller,
            forwarder=Forwarder(channel(), clock, arrived=controller.arrived),
            manager=manager,
            followed=lambda: feed.applied_offset,
            channel=channel,
            until=feed.until,
            caught_up_s=lambda: feed.caught_up_s,
            node_id=config.node_id,
            hands_over=settings.hands_over,
            log_dirs=log_dirs,
            register_anew=register_anew,
            write_note=write_note,
            loops={"metadata feed": following.run, "heartbeats": living.run},
        )

    async def note_run(self) -> None:
        """Tells the controller if logs lack records that the last run had; they are loaded.

        Nobody was elected for what it was told before: until `serve` this broker is fenced.
        Raises NoControllers, RegistrationRefused.
        """
        crash_point(MEMBER_AFTER_LOGS)
        lost = sorted(filter(self._is_here, self.log_dirs.lost))
        if lost and self.manager.vouches:
            fields = {"partitions": len(lost), "first": str(lost[0])}
            log.warning("logs lack records that they had", extra={"fields": fields})
            await self.register_anew()  # 5
        await self.write_note()  # 6
        crash_point(MEMBER_AFTER_NOTE)

    def _is_here(self, key: TopicPartition) -> bool:
        partition = self.view.image.partition(key)
        return partition is not None and self.node_id in partition.replicas

    async def serve(self) -> None:
        """Returns when the controller lets this broker lead, and its metadata say so."""
        await self.manager.serve()  # 7
        with suppress(TimeoutError):
            async with asyncio.timeout(KNOWN_S_MAX):
                await self.until(self._is_named)

    def _is_named(self) -> bool:
        broker = self.view.image.brokers.get(self.node_id)
        return broker is not None and not broker.fenced

    async def give_up(self) -> None:
        """Raises DiskError when the last log folder has failed, and others lead (Kafka's
        LogManager.handleLogDirFailure).

        Such a broker has nothing to serve, and its folders come back at its next start alone.
        """
        while True:
            await asyncio.sleep(FOLDERS_CHECK_S)
            if self.log_dirs.are_offline:
                log.error("the broker ends: every log folder is offline")
                await self.leave()
                raise DiskError("every log folder is offline")

    async def leave(self) -> None:
        """The controller moves leaders away, or makes the partitions known as being without one."""
        if self.hands_over:
            await self.manager.leave()


def lacks_folders(image: MetadataImage, node_id: int) -> bool:
    """Returns whether the metadata want the folders of this broker, and its registration has none.

    Only a broker that registered before metadata.version was raised is without.
    """
    own = image.brokers.get(node_id)
    return (
        own is not None
        and not own.log_dirs
        and image.finalized_level("metadata.version") >= FOLDERS_SINCE
    )


def _registration(
    config: BrokerConfig, log_dirs: LogDirs, features: Mapping[str, range], last_epoch: int
) -> Registration:
    own = new_registration(config, log_dirs)
    return Registration(
        node_id=own.broker_id,
        cluster_id=log_dirs.cluster_id,
        incarnation_id=own.incarnation_id,
        listeners=[
            RegisteringListener(
                name=one.name,
                host=one.host,
                port=one.port,
                security_protocol=one.security_protocol,
            )
            for one in own.end_points
        ],
        features=features_of(features.items()),
        rack=own.rack,
        log_dirs=own.log_dirs,
        previous_epoch=last_epoch,
    )


def _failed_dirs(log_dirs: LogDirs) -> set[uuid.UUID]:
    return {decode_id(one.directory_id) for one in log_dirs.directories if one.failure is not None}
