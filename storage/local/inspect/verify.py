"""Verifies a data folder against itself: reads everything, changes nothing.

    batches       every CRC, offsets that follow each other, whole files
    indexes       every entry points to an existing batch or time; no time is missing
    transactions  aborted ones agree with the markers, producer snapshots with the batches
    checkpoints   readable, and within the offsets of the logs
    folders       each partition once, with the id of its topic

Each fault is a FileFinding with its consequence: DATA is damaged or missing records, CACHE
is a file that the broker rebuilds from the records, CHECKPOINT a fault that costs time or an
offset, and TAIL is left by any crash.

A broker may use the folder meanwhile. As it writes to the last segment of each log, the tail and
the indexes of that segment are not checked. Nor are indexes of segments behind the recovery point
after an unclean stop, as the next start rebuilds them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from strandline.storage import files
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    DiskError,
    StrandlineError,
    UnsupportedFormat,
)
from strandline.storage.files import OpenFile
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.epoch_cache import LeaderEpochCache
from strandline.storage.local.formats.index import iter_offset_entries, iter_time_entries
from strandline.storage.local.formats.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    partition_of,
)
from strandline.storage.local.formats.producer_state import ProducerState, iter_snapshot
from strandline.storage.local.log.recovery import aborted_entry
from strandline.storage.local.log_dirs.log_dir import LOCK_FILE
from strandline.storage.local.segment import partition_folder as folder
from strandline.storage.model import NO_TIMESTAMP, AbortedTransaction, TopicPartition
from strandline.storage.plurals import counted
from strandline.storage.records.batch.any_batch import walk_file
from strandline.storage.records.batch.batch import Batch
from strandline.storage.records.batch.marker import TransactionMarker, marker_in
from strandline.storage.records.txn_index import decode_entries

_CHECKPOINTS = (
    checkpoint.RECOVERY_POINTS,
    checkpoint.LOG_STARTS,
    checkpoint.HIGH_WATERMARKS,
    checkpoint.CLEANED_OFFSETS,
)


class FileDamage(Enum):
    """The consequence of a finding; the value says what to do about it."""

    DATA = (
        "records are damaged: with the broker stopped, move the partition's folder aside and bring"
        " it back from a copy, or from the archive if the topic has one"
    )
    CACHE = (
        "no record is lost: with the broker stopped, remove the file; the next start makes it again"
        " from the records"
    )
    CHECKPOINT = (
        "no record is lost: with the broker stopped, remove the checkpoint. The next start reads"
        " the logs from their beginning instead, and what was deleted below a log start may be"
        " served again until retention takes it"
    )
    TAIL = (
        "a crash left this after the synced part; no action is needed: the next start truncates it"
    )
    FOLDER = (
        "a file that says what the folder belongs to is wrong, or the folder is there twice: write"
        " the file again, or move the folder away that does not belong there;"
        " see: strandline docs runbooks/damaged-files"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFinding:
    """One fault, with the file it was found in."""

    path: Path
    damage: FileDamage
    text: str


@dataclass(slots=True, kw_only=True)
class Verified:
    """Totals of a verification."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    is_in_use: bool = False
    findings: list[FileFinding] = field(default_factory=list)

    def note(self, path: Path, damage: FileDamage, text: str) -> None:
        self.findings.append(FileFinding(path=path, damage=damage, text=text))


def is_log_folder(data_folder: Path) -> bool:
    """Whether a broker has kept logs there; the mount point of an unmounted disk looks empty."""
    is_used = (data_folder / checkpoint.META_PROPERTIES).exists()
    return is_used or bool(_partition_folders(data_folder))


def data_bytes(data_folders: list[Path]) -> int:
    """Returns how much `verify_folders` will read, for a progress bar. Raises DiskError."""
    return sum(
        files.size_bytes(partition / file_name(base_offset, LOG_SUFFIX))
        for data_folder in data_folders
        for partition in _partition_folders(data_folder)
        for base_offset in folder.segment_bases(partition)
    )


