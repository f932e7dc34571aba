"""What start-up opens: the log folders and their logs, the archive's store, what works on it.

Each function takes the configuration and gives the part; `app.py` says in which order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.tiers import is_tiered
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.quotas.cold_pace import ColdPace
from strandline.broker.server.archive_mark import ArchiveMark
from strandline.broker.server.folder_marks import METADATA_FOLDER, check_not_interrupted
from strandline.broker.server.workers import Workers
from strandline.retention.jump_guard import JumpGuard
from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import InvalidConfig, StrandlineError, TierError
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.last_known_time import LastTime
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.metrics import MetricRegistry
from strandline.storage.model import TimestampMs, TopicId, TopicPartition
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.remote.open_store import open_store
from strandline.storage.tiering.partition.config import TieringConfig, TieringExecutors

if TYPE_CHECKING:
    from strandline.storage.remote.reader.cold_reader import ColdReader
    from strandline.storage.tiering.manager.manager import TieringManager

log = logging.getLogger(__name__)


class ArchiveUnknown(StrandlineError):
    """The first start on empty folders cannot ask the bucket."""


def open_archive(config: BrokerConfig, clock: Clock) -> ObjectStore | None:
    """The store of the remote tier; None if the tier is off. Asks the store nothing."""
    if not config.archive.is_enabled or config.archive.url is None:
        return None
    return open_store(
        config.archive.url,
        endpoint_url=config.archive.endpoint_url,
        region=config.archive.region,
        clock=clock,
    )


def open_log_dirs(config: BrokerConfig, clock: Clock) -> LogDirs:
    """The log folders, locked; blocks. Raises RestoreRefused, StorageError."""
    check_not_interrupted(config.logs.dirs)
    return LogDirs.open(config.logs.dirs, node_id=config.node_id, cluster_id=None, clock=clock)


def archive_mark(config: BrokerConfig, log_dirs: LogDirs, store: ObjectStore) -> ArchiveMark | None:
    """What this disk remembers of the archive; None for a bucket, which cannot be unmounted."""
    if not isinstance(store, LocalDirectoryStore):
        return None
    return ArchiveMark(
        config.logs.dirs[0], store.url, check_present=_check_of_first_folder(config, log_dirs)
    )


def _check_of_first_folder(config: BrokerConfig, log_dirs: LogDirs) -> Callable[[], None]:
    """Raises DiskError if the first log folder is another one by then."""

    def check_present() -> None:
        folder = log_dirs.directory_at(config.logs.dirs[0])
        if folder is not None:
            folder.check_present()

    return check_present


def make_metadata_log(
    config: BrokerConfig,
    log_dirs: LogDirs,
    clock: Clock,
    *,
    mirror: ObjectStore | None = None,
) -> MetadataLog:
    """The metadata log in the first log folder; nothing is appended if that is another one by then.

    Asks nobody anything.
    """
    return MetadataLog(
        LocalDirectoryStore(config.logs.dirs[0] / METADATA_FOLDER, clock=clock),
        mirror,
        cluster_id=log_dirs.cluster_id,
        check_store=_check_of_first_folder(config, log_dirs),
    )


def load_metadata(
    metadata_log: MetadataLog, config: BrokerConfig, mirror: ObjectStore | None
) -> None:
    """Reads the log, or what the mirror has of it; blocks. Raises ArchiveUnknown, StorageError."""
    try:
        metadata_log.load()
    except TierError as error:
        if mirror is None or not metadata_log.is_unbegun:
            # It is the first log folder that failed.
            raise
        raise ArchiveUnknown(
            f"{config.logs.dirs[0]} is empty, and whether {config.archive.url} holds"
            " an archive already cannot be found out. A first start needs the remote tier;"
            f" later ones do not: {error}"
        ) from error


def _config_of(topic: TopicImage, defaults: Mapping[str, str]) -> LogConfig:
    """What a topic runs with, whatever has become of the defaults since it was made."""
    config = LogConfig.resolve(topic.properties, defaults)
    try:
        config.check(topic.properties)
    except InvalidConfig as error:
        log.warning(
            "topic configuration contradicts itself",
            extra={"fields": {"topic": topic.name, "reason": str(error)}},
        )
    return config


def load_logs(
    log_dirs: LogDirs,
    image: MetadataImage,
    config: BrokerConfig,
    *,
    keep_empty_strays: bool = True,
) -> dict[TopicPartition, LocalLog]:
    """The logs on the disk that `image` knows, recovered where needed; blocks.

    A folder of a topic that is gone, or that exists anew under another id, gets no log. It is kept,
    with `keep_empty_strays` False only if it has records.
    """
    defaults = config.topics.properties
    configs = {topic.name: _config_of(topic, defaults) for topic in image.topics.values()}

    def config_for(key: TopicPartition, topic_id: TopicId) -> LogConfig | None:
        topic = image.topics.get(key.topic)
        if topic is None or topic.topic_id != topic_id:
            return None
        if key.partition >= topic.partition_count:
            return None
        return configs[key.topic]

    return log_dirs.load(
        config_for,
        threads_per_directory=config.logs.recovery_threads,
        keep_empty_strays=keep_empty_strays,
    )


def make_cold_reader(
    store: ObjectStore, config: BrokerConfig, workers: Workers, pace: ColdPace
) -> ColdReader:
    """The reader of archived segments with its caches; `pace` says when it may download."""
    from strandline.storage.remote.reader.cold_reader import ColdReader

    return ColdReader(store, workers.reader, config.cold_reader, pace=pace)


def open_believed_time(log_dirs: LogDirs, clock: Clock) -> tuple[LastTime, JumpGuard]:
    """What the folders know of the time, and the time that deleting goes by; blocks."""
    last_time = LastTime(lambda: [d.path for d in log_dirs.directories if not d.failure])
    return last_time, JumpGuard(clock, last_ms=last_time.read())


def make_tiering(
    store: ObjectStore,
    config: TieringConfig,
    workers: Workers,
    *,
    reader: ColdReader,
    clock: Clock,
    believed_ms: Callable[[], TimestampMs],
    metrics: MetricRegistry,
    on_topic_purged: Callable[[TopicId], None],
) -> TieringManager:
    """Who copies to the archive and deletes there, and says which topics are gone for good."""
    from strandline.storage.tiering.manager.manager import TieringManager
    from strandline.storage.tiering.policy.ownership import Ownership, OwnershipState

    return TieringManager(
        store,
        reader=reader,
        executors=TieringExecutors(
            copies=workers.copier,
            metadata=workers.manifests,
            deletes=workers.expiration,
            changes=workers.changes,
        ),
        clock=clock,
        believed_ms=believed_ms,
        config=config,
        metrics=metrics,
        on_topic_purged=lambda info: on_topic_purged(info.topic_id),
        # Who follows changes nothing, whosever it is.
        ownership=Ownership(OwnershipState.OURS if config.follows else OwnershipState.UNKNOWN),
    )


def warn_of_unreachable_archive(image: MetadataImage) -> None:
    """Kafka does not start then; here what is on the disk is served, and the rest is not lost."""
    tiered = sorted(topic.name for topic in image.topics.values() if is_tiered(topic))
    if tiered:
        log.warning(
            "topics have remote.storage.enable=true, but there is no remote tier: what is archived"
            " cannot be read and nothing is copied; set remote.log.storage.system.enable=true and"
            " strandline.remote.url",
            extra={"fields": {"topics": len(tiered), "first": tiered[0]}},
        )
