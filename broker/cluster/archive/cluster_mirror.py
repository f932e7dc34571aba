"""The mirror of a cluster's metadata in its bucket, written by the caretaker.

    controllers' log   records ─► image of the caretaker ─┐ what differs, as one entry
    mirror (bucket)    entry 7 ── entry 8 ── entry 9 ◄────┘

It has the form of a lone broker's mirror, so that restores and read-only replicas read both alike,
and goes on where that one ended. Its entries are not those of the controllers' log, which other
controllers keep in another form: each makes the image of the mirror into that of the caretaker.
`next_offset` of an entry tells where the controllers' log stood.

An entry is created under a name that nobody had (metadata_log.py), and only from an image that is
at least as new as the mirror's. So it does not matter if two brokers believe for a while to be the
caretaker: what the slower one writes was true, and is never put over what came later.

The notes of purges are the mirror's own, because the controllers may be Apache Kafka's: a topic
that is in the mirror, and in no image any more, was deleted; its note stays until the bucket has
nothing of it. A caretaker that takes over finds what the one before it had not finished.

All calls block, and may overlap.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from strandline.broker.cluster.archive.image_changes import changes_between
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.log_format import encode_snapshot
from strandline.broker.cluster.metadata.log_reader import salvage_history
from strandline.broker.cluster.metadata.metadata_log import (
    MetadataLog,
    MetadataLogStatistics,
    MetadataRaced,
)
from strandline.broker.cluster.metadata.records import (
    DeletedTopic,
    finished_purge_record,
    may_be_archived,
    pending_purge_record,
)
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.errors import CorruptFile, ObjectCorrupt, ObjectNotFound, StorageError
from strandline.storage.model import TopicId
from strandline.storage.remote.keys import (
    METADATA_PREFIX,
    metadata_log_key,
    metadata_snapshot_key,
)
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectInfo,
    ObjectStore,
    PutCondition,
)

log = logging.getLogger(__name__)

# Two brokers that believe to be the caretaker race each other once or twice.
RACES_MAX: Final = 5
# How often a broker that is not the caretaker looks whether the mirror has the topics of groups.
LOOKS: Final = Backoff(0.5, 30.0)


class MirrorAhead(StorageError):
    """The mirror is of a later time than the metadata of the controllers; nothing was written."""


class ClusterMirror:
    """Mirrors the images of a broker while it is the caretaker."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        cluster_id: str,
        image: Callable[[], MetadataImage],
        is_caretaker: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._image = image
        self._is_caretaker = is_caretaker
        self._clock = clock
        self._log = MetadataLog(store, cluster_id=cluster_id)
        self._serial = threading.Lock()
        # Whether the history in the bucket was read, as the caretaker or for the others' look.
        self._is_read = False
        # The mirror's objects at the last check of this caretaker; empty before the first one.
        self._listed: Mapping[str, ObjectInfo] = {}
        # The image that the mirror has, as this broker's; None: compare with the mirror's.
        self._mirrored: MetadataImage | None = None
        self._finished: set[TopicId] = set()
        # The topics of coordinators that the mirror is known to have.
        self._coordinators: set[tuple[str, int]] = set()
        self._looks = 0
        self._next_look_s = 0.0
        # Objects that were found deleted in the mirror.
        self._deleted_count = 0

    def __repr__(self) -> str:
        return f"<ClusterMirror {self._log!r}>"

    @property
    def pending_purges(self) -> Mapping[TopicId, DeletedTopic]:
        """The deleted topics of which the bucket may still have something."""
        return self._log.image.pending_purges

    def finish_purge(self, topic_id: TopicId) -> None:
        """The bucket has nothing of the topic any more; the next entry says so."""
        self._finished.add(topic_id)

    def statistics(self) -> MetadataLogStatistics:
        """As those of a lone broker. Only the caretaker knows how far the mirror is; the others,
        whether it has the topics that they write for.
        """
        mirrored = self._log.image
        image = self._image()
        if not self._is_caretaker():
            lag, version = len(_coordinators_of(image) - self._coordinators), -1
        else:
            version = mirrored.version
            lag = 0 if image is self._mirrored else max(1, image.next_offset - mirrored.next_offset)
        return MetadataLogStatistics(
            version=max(version, 0) + lag,
            snapshot_version=self._log.statistics().snapshot_version,
            mirror_version=version,
            mirror_deleted_count=self._deleted_count,
        )

    def claim_mirror(self) -> None:
        """As `mirror_once`."""
        self.mirror_once()

    def mirror_once(self) -> None:
        """Brings the mirror up to date; sends no request while nothing has changed.

        Raises MirrorAhead, CorruptFile (it is another cluster's), UnsupportedFormat, or TierError.
        """
        with self._serial:
            if self._is_caretaker():
                self._mirror(self._image())
            else:
                # What the next caretaker writes must be read before this broker is one again.
                self._is_read, self._mirrored, self._listed = False, None, {}
                self._look(self._image())

    def repair_mirror(self) -> None:
        """Writes again what a third party deleted or damaged in the mirror. Raises as above.

        It lists the mirror, and reads it only if something in it is not as it was listed before.
        """
        with self._serial:
            if not self._is_caretaker():
                return
            listed = {info.key: info for info in self._store.list(METADATA_PREFIX)}
            if self._is_read:
                self._repair_deleted(listed)
            if not self._is_as_listed(listed):
                self._is_read, self._mirrored = False, None
            self._mirror(self._image())
            self._listed = listed

    # --- the caretaker -----------------------------------------------------------------------

    def _mirror(self, image: MetadataImage) -> None:
        for attempt in range(1, RACES_MAX + 1):
            self._read(image)
            changes, notes = self._missing(image)
            if changes or notes:
                # Notes are no records of the controllers' log.
                reached = image if changes else self._log.image
                self._check_not_ahead(reached)
                try:
                    self._log.append(
                        [*changes, *notes], epoch=reached.epoch, next_offset=reached.next_offset
                    )
                except MetadataRaced:
                    # It has read the other's entry.
                    self._mirrored = None
                    if attempt == RACES_MAX:
                        raise
                    continue
                except BaseException:
                    self._is_read, self._mirrored = False, None
                    raise
            self._finished &= set(self.pending_purges)
            self._mirrored = image
            self._coordinators |= _coordinators_of(image)
            return

    def _read(self, image: MetadataImage) -> None:
        if self._is_read:
            return
        try:
            self._log.refresh()
        except (CorruptFile, ObjectCorrupt) as error:
            self._repair_damaged(error, image)
            self._log.refresh()
        self._is_read, self._mirrored = True, None

    def _missing(self, image: MetadataImage) -> tuple[list[MetadataRecord], list[MetadataRecord]]:
        """Returns the records that the mirror lacks, and the notes of purges that it lacks."""
        noted = self.pending_purges
        changes: list[MetadataRecord] = []
        notes: list[MetadataRecord] = []
        notes += map(finished_purge_record, sorted(self._finished.intersection(noted)))
        if image is not self._mirrored:
            before = self._mirrored or self._log.image
            changes += changes_between(before, image)
            notes += [
                pending_purge_record(topic.deleted())
                for topic in MetadataDelta(before, image).topics.gone()
                if may_be_archived(topic.properties) and topic.topic_id not in noted
            ]
        return changes, notes

    def _check_not_ahead(self, image: MetadataImage) -> None:
        mirrored = self._log.image
        if image.next_offset < mirrored.next_offset or image.epoch < mirrored.epoch:
            raise MirrorAhead(
                f"the metadata in {self._store.url} are those at offset {mirrored.next_offset} of"
                f" epoch {mirrored.epoch}, the controllers' are at {image.next_offset} of"
                f" {image.epoch}: this broker has not heard of the rest yet, or the controllers"
                " were restored from an older copy"
            )

    # --- the others --------------------------------------------------------------------------

    def _look(self, image: MetadataImage) -> None:
        """Learns whether the mirror has the topics of coordinators, which precede their content."""
        lacking = _coordinators_of(image) - self._coordinators
        now_s = self._clock.monotonic_s()
        if not lacking:
            self._looks = 0
        elif now_s >= self._next_look_s:
            self._looks += 1
            self._next_look_s = now_s + LOOKS.wait_s(self._looks)
            self._coordinators |= lacking & _coordinators_of(self._log.catch_up())

    # --- repairs -----------------------------------------------------------------------------

    def _is_as_listed(self, listed: Mapping[str, ObjectInfo]) -> bool:
        """Whether nobody else wrote since the last check: no object there, and no next entry."""
        before = self._listed
        return (
            bool(before)
            and metadata_log_key(self._log.image.version + 1) not in listed
            and all(before.get(key, info) == info for key, info in listed.items())
        )

    def _repair_deleted(self, listed: Mapping[str, ObjectInfo]) -> None:
        """Writes a snapshot in place of entries and snapshots that are missing."""
        found = self._log.statistics()
        wanted = [metadata_log_key(n) for n in range(found.snapshot_version + 1, found.version + 1)]
        if found.snapshot_version:
            wanted.append(metadata_snapshot_key(found.snapshot_version))
        # A listing may lag; a request by name does not.
        gone = [key for key in wanted if key not in listed and not self._has(key)]
        if gone:
            self._deleted_count += len(gone)
            log.warning(
                "metadata in the bucket were deleted, they are written again",
                extra={
                    "fields": {"mirror": self._store.url, "count": len(gone), "first": min(gone)}
                },
            )
            self._log.make_snapshot()

    def _has(self, key: str) -> bool:
        with contextlib.suppress(ObjectNotFound):
            self._store.head(key)
            return True
        return False

    def _repair_damaged(self, error: StorageError, image: MetadataImage) -> None:
        """Writes what precedes the damage as a snapshot, behind all names that were used.

        The next entry has what is missing up to `image`. Raises CorruptFile if it is another
        cluster's.
        """
        found = salvage_history(self._store, cluster_id=self._cluster_id).loaded
        log.warning(
            "metadata in the bucket are incomplete, they are written again",
            extra={"fields": {"mirror": self._store.url, "reason": str(error)}},
        )
        version = found.image.version
        if not version:
            return
        key = metadata_snapshot_key(version)
        condition: PutCondition = IfAbsent()
        with contextlib.suppress(ObjectNotFound):
            condition = IfMatches(self._store.head(key).etag)
        salvaged = replace(
            found.image,
            next_offset=min(found.image.next_offset, image.next_offset),
            epoch=min(found.image.epoch, image.epoch),
        )
        content = encode_snapshot(salvaged, head_checksum=found.head_checksum)
        self._store.put(key, content, condition=condition)


def _coordinators_of(image: MetadataImage) -> set[tuple[str, int]]:
    """The topics of coordinators, with their numbers of partitions."""
    found = (image.topics.get(name) for name in INTERNAL_TOPICS)
    return {(topic.name, topic.partition_count) for topic in found if topic is not None}
