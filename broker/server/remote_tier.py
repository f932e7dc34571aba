"""The remote tier of a broker; a broker without one does not load this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.quotas.cold_pace import ColdPace
from strandline.broker.server.workers import Workers
from strandline.storage.clock import Clock
from strandline.storage.concurrency.alterations import Alterations
from strandline.storage.model import TimestampMs, TopicId
from strandline.storage.remote.object_store.interface import Lack, ObjectStore
from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.tiering.manager.manager import TieringManager
from strandline.storage.tiering.partition.config import TieringConfig, TieringExecutors
from strandline.storage.tiering.policy.ownership import Ownership, OwnershipState


class RemoteTier:
    """The reader of archived segments with its caches, and the tiering manager."""

    def __init__(
        self,
        store: ObjectStore,
        running: RunningConfig,
        workers: Workers,
        *,
        tiering: TieringConfig,
        pace: ColdPace,
        clock: Clock,
        believed_ms: Callable[[], TimestampMs],
        on_topic_purged: Callable[[TopicId], None],
        on_restarted: Callable[[], None],
        alterations: Alterations,
    ) -> None:
        """`pace` limits downloads; `on_topic_purged` is called with the id of each purged topic,
        `on_restarted` when a log was restarted behind its archive, before it takes appends.
        """
        config = running.current
        self._store = store
        self._running = running
        self._workers = workers
        self.reader = ColdReader(store, workers.reader, config.cold_reader, pace=pace)
        self.manager = TieringManager(
            store,
            reader=self.reader,
            executors=TieringExecutors(
                copies=workers.copier,
                metadata=workers.manifests,
                deletes=workers.expiration,
                changes=workers.changes,
                probes=workers.probes,
            ),
            clock=clock,
            believed_ms=believed_ms,
            config=tiering,
            on_topic_purged=lambda info: on_topic_purged(info.topic_id),
            on_restarted=on_restarted,
            # A read-only replica changes no archive, so it needs no claim.
            ownership=Ownership(
                OwnershipState.OURS if tiering.follows else OwnershipState.UNKNOWN,
                refuses_if_lost=config.archive.refuses_if_lost,
            ),
            alterations=alterations,
        )

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Adopts altered keys; they are in force in the running configuration already."""
        if not delta.broker_properties:
            return
        current = self._running.current
        self.manager.reconfigure(current.tiering)
        self._workers.resize(current)
        self.reader.resize(current.cold_reader)

    def lacks(self) -> list[str]:
        """The kinds of requests that the store refused, and that are done in another way."""
        # What a conditional DELETE saves is a wait, and few servers have it.
        return [lack.value for lack in self._store.lacks if lack is not Lack.CONDITIONAL_DELETE]

    def store_requests(self) -> tuple[Mapping[str, int], int] | None:
        """Counts of S3 requests and failed attempts so far; None for other stores."""
        if not self._store.url.startswith("s3"):
            return None
        from strandline.storage.remote.s3.store import S3Store

        if not isinstance(self._store, S3Store):
            return None
        found = self._store.statistics()
        return found.requests, found.failed_attempt_count

    def close(self) -> None:
        self.manager.close()
        self.reader.close()
