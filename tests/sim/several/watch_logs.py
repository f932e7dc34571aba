"""What must hold of replicated logs at any time, as who sees all of them at once.

    committed     what a leader moves its high watermark over is on all replicas that are in sync
                  or eligible, and on min.insync.replicas of them
    joining       who comes into the in-sync set has all that was ever committed
    leading       so has who begins to lead, from the same epochs
    archive       has nothing that is not committed
    truncation    no replica cuts below its own high watermark, and none that may lead, in sync or
                  eligible, cuts what was committed

A client would see a violation only if a leader dies at the right moment afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any, TypeAlias

from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.replication.followed import Followed
from strandline.storage.model import Epoch, Offset, TopicId
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.tiering.partition.lone_disk.divergence import bucket_end
from tests.sim.loop import PROCESS
from tests.sim.several.cluster import VirtualCluster

# A class or a module, its function, and what it is replaced by.
Spy: TypeAlias = tuple[type | ModuleType, str, Callable[[Callable[..., Any]], Callable[..., Any]]]


@dataclass(frozen=True, slots=True)
class _Committed:
    """Where a high watermark was, the epoch of the record before it, and that of its lead."""

    end_offset: Offset
    epoch: Epoch
    leader_epoch: Epoch


class LogWatch:
    """The invariants of all partitions with several replicas."""

    def __init__(
        self,
        cluster: VirtualCluster,
        require: Callable[..., None],
        image: Callable[[], MetadataImage],
    ) -> None:
        """`require` notes a violation; `image` returns what the controller decided last."""
        self._cluster = cluster
        self._require = require
        self._image = image
        self._committed: dict[tuple[TopicId, int], _Committed] = {}

    def spies(self) -> Sequence[Spy]:
        return (
            (Leading, "advance", self._spy_advance),
            (Leading, "follow", self._spy_follow),
            (Followed, "truncate", self._spy_truncate),
            (manifest_store, "commit", self._spy_commit),
        )

    def _ends(self, topic: str, index: int, replicas: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yields the brokers that run with a replica, and where its log ends."""
        for broker in self._cluster.brokers:
            if broker.node_id in replicas and broker.is_running:
                local = broker.find_log(topic, index)
                if local is not None:
                    yield broker.node_id, local.end_offset

    # --- the leader's ----------------------------------------------------------------------------

    def _spy_advance(self, advance: Callable[..., None]) -> Callable[..., None]:
        @wraps(advance)
        def advanced(leading: Leading) -> None:
            before = leading._local.high_watermark
            advance(leading)
            if leading._local.high_watermark > before and not _is_dead():
                self._on_committed(leading)

        return advanced

    def _on_committed(self, leading: Leading) -> None:
        local, key = leading._local, _key(leading)
        end_offset = local.high_watermark
        known = self._committed.get(key)
        if known is None or known.end_offset < end_offset:
            epoch = local.leader_epochs.epoch_for(end_offset - 1)
            self._committed[key] = _Committed(end_offset, epoch, leading.leader_epoch)
        place = leading.topic_partition
        partition = self._image().partition(place)
        if partition is None or partition.leader_epoch != leading.leader_epoch:
            return
        ends = dict(self._ends(place.topic, place.partition, partition.replicas))
        for node in (*partition.isr, *partition.eligible_leader_replicas):
            is_in_sync = "in-sync" if node in partition.isr else "eligible"
            self._require(
                ends.get(node, end_offset) >= end_offset,
                f"the high watermark of {place} is {end_offset}, and {is_in_sync} replica {node}",
                f"ends at {ends.get(node)}",
            )
        if len(ends) == len(partition.replicas):
            enough = sum(end >= end_offset for end in ends.values())
            self._require(
                enough >= leading.min_in_sync,
                f"the high watermark of {place} is {end_offset}, and {enough} replicas have that",
            )

    def _spy_follow(self, follow: Callable[..., None]) -> Callable[..., None]:
        @wraps(follow)
        def followed(leading: Leading, image: Any, *, is_new: bool) -> None:
            known = self._committed.get(_key(leading))
            if (
                is_new
                and known is not None
                and image.leader_epoch > known.leader_epoch
                and not _is_dead()
            ):
                local = leading._local
                self._require(
                    local.end_offset >= known.end_offset
                    and local.leader_epochs.epoch_for(known.end_offset - 1) == known.epoch,
                    f"{leading.topic_partition} was committed up to {known}, and its leader under"
                    f" {image.leader_epoch} ends at {local.end_offset}: lost",
                )
            follow(leading, image, is_new=is_new)

        return followed

    def on_decided(self, before: MetadataImage, image: MetadataImage) -> None:
        """The controller changed in-sync sets."""
        for topic in image.topics.values():
            was = before.topics_by_id.get(topic.topic_id)
            if was is None or was is topic:
                continue
            for old, new in zip(was.partitions, topic.partitions, strict=False):
                known = self._committed.get((topic.topic_id, new.partition))
                joined = set(new.isr) - set(old.isr)
                if known is None or not joined:
                    continue
                for node, end_offset in self._ends(topic.name, new.partition, sorted(joined)):
                    self._require(
                        end_offset >= known.end_offset,
                        f"{topic.name}-{new.partition} was committed up to {known}, and {node}",
                        f"is in sync at {end_offset}",
                    )

    def _spy_commit(self, commit: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(commit)
        def committed(store: Any, before: Any, new: Manifest, **more: Any) -> Any:
            known = self._committed.get((new.topic_id, new.partition))
            self._require(
                known is None or bucket_end(new) <= known.end_offset,
                f"{new.topic}-{new.partition} is archived up to {bucket_end(new)}; committed are",
                known,
            )
            return commit(store, before, new, **more)

        return committed

    # --- the followers' --------------------------------------------------------------------------

    def _spy_truncate(self, truncate: Callable[..., None]) -> Callable[..., None]:
        @wraps(truncate)
        def truncated(followed: Followed, offset: Offset) -> None:
            local = followed.partition.log.local
            if not _is_dead():
                self._require(
                    offset >= local.high_watermark,
                    f"{followed} is cut at {offset}, below {local.high_watermark}: lost",
                )
                self._on_cut(followed, min(offset, local.end_offset))
            truncate(followed, offset)

        return truncated

    def _on_cut(self, followed: Followed, offset: Offset) -> None:
        known = self._committed.get(followed.key)
        partition = self._image().partition(followed.partition.topic_partition)
        if known is None or partition is None:
            return
        nodes = [one.node_id for one in self._cluster.brokers if one.process is PROCESS.get()]
        keeping = {*partition.isr, *partition.eligible_leader_replicas}
        self._require(
            offset >= known.end_offset or not keeping.intersection(nodes),
            f"{followed} may lead, and is cut at {offset}; committed are {known}: lost",
        )


def _key(leading: Leading) -> tuple[TopicId, int]:
    return leading._topic_id, leading.topic_partition.partition


def _is_dead() -> bool:
    process = PROCESS.get()
    return process is None or process.is_dead
