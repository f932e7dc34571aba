"""The metadata of a broker, and what needs nothing else: configuration in force, and quotas."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from strandline.broker.authorization.authorizer import Authorizer
from strandline.broker.authorization.denials import Denials
from strandline.broker.cluster.metadata.active_controller import ActiveController
from strandline.broker.cluster.metadata.controller import register_broker
from strandline.broker.cluster.metadata.controller_messages import Controller
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.log_reader import is_empty
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.quotas.cold_pace import ColdPace
from strandline.broker.quotas.quotas import ClientQuotas
from strandline.broker.server.decisions import decisions
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.part import Part, in_worker
from strandline.broker.server.parts.storage import StorageParts
from strandline.broker.server.registration import new_registration
from strandline.broker.server.upkeep.background import FinishedPurges
from strandline.broker.server.upkeep.folder_marks import (
    METADATA_FOLDER,
    check_metadata_not_lost,
)
from strandline.storage.clock import Clock
from strandline.storage.concurrency.alterations import Alterations
from strandline.storage.errors import StrandlineError, TierError
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore

# How long a stop waits for an entry in flight.
ENTRY_S_MAX = 5.0


class ArchiveUnknown(StrandlineError):
    """The first start on empty folders cannot ask the bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataParts(Part):
    """The image, the configuration in force, and the limits of clients."""

    running: RunningConfig
    alterations: Alterations
    quotas: ClientQuotas
    # None: every client may do everything.
    authorizer: Authorizer | None
    denials: Denials | None
    cold_pace: ColdPace
    metadata: MetadataView
    controller: Controller

    @classmethod
    async def make(
        cls,
        environment: Environment,
        running: RunningConfig,
        view: MetadataView,
        controller: Controller,
        *,
        purges: FinishedPurges | None = None,
    ) -> MetadataParts:
        """The view is loaded, and published first to `running` and what is made here.

        `purges` are noted in the metadata, if they are this broker's to change.
        """
        quotas = ClientQuotas(environment.clock, running.static.quota_windows)
        await view.publish_to(running.follow, quotas.follow)
        authorizer = denials = None
        if running.static.authorizer.is_enabled:
            authorizer = Authorizer(running.static.authorizer)
            denials = Denials(authorizer.rule_of)
            authorizer.on_denied = denials.note
            await view.publish_to(authorizer.follow)
        return cls(
            running=running,
            alterations=Alterations(),
            quotas=quotas,
            authorizer=authorizer,
            denials=denials,
            cold_pace=ColdPace(lambda: running.current.pace),
            metadata=view,
            controller=controller,
            loops={
                **({} if purges is None else {"purges": partial(purges.note_forever, controller)}),
                **({} if denials is None else {"denials": denials.run}),
            },
        )

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    async def end(self) -> None:
        """Lets an entry end whose client is gone, as long as its disk answers."""
        if isinstance(self.controller, ActiveController):
            with suppress(TimeoutError):
                async with asyncio.timeout(ENTRY_S_MAX):
                    await self.controller.finish()

    def note_alterations(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        """Follows the metadata last, when altered configurations are in force everywhere."""
        if delta.topics or delta.broker_properties:
            self.alterations.note()


async def load_own_metadata(
    environment: Environment,
    config: BrokerConfig,
    storage: StorageParts,
    metadata_log: MetadataLog,
    *,
    mirror: ObjectStore | None,
    purges: FinishedPurges,
) -> MetadataParts:
    """Loads the metadata of a broker that is its own controller, and registers it there.

    Raises ArchiveUnknown, WrongFolder, StorageError.
    """
    log_dirs, worker = storage.log_dirs, environment.workers.metadata
    await in_worker(worker, partial(load_metadata, metadata_log, config, log_dirs, mirror))
    await in_worker(worker, partial(register, metadata_log, config, log_dirs))
    running, view = RunningConfig(config), MetadataView(metadata_log.image)
    active = ActiveController(view, metadata_log, decisions(running), executor=worker)
    return await MetadataParts.make(environment, running, view, active, purges=purges)


def register(metadata_log: MetadataLog, config: BrokerConfig, log_dirs: LogDirs) -> None:
    """Registers this process in its own metadata log; blocks. Raises StorageError."""
    process = new_registration(config, log_dirs)
    metadata_log.append(register_broker(metadata_log.image, process).records)


def make_metadata_log(
    storage: StorageParts, clock: Clock, *, mirror: ObjectStore | None = None
) -> MetadataLog:
    """Makes the metadata log in the first log folder, without I/O.

    It refuses appends if that folder was replaced.
    """
    return MetadataLog(
        LocalDirectoryStore(storage.first_folder / METADATA_FOLDER, clock=clock),
        mirror,
        cluster_id=storage.log_dirs.cluster_id,
        check_store=storage.check_first_folder,
    )


def load_metadata(
    metadata_log: MetadataLog,
    config: BrokerConfig,
    log_dirs: LogDirs,
    mirror: ObjectStore | None,
) -> None:
    """Reads the log, or its mirror in the bucket; blocks.

    Raises ArchiveUnknown, WrongFolder, StorageError.
    """
    try:
        if metadata_log.is_known_empty:
            check_metadata_not_lost(
                [d.path for d in log_dirs.directories if not d.failure],
                is_archived=mirror is not None and not is_empty(mirror),
            )
        metadata_log.load()
    except TierError as error:
        if mirror is None or not metadata_log.is_known_empty:
            # The first log folder failed, not the mirror.
            raise
        raise ArchiveUnknown(
            f"{config.logs.dirs[0]} is empty, and whether {config.archive.url} holds"
            " an archive already cannot be found out. A first start needs the remote tier;"
            f" later ones do not: {error}"
        ) from error
