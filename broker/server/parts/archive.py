"""The remote tier of a broker: what reads archived segments, and what copies and deletes them.

A broker without one does not load this module (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.parts.storage import StorageParts
from strandline.broker.server.workers import Workers
from strandline.broker.telemetry.sources import ArchiveSources
from strandline.storage.model import TopicId
from strandline.storage.remote.keys import CHANGES_KEY, changes_key
from strandline.storage.remote.object_store.interface import Lack, ObjectStore
from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.tiering.copy.inspector import SegmentInspector
from strandline.storage.tiering.manager.manager import TieringManager
from strandline.storage.tiering.partition.config import TieringConfig, TieringExecutors
from strandline.storage.tiering.policy.leadership import Lead


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTier:
    """The reader of archived segments with its caches, and the tiering manager."""

    store: ObjectStore
    running: RunningConfig
    workers: Workers
    reader: ColdReader
    manager: TieringManager

    @classmethod
    def open(
        cls,
        environment: Environment,
        storage: StorageParts,
        metadata: MetadataParts,
        opened: ExitStack,
        *,
        store: ObjectStore,
        tiering: TieringConfig,
        lead: Lead = Lead.UNKNOWN,
        node_id: int | None = None,
        is_caretaker: Callable[[], bool] = lambda: True,
        on_topic_purged: Callable[[TopicId], None] = lambda _: None,
        on_restarted: Callable[[], None] = lambda: None,
    ) -> RemoteTier:
        """Makes both; they are closed with `opened`.

        `on_topic_purged` is called with the id of each purged topic, `on_restarted` when a log was
        restarted behind its archive, before it takes appends. `node_id` is that of one of several
        brokers, of which one `is_caretaker`.
        """
        workers, running = environment.workers, metadata.running
        reader = ColdReader(
            store, workers.reader, running.current.cold_reader, pace=metadata.cold_pace
        )
        opened.callback(reader.close)
        manager = TieringManager(
            store,
            reader=reader,
            inspector=SegmentInspector(environment.clock, environment.start_child),
            executors=TieringExecutors(
                copies=workers.copier,
                metadata=workers.manifests,
                deletes=workers.expiration,
                changes=workers.changes,
                probes=workers.probes,
            ),
            clock=environment.clock,
            believed_ms=storage.guard.now_ms,
            config=replace(tiering, refuses_if_lost=running.current.archive.refuses_if_lost),
            on_topic_purged=lambda info: on_topic_purged(info.topic_id),
            on_restarted=on_restarted,
            lead=lead,
            is_caretaker=is_caretaker,
            changes_key=CHANGES_KEY if node_id is None else changes_key(node_id),
            alterations=metadata.alterations,
        )
        opened.callback(manager.close)
        return cls(store=store, running=running, workers=workers, reader=reader, manager=manager)

    def follow(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        """Adopts altered keys; they are in force in the running configuration already."""
        if not delta.broker_properties:
            return
        current = self.running.current
        self.manager.reconfigure(current.tiering)
        self.workers.resize(current)
        self.reader.resize(current.cold_reader)

    def sources(self) -> ArchiveSources:
        """What the metrics page reads of it."""
        return ArchiveSources(
            tiering=self.manager,
            cold_reader=self.reader,
            pools=self.workers.remote_pools(),
            failing=lambda: self.manager.failing,
            lacks=self._lacks,
            store_requests=self._store_requests,
        )

    def _lacks(self) -> list[str]:
        """The kinds of requests that the store refused, and that are done in another way."""
        # What a conditional DELETE saves is a wait, and few servers have it.
        return [lack.value for lack in self.store.lacks if lack is not Lack.CONDITIONAL_DELETE]

    def _store_requests(self) -> tuple[Mapping[str, int], int] | None:
        """Counts of S3 requests and failed attempts so far; None for other stores."""
        if not self.store.url.startswith("s3"):
            return None
        from strandline.storage.remote.s3.store import S3Store

        if not isinstance(self.store, S3Store):
            return None
        found = self.store.statistics()
        return found.requests, found.failed_attempt_count
