"""`strandline restore`: restores a broker into empty log folders, from the bucket alone.

    1 read the archive             metadata mirror, topic.json, manifests, groups; writes nothing
    2 lock and mark the folders    .strandline-restore        crash point restore.after-mark
    3 write the metadata log       mirror + corrections       crash point restore.after-metadata
    4 write the partitions         empty logs behind their archives   restore.after-partition
    5 write the groups' offsets and the transactional ids, end open transactions
                                                              crash point restore.after-groups
    6 checkpoints, clean-shutdown mark                        crash point restore.before-unmark
    7 remove the marks, and only then unlock: a restore that finds a mark may empty the folder

Step 1 finds unreadable objects before anything is written. A broker does not start on folders with
a mark; a restore that finds its own mark empties the folders and starts over, which costs little:
manifests are read, segments are not. Folders with anything else in them are refused.

Nothing is written to the bucket: the restored broker takes the archive over when it starts, under
higher leader epochs, and from then on the old one is fenced, if it still runs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from strandline.broker.cluster.archive.caretaker import archives
from strandline.broker.cluster.metadata.features import TRANSACTION_VERSION
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.log_reader import (
    SalvagedMetadata,
    cluster_id_or_damage,
    salvage_history,
)
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.restore_plan import (
    correct_numbers,
    correct_topics,
    foreign_nodes,
    take_over_records,
)
from strandline.broker.commands.progress import BarProgress
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.coordination.archive.restored_transactions import (
    end_open_transactions,
    restored_transactions,
    transactions_by_producer,
)
from strandline.broker.coordination.archive.state_archive import (
    LiveRecords,
    clamped,
    clamped_pending,
    read_group_state,
    write_group_state,
)
from strandline.broker.coordination.transactions.power_loss.lost_ends import OpenTransaction
from strandline.broker.coordination.transactions.transaction import TransactionVersion
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC
from strandline.broker.server.upkeep.folder_marks import (
    METADATA_FOLDER,
    RESTORE_MARK,
    RestoreRefused,
)
from strandline.storage import files
from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LogConfig
from strandline.storage.crash_points import (
    RESTORE_AFTER_GROUPS,
    RESTORE_AFTER_MARK,
    RESTORE_AFTER_METADATA,
    RESTORE_AFTER_PARTITION,
    RESTORE_BEFORE_UNMARK,
    crash_point,
)
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    DiskError,
    ObjectCorrupt,
    StorageError,
    StrandlineError,
    UnsupportedFormat,
)
from strandline.storage.local.formats.checkpoint import META_PROPERTIES
from strandline.storage.local.log_dirs.log_dir import LOCK_FILE, lock_directory
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import Epoch, Offset, TopicIdPartition, TopicPartition
from strandline.storage.plurals import counted, human_seconds
from strandline.storage.remote.keys import GROUPS_PREFIX, TRANSACTIONS_PREFIX, state_key
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest.json_document import decode_document, encode_document
from strandline.storage.remote.manifest.topic_info import (
    DamagedTopic,
    TopicInfo,
    list_topics,
    load_topic_info,
)
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.tiering.audit.restoring import (
    ArchivedState,
    read_partition,
    write_partition,
)
from strandline.storage.tiering.partition.lone_disk.lost_markers import is_committed

log = logging.getLogger(__name__)

MARK_FORMAT = "strandline-restore"
MARK_VERSIONS = range(1, 2)
# A broker with traffic uploads in this time, by the default of the open segment's upload; one that
# is lost is rarely restored sooner.
WRITTEN_LATELY_MS = 15 * 60_000
# Small requests: a thousand partitions at 150 ms each take ten seconds.
PARALLEL_READS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSummary:
    """The result of a restore."""

    cluster_id: str
    partitions: Mapping[TopicPartition, ArchivedState]
    topic_count: int
    offset_count: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Archive:
    """The contents of the archive, read in step 1."""

    cluster_id: str
    metadata: SalvagedMetadata
    image: MetadataImage
    records: tuple[MetadataRecord, ...]
    states: dict[TopicPartition, ArchivedState]
    # By partition of the coordinators' topics.
    coordinated: dict[TopicPartition, LiveRecords]
    problems: tuple[str, ...]


class Restore:
    """One run of the restore. Blocking."""

    def __init__(
        self,
        config: BrokerConfig,
        store: ObjectStore,
        *,
        clock: Clock,
        progress: BarProgress,
        skip_damaged: bool = False,
    ) -> None:
        """With `skip_damaged` damaged parts are left out, and the rest restored: partitions with a
        damaged manifest or open segment, or an older manifest, stay unavailable; left out are also
        segments in a lost page of a manifest; descriptions of topics that the mirror does not know;
        groups' offsets; metadata after the first lost entry.
        """
        self._config = config
        self._store = store
        self._clock = clock
        self._progress = progress
        self._skip_damaged = skip_damaged
        self._defaults = config.topics.properties

    def run(self) -> RestoreSummary:
        """Restores. Raises RestoreRefused, LogDirLocked, and StorageError for disk or bucket."""
        self._check_folders()
        archive = self._read_archive()  # 1
        self._warn_if_written_lately(archive)
        self._mark(archive.cluster_id)  # 2
        crash_point(RESTORE_AFTER_MARK)
        log_dirs = LogDirs.open(
            self._config.logs.dirs,
            node_id=self._config.node_id,
            cluster_id=archive.cluster_id,
            clock=self._clock,
        )
        try:
            offset_count = self._write(log_dirs, archive)
        finally:
            log_dirs.unlock()
        return RestoreSummary(
            cluster_id=archive.cluster_id,
            partitions=archive.states,
            topic_count=len(archive.image.topics),
            offset_count=offset_count,
            problems=archive.problems,
        )

    def _write(self, log_dirs: LogDirs, archive: _Archive) -> int:
        """Steps 3 to 7; returns how many group records were written."""
        self._write_metadata(archive)  # 3
        crash_point(RESTORE_AFTER_METADATA)
        offset_count = self._write_logs(log_dirs, archive)  # 4, 5
        crash_point(RESTORE_AFTER_GROUPS)
        starts = {key: state.log_start_offset for key, state in archive.states.items()}
        log_dirs.finish(starts)  # 6
        if log_dirs.failures:
            raise DiskError("; ".join(map(str, log_dirs.failures.values())))
        crash_point(RESTORE_BEFORE_UNMARK)
        for folder in self._config.logs.dirs:
            files.remove(folder / RESTORE_MARK)  # 7
            files.sync_directory(folder)
        return offset_count

    def _warn_if_written_lately(self, archive: _Archive) -> None:
        manifests = [one.manifest for one in archive.states.values() if one.manifest is not None]
        segments_ms = (one.uploaded_ms for manifest in manifests for one in manifest.segments[-1:])
        pieces_ms = (one.uploaded_ms for manifest in manifests for one in manifest.tail[-1:])
        newest_ms = max((*segments_ms, *pieces_ms), default=0)
        age_ms = self._clock.now_ms() - newest_ms
        if age_ms < WRITTEN_LATELY_MS:
            log.warning(
                "the archive was written lately: if its broker still runs, do not start both",
                extra={"fields": {"ago": human_seconds(max(0, age_ms) / 1000)}},
            )

    # --- 1 read ------------------------------------------------------------------------------

    def _read_archive(self) -> _Archive:
        store = self._store
        store.check()
        cluster_id, fault = cluster_id_or_damage(store)
        if not cluster_id:
            raise RestoreRefused(
                f"{store.url} holds no archive: there is no cluster.json, and no metadata; give the"
                " strandline.remote.url of the lost broker, with its prefix"
            )
        self._progress.begin("metadata", 1)
        # Only read: the mirror is written by its owner alone.
        metadata = salvage_history(store, cluster_id=cluster_id)
        mirrored = metadata.loaded.image
        self._progress.advance()
        with ThreadPoolExecutor(PARALLEL_READS_MAX, "restore") as executor:
            topics, damaged_topics = self._find_topics(executor, mirrored)
            corrections = correct_topics(mirrored, topics, node_id=self._config.node_id)
            records = corrections.records
            if any(map(archives, mirrored.brokers.values())):
                # One broker gets what several had.
                image = mirrored.apply_entry(records)
                records = (*records, *take_over_records(image, self._config.node_id))
            image = mirrored.apply_entry(records)
            self._check_nodes(image)
            states, damaged_partitions = self._read_partitions(executor, image)
            coordinated, damaged_groups = self._read_coordinated(executor, image)
        lost = [fault] if fault else []
        lost += _lost_metadata(metadata)
        damaged = (*lost, *damaged_topics, *damaged_partitions, *damaged_groups)
        if damaged and not self._skip_damaged:
            raise RestoreRefused(
                "damaged, nothing was restored (--skip-damaged restores the rest):"
                + "".join(f"\n  {line}" for line in damaged)
            )
        numbers = correct_numbers(
            image,
            {
                **{state.partition: state.leader_epoch for state in states.values()},
                **_epochs_of_coordinators(image, coordinated),
            },
            producer_id_max=max(
                (
                    *(state.producer_id_max for state in states.values()),
                    *transactions_by_producer(coordinated),
                ),
                default=-1,
            ),
        )
        return _Archive(
            cluster_id=cluster_id,
            metadata=metadata,
            image=image,
            records=(*records, *numbers),
            states=states,
            coordinated=coordinated,
            problems=(*corrections.problems, *damaged),
        )

    def _check_nodes(self, image: MetadataImage) -> None:
        others = foreign_nodes(image, self._config.node_id)
        if others:
            raise RestoreRefused(
                f"the archive was written by node {', '.join(map(str, sorted(others)))}, this is"
                f" node.id={self._config.node_id}: restore with the same node.id"
            )

    def _find_topics(
        self, executor: ThreadPoolExecutor, mirrored: MetadataImage
    ) -> tuple[tuple[TopicInfo, ...], list[str]]:
        topics, damaged = find_topics(self._store, mirrored, executor)
        texts = []
        for topic in damaged:
            is_known = topic.folder.topic_id in mirrored.topics_by_id
            what = "restored as the metadata have it" if is_known else "left out"
            texts.append(f"{topic.folder.topic}: description damaged, {what}: {topic.reason}")
        return topics, texts

    def _read_partitions(
        self, executor: ThreadPoolExecutor, image: MetadataImage
    ) -> tuple[dict[TopicPartition, ArchivedState], list[str]]:
        wanted = [
            TopicIdPartition(topic.name, topic.topic_id, partition.partition)
            for topic in image.topics.values()
            for partition in topic.partitions
        ]
        self._progress.begin("manifests", len(wanted))
        # Before the manifests: these then include all changes in the list.
        newest = change_list.newest_orders(self._store)

        def read(partition: TopicIdPartition) -> ArchivedState | StorageError:
            known = newest.get((partition.topic_id, partition.partition))
            try:
                return read_partition(self._store, partition, newest=known)
            except (CorruptFile, UnsupportedFormat) as error:
                return error
            finally:
                self._progress.advance()

        states: dict[TopicPartition, ArchivedState] = {}
        damaged: list[str] = []
        for partition, found in zip(wanted, executor.map(read, wanted), strict=True):
            key = TopicPartition(partition.topic, partition.partition)
            if isinstance(found, StorageError):
                # Without a folder it stays unavailable: no append may start at offset 0 again.
                damaged.append(f"{key}: damaged, not restored: {found}")
            else:
                states[key] = found
                damaged += [f"{key}: {text}" for text in found.lost_pages]
        return states, damaged

    def _read_coordinated(
        self, executor: ThreadPoolExecutor, image: MetadataImage
    ) -> tuple[dict[TopicPartition, LiveRecords], list[str]]:
        found: dict[TopicPartition, LiveRecords] = {}
        damaged: list[str] = []
        for name, prefix, content in (
            (OFFSETS_TOPIC, GROUPS_PREFIX, "offsets of groups"),
            (TRANSACTION_TOPIC, TRANSACTIONS_PREFIX, "transactional ids"),
        ):
            topic = image.topics.get(name)
            if topic is None:
                damaged += self._unknown_state(name, prefix, content)
                continue
            numbers = [partition.partition for partition in topic.partitions]
            self._progress.begin(prefix.rstrip("/"), len(numbers))
            states = executor.map(partial(self._read_state, prefix), numbers)
            for number, state in zip(numbers, states, strict=True):
                if isinstance(state, StrandlineError):
                    key = state_key(prefix, number)
                    damaged.append(f"{key}: {content} are damaged, not restored: {state}")
                elif state is not None:
                    found[TopicPartition(name, number)] = state
        return found, damaged

    def _read_state(self, prefix: str, number: int) -> LiveRecords | StrandlineError | None:
        try:
            return read_group_state(self._store, number, prefix)
        except (CorruptRecords, ObjectCorrupt) as error:
            return error
        finally:
            self._progress.advance()

    def _unknown_state(self, topic: str, prefix: str, content: str) -> list[str]:
        """Archived state that cannot be placed: the number of partitions is lost."""
        count = sum(1 for _ in self._store.list(prefix))
        if not count:
            return []
        return [
            f"{prefix}: the metadata do not know {topic}, {counted(count, 'object')}"
            f" with {content} not restored: copy them away, the broker writes over them"
        ]

    # --- 2 mark ------------------------------------------------------------------------------

    def _check_folders(self) -> None:
        for folder in self._config.logs.dirs:
            if not folder.exists() or (folder / RESTORE_MARK).exists():
                continue
            # A start on empty folders creates a new cluster id, is refused by the archive, and
            # tells the operator to restore: the cluster id of an empty folder means nothing.
            strange = sorted(
                entry.name
                for entry in folder.iterdir()
                if entry.name not in (LOCK_FILE, META_PROPERTIES)
            )
            if strange:
                raise RestoreRefused(
                    f"{folder} is not empty ({', '.join(strange[:3])}): a restore needs empty log"
                    " folders; move what is there away"
                )

    def _mark(self, cluster_id: str) -> None:
        content = encode_document(
            MARK_FORMAT, MARK_VERSIONS.start, {"cluster_id": cluster_id, "url": self._store.url}
        )
        with ExitStack() as locks:
            # The folder may be another restore's, or a broker's by now, as reading the archive took
            # time. The next process to open it must lock it again, or is refused.
            for folder in self._config.logs.dirs:
                locks.callback(lock_directory(folder).unlock)
            self._check_folders()
            for folder in self._config.logs.dirs:
                mark = folder / RESTORE_MARK
                if mark.exists():
                    self._empty(folder, mark, cluster_id)
                else:
                    files.write_atomically(mark, content)
                    if files.is_there(folder, META_PROPERTIES):
                        files.remove(folder / META_PROPERTIES)

    def _empty(self, folder: Path, mark: Path, cluster_id: str) -> None:
        """Removes the leftovers of an interrupted restore of the same archive."""
        fields = decode_document(
            mark.read_bytes(), format_name=MARK_FORMAT, versions=MARK_VERSIONS, source=str(mark)
        )
        if fields.text("cluster_id") != cluster_id:
            raise RestoreRefused(
                f"{folder}: an interrupted restore of cluster {fields.text('cluster_id')} lies"
                f" here, not one of {cluster_id}; empty the folder to begin again"
            )
        log.warning("restore begins again", extra={"fields": {"folder": str(folder)}})
        for entry in folder.iterdir():
            if entry.is_dir():
                files.remove_tree(entry)
            elif entry.name not in (RESTORE_MARK, LOCK_FILE):
                files.remove(entry)

    # --- 3 to 5 write ------------------------------------------------------------------------

    def _write_metadata(self, archive: _Archive) -> None:
        folder = self._config.logs.dirs[0] / METADATA_FOLDER
        found = archive.metadata.loaded
        now = salvage_history(self._store, cluster_id=archive.cluster_id)
        if now.loaded != found:
            raise RestoreRefused(
                f"the metadata in {self._store.url} changed while it was read: another broker uses"
                " this archive; stop it first"
            )
        metadata = MetadataLog(
            LocalDirectoryStore(folder, clock=self._clock), cluster_id=archive.cluster_id
        )
        metadata.restore(found, self._store.url)
        metadata.load()
        metadata.append(archive.records)

    def _is_committed(self, state: ArchivedState, opened: OpenTransaction) -> bool | None:
        if state.manifest is None:
            return None
        return is_committed(
            self._store, state.manifest, opened.producer.producer_id, opened.first_offset
        )

    def _write_logs(self, log_dirs: LogDirs, archive: _Archive) -> int:
        self._progress.begin("partitions", len(archive.states))
        offset_count = 0
        now_ms = self._clock.now_ms()
        transactions = transactions_by_producer(archive.coordinated)
        for key, state in sorted(archive.states.items()):
            topic = archive.image.topics[key.topic]
            config = LogConfig.resolve(topic.properties, self._defaults)
            local = log_dirs.create_log(key, topic.topic_id, config)
            write_partition(self._store, local, state)
            live = archive.coordinated.get(key)
            if live is not None and key.topic == OFFSETS_TOPIC:
                end_of = partial(_end, archive)
                pending = clamped_pending(live.pending, end_of)
                write_group_state(local, clamped(live, end_of), pending)
                offset_count += len(live)
            elif live is not None:
                version = TransactionVersion(archive.image.finalized_level(TRANSACTION_VERSION))
                write_group_state(local, restored_transactions(live, version, now_ms))
            end_open_transactions(local, transactions, now_ms, partial(self._is_committed, state))
            self._progress.advance()
            crash_point(RESTORE_AFTER_PARTITION)
        return offset_count


def _lost_metadata(metadata: SalvagedMetadata) -> list[str]:
    """Describes the damage of the metadata, and its consequences."""
    if not metadata.damage:
        return []
    return [
        f"{metadata.damage}; restored as they were after entry {metadata.entry}, with the topics"
        " and partitions that topic.json tells. Other changes since are lost: topics of which"
        " nothing is archived, properties, quotas, passwords of SCRAM"
    ]


def _epochs_of_coordinators(
    image: MetadataImage, coordinated: Mapping[TopicPartition, LiveRecords]
) -> dict[TopicIdPartition, Epoch]:
    return {
        TopicIdPartition(
            key.topic, image.topics[key.topic].topic_id, key.partition
        ): live.leader_epoch
        for key, live in coordinated.items()
    }


def _end(archive: _Archive, key: TopicPartition) -> Offset | None:
    state = archive.states.get(key)
    return None if state is None else state.end_offset


def find_topics(
    store: ObjectStore, image: MetadataImage, executor: Executor
) -> tuple[tuple[TopicInfo, ...], list[DamagedTopic]]:
    """Returns all topics of the archive: listed ones, and those that `image` knows by name."""
    damaged: list[DamagedTopic] = []
    listed = list_topics(store, executor=executor, damaged=damaged)
    seen = {info.topic_id for info in listed} | {topic.folder.topic_id for topic in damaged}
    unseen = [topic for topic in image.topics.values() if topic.topic_id not in seen]
    loaded = executor.map(lambda t: load_topic_info(store, t.name, t.topic_id), unseen)
    return (*listed, *(info for info in loaded if info is not None)), damaged