def verify_folders(
    data_folders: list[Path],
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Verified:
    """Reads everything in the folders of one broker. Raises DiskError if one cannot be read."""
    verified = Verified()
    places: dict[TopicPartition, Path] = {}
    for data_folder in data_folders:
        is_in_use = _is_in_use(data_folder)
        verified.is_in_use |= is_in_use
        checkpoints = _read_checkpoints(data_folder, verified)
        is_clean = (data_folder / checkpoint.CLEAN_SHUTDOWN).exists()
        for path in _partition_folders(data_folder):
            key = partition_of(path.name)
            assert key is not None, path
            if key in places:
                verified.note(path, FileDamage.FOLDER, f"{key} lies in {places[key]} as well")
            places[key] = path
            verified.partitions += 1
            one = _Partition(
                path,
                verified,
                on_bytes,
                is_in_use=is_in_use,
                may_have_gaps=key in checkpoints[checkpoint.CLEANED_OFFSETS],
                synced_offset=None
                if is_clean
                else checkpoints[checkpoint.RECOVERY_POINTS].get(key, 0),
                log_start_offset=checkpoints[checkpoint.LOG_STARTS].get(key, 0),
            )
            one.verify()
            for name, offsets in checkpoints.items():
                if key in offsets and not 0 <= offsets[key] <= one.end_offset and not is_in_use:
                    text = f"says {offsets[key]} of {key}, which ends at {one.end_offset}"
                    verified.note(data_folder / name, FileDamage.CHECKPOINT, text)
    return verified


def _partition_folders(data_folder: Path) -> list[Path]:
    try:
        return sorted(
            path for path in data_folder.iterdir() if path.is_dir() and partition_of(path.name)
        )
    except OSError as error:
        raise DiskError(f"cannot list {data_folder}: {error.strerror}") from error


def _is_in_use(data_folder: Path) -> bool:
    """Returns whether a broker has locked the folder; only tests the lock."""
    try:
        descriptor = os.open(data_folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _read_checkpoints(
    data_folder: Path, verified: Verified
) -> dict[str, dict[TopicPartition, int]]:
    offsets_by_file: dict[str, dict[TopicPartition, int]] = {}
    for name in _CHECKPOINTS:
        offsets_by_file[name] = {}
        try:
            offsets_by_file[name] = checkpoint.read_offsets(data_folder / name)
        except (CorruptFile, UnsupportedFormat) as error:
            verified.note(data_folder / name, FileDamage.CHECKPOINT, str(error))
    meta = data_folder / checkpoint.META_PROPERTIES
    try:
        properties = checkpoint.read_properties(meta)
        if properties is not None and not {"cluster.id", "version"} <= properties.keys():
            verified.note(meta, FileDamage.FOLDER, "names no cluster or no version")
    except CorruptFile as error:
        verified.note(meta, FileDamage.FOLDER, str(error))
    return offsets_by_file


class _Partition:
    """One partition's folder, from its first batch to its last."""

    def __init__(
        self,
        path: Path,
        verified: Verified,
        on_bytes: Callable[[int], None],
        *,
        is_in_use: bool,
        may_have_gaps: bool,
        synced_offset: int | None,
        log_start_offset: int,
    ) -> None:
        """`synced_offset` is the recovery point; None after a clean stop, when all is synced."""
        self.path = path
        self.verified = verified
        self.on_bytes = on_bytes
        self.is_in_use = is_in_use
        self.may_have_gaps = may_have_gaps
        self.synced_offset = synced_offset
        self.log_start_offset = log_start_offset
        self.producers = ProducerState()
        # A log without its beginning has transactions and producers only from a snapshot on.
        self.knows_producers = True
        self.end_offset = 0

    def verify(self) -> None:
        bases = folder.segment_bases(self.path)
        self._check_small_files()
        epochs = self._read_epochs()
        if not bases:
            return
        self.end_offset = bases[0]
        self._begin_producers(bases[0])
        for base_offset in bases:
            if base_offset != self.end_offset and not (
                self.may_have_gaps and base_offset > self.end_offset
            ):
                self.wrong(
                    file_name(base_offset, LOG_SUFFIX),
                    FileDamage.DATA,
                    f"begins at offset {base_offset}, the segment before ends at {self.end_offset}",
                )
            is_last = base_offset == bases[-1]
            _Segment(self, base_offset, epochs, is_open=is_last and self.is_in_use).verify()

    def wrong(self, name: str, damage: FileDamage, text: str) -> None:
        self.verified.note(self.path / name, damage, text)

    def _check_small_files(self) -> None:
        try:
            if checkpoint.read_topic_id(self.path) is None:
                self.wrong(checkpoint.PARTITION_METADATA, FileDamage.FOLDER, "is missing")
        except CorruptFile as error:
            self.wrong(checkpoint.PARTITION_METADATA, FileDamage.FOLDER, str(error))

    def _read_epochs(self) -> LeaderEpochCache | None:
        try:
            return LeaderEpochCache.open(self.path / checkpoint.LEADER_EPOCHS)
        except (CorruptFile, UnsupportedFormat) as error:
            self.wrong(checkpoint.LEADER_EPOCHS, FileDamage.CACHE, str(error))
            return None

    def _begin_producers(self, base_offset: int) -> None:
        path = self.path / file_name(base_offset, SNAPSHOT_SUFFIX)
        if not path.exists():
            self.knows_producers = base_offset == 0
            return
        try:
            self.producers.load_snapshot(files.read_whole(path))
        except (CorruptFile, UnsupportedFormat):
            self.knows_producers = False

    def check_snapshot(self, offset: int) -> None:
        """The snapshot at `offset`, if there is one, against the batches before it."""
        name = file_name(offset, SNAPSHOT_SUFFIX)
        path = self.path / name
        if not path.exists():
            return
        try:
            rows = list(iter_snapshot(files.read_whole(path)))
        except (CorruptFile, UnsupportedFormat) as error:
            self.wrong(name, FileDamage.CACHE, str(error))
            return
        for row in rows:
            entry = self.producers.entries.get(row.producer_id)
            if not self.knows_producers or entry is None or not entry.batches:
                continue
            # Compaction may have removed the last batch before a snapshot; an earlier one is left.
            if self.may_have_gaps and entry.batches[-1].last_sequence < row.last_sequence:
                continue
            if entry.epoch == row.epoch and entry.batches[-1].last_sequence != row.last_sequence:
                self.wrong(
                    name,
                    FileDamage.CACHE,
                    f"producer {row.producer_id} is at sequence {row.last_sequence} here and at"
                    f" {entry.batches[-1].last_sequence} in the log",
                )


class _Segment:
    """One segment while it is read; it notes its findings and totals in its partition."""

    def __init__(
        self,
        partition: _Partition,
        base_offset: int,
        epochs: LeaderEpochCache | None,
        *,
        is_open: bool,
    ) -> None:
        self._partition = partition
        self._path = partition.path
        self._base_offset = base_offset
        self._epochs = epochs
        self._is_open = is_open
        self._positions: dict[int, int] = {}
        self._times: dict[int, int] = {}
        self._newest_ms = NO_TIMESTAMP
        self._epoch_is_wrong = False
        self._aborted: list[AbortedTransaction] = []

    def verify(self) -> None:
        partition = self._partition
        self._read_indexes()
        name = file_name(self._base_offset, LOG_SUFFIX)
        partition.check_snapshot(self._base_offset)
        file = OpenFile(self._path / name, writable=False)
        size_bytes = file.size_bytes()
        partition.verified.segments += 1
        position = 0
        is_whole = True
        try:
            for batch in walk_file(file.read_at, 0, size_bytes, verify_crc=True):
                self._note_batch(name, batch, marker_in(file, batch))
                position = batch.end_position
        except CorruptRecords as error:
            is_whole = False
            # Later batches are checked on their own: the batches in between are unknown.
            partition.knows_producers = False
            if not self._is_open:
                damage = FileDamage.TAIL if self._is_unsynced else FileDamage.DATA
                partition.wrong(name, damage, f"at position {position} of {size_bytes}: {error}")
        finally:
            file.close()
        partition.on_bytes(size_bytes - position)
        partition.verified.size_bytes += size_bytes
        if is_whole and not self._is_open and not self._is_unsynced:
            self._judge_indexes()

    @property
    def _is_unsynced(self) -> bool:
        """Whether the last batch read lies behind the recovery point after an unclean stop."""
        synced_offset = self._partition.synced_offset
        return synced_offset is not None and self._partition.end_offset >= synced_offset

    def _note_batch(self, name: str, batch: Batch, marker: TransactionMarker | None) -> None:
        partition, header = self._partition, batch.header
        expected = partition.end_offset
        if header.base_offset < expected or (
            header.base_offset > expected and not partition.may_have_gaps
        ):
            partition.wrong(
                name,
                FileDamage.DATA,
                f"batch at position {batch.position} has offsets {header.base_offset} to"
                f" {header.last_offset}, {expected} should follow",
            )
        partition.end_offset = max(expected, header.next_offset)
        verified = partition.verified
        verified.batches += 1
        verified.records += header.record_count
        partition.on_bytes(header.size_bytes)
        if self._positions.get(batch.position) == header.last_offset:
            del self._positions[batch.position]
        self._newest_ms = max(self._newest_ms, header.max_timestamp_ms)
        if self._times.get(header.last_offset) == self._newest_ms:
            del self._times[header.last_offset]
        self._check_epoch(batch)
        completed = partition.producers.replay(header, marker)
        if completed is not None and completed.aborted:
            first_open = partition.producers.first_open_offset
            self._aborted.append(aborted_entry(completed, first_open))
        if completed is not None:
            partition.producers.replicated_up_to(header.next_offset)

    def _check_epoch(self, batch: Batch) -> None:
        header = batch.header
        if self._epochs is None or header.leader_epoch < 0 or self._epoch_is_wrong:
            return
        # Epochs are dropped together with records below the log start, which lies inside a segment.
        if header.base_offset < self._partition.log_start_offset:
            return
        known = self._epochs.epoch_for(header.base_offset)
        if known != header.leader_epoch and not self._is_open:
            self._epoch_is_wrong = True
            self._partition.wrong(
                checkpoint.LEADER_EPOCHS,
                FileDamage.CACHE,
                f"offset {header.base_offset} was written in epoch {header.leader_epoch}, not"
                f" {known}",
            )

    def _wrong_cache(self, suffix: str, text: str) -> None:
        self._partition.wrong(file_name(self._base_offset, suffix), FileDamage.CACHE, text)

    def _read_indexes(self) -> None:
        """Reads all entries; the walk removes each one whose batch it meets."""
        if self._is_open:
            return
        for suffix, content in self._index_contents():
            if suffix == TIME_INDEX_SUFFIX:
                for timestamp_ms, relative_offset in iter_time_entries(content):
                    self._times[self._base_offset + relative_offset] = timestamp_ms
            else:
                for relative_offset, position in iter_offset_entries(content):
                    self._positions[position] = self._base_offset + relative_offset
        self._last_time_ms = max(self._times.values(), default=NO_TIMESTAMP)

    def _index_contents(self) -> Iterator[tuple[str, bytes]]:
        for suffix, entry_bytes in ((INDEX_SUFFIX, 8), (TIME_INDEX_SUFFIX, 12)):
            try:
                content = files.read_whole(self._path / file_name(self._base_offset, suffix))
            except DiskError as error:
                self._wrong_cache(suffix, str(error))
                continue
            if len(content) % entry_bytes:
                self._wrong_cache(suffix, "ends inside an entry")
            # Apache Kafka preallocates the index of an active segment with 10 MiB of zeros, which a
            # kill leaves behind.
            entry_count = -(-len(content.rstrip(b"\0")) // entry_bytes)
            yield suffix, content[: entry_count * entry_bytes]

    def _judge_indexes(self) -> None:
        for position, last_offset in sorted(self._positions.items())[:1]:
            self._wrong_cache(
                INDEX_SUFFIX,
                f"{counted(len(self._positions), 'entry', 'entries')} without a batch, the first"
                f" one says that the batch at position {position} ends at offset {last_offset}",
            )
        for last_offset, timestamp_ms in sorted(self._times.items())[:1]:
            self._wrong_cache(
                TIME_INDEX_SUFFIX,
                f"{counted(len(self._times), 'entry', 'entries')} not true, the first one says that"
                f" time {timestamp_ms} is reached at offset {last_offset}",
            )
        if self._last_time_ms < self._newest_ms:
            self._wrong_cache(
                TIME_INDEX_SUFFIX,
                f"ends at {self._last_time_ms}, the newest record is of {self._newest_ms}",
            )
        self._judge_transactions()

    def _judge_transactions(self) -> None:
        path = self._path / file_name(self._base_offset, TXN_INDEX_SUFFIX)
        try:
            content = files.read_whole(path) if path.exists() else b""
            listed = decode_entries(content, source=path.name)
        except StrandlineError as error:
            self._wrong_cache(TXN_INDEX_SUFFIX, str(error))
            return
        # The last stable offset depends on transactions that began before the first segment.
        known, found = ({entry[:3] for entry in entries} for entries in (listed, self._aborted))
        if known != found and self._partition.knows_producers:
            self._wrong_cache(
                TXN_INDEX_SUFFIX,
                f"lists {len(known)} aborted transactions, the markers say {len(found)}"
                if len(known) != len(found)
                else "lists other aborted transactions than the markers say",
            )
