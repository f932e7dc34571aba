"""The role of a broker without a remote tier."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.replicas.tiers import LocalTier, is_tiered
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.network.connection import Spawn
from strandline.broker.server.broker import Started
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.coordinators import CoordinatorParts
from strandline.broker.server.parts.front import FrontParts
from strandline.broker.server.parts.logs import LogParts, serve_partitions
from strandline.broker.server.parts.metadata import load_own_metadata, make_metadata_log
from strandline.broker.server.parts.storage import StorageParts, open_log_dirs
from strandline.broker.server.upkeep.background import FinishedPurges

log = logging.getLogger(__name__)


async def start_local(
    environment: Environment, config: BrokerConfig, spawn: Spawn, opened: ExitStack
) -> Started:
    """Starts a broker whose records are on its disk alone. Raises StrandlineError."""
    opening = partial(open_log_dirs, config, environment.clock)
    storage = await StorageParts.make(environment, config, opened, opening)
    purges = FinishedPurges()
    metadata_log = make_metadata_log(storage, environment.clock)
    metadata = await load_own_metadata(
        environment, config, storage, metadata_log, mirror=None, purges=purges
    )
    warn_of_unreachable_archive(metadata.image)
    tiers = LocalTier(
        storage.log_dirs.log_start_offsets,
        lookups=environment.workers.lookups,
    )
    replicas = await serve_partitions(environment, storage, metadata, tiers=tiers)
    coordinators = await CoordinatorParts.make(environment, storage, metadata, replicas)
    logs = LogParts.make(environment, storage, metadata, replicas, coordinators)
    front = FrontParts.make(environment, storage, metadata, coordinators, logs, spawn=spawn)
    return Started(front, storage, metadata, coordinators, logs)


def warn_of_unreachable_archive(image: MetadataImage) -> None:
    """Warns of tiered topics if there is no remote tier; only their local records are served."""
    tiered = sorted(topic.name for topic in image.topics.values() if is_tiered(topic))
    if tiered:
        log.warning(
            "topics have remote.storage.enable=true, but there is no remote tier: what is archived"
            " cannot be read and nothing is copied; set remote.log.storage.system.enable=true and"
            " strandline.remote.url",
            extra={"fields": {"topics": len(tiered), "first": tiered[0]}},
        )
