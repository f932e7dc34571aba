"""`strandline archive verify` and `lifecycle`: checks a bucket, and its lifecycle rule.

    exit code   0  intact (or everything was repaired)
                1  cannot check: bucket unavailable, access denied, no such topic
                2  wrong arguments
                3  something is damaged, or could not be checked

`verify --state FILE` notes each partition that was found intact and resumes from there; the file is
removed when no partition is left. An interrupted run prints its results so far.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from strandline.broker.cluster.metadata.log_reader import (
    cluster_id_or_damage,
    freed_through,
    salvage_history,
)
from strandline.broker.commands.archive.tables import WHERE_IT_IS
from strandline.broker.commands.progress import BarProgress
from strandline.broker.coordination.archive.state_archive import read_group_state
from strandline.broker.tools.client.confirmation import confirm
from strandline.broker.tools.client.tables import print_table
from strandline.storage import files
from strandline.storage.clock import SystemClock
from strandline.storage.concurrency.maps import map_ahead
from strandline.storage.errors import (
    CorruptFile,
    CorruptRecords,
    InvalidConfig,
    ObjectCorrupt,
    StorageError,
    UnknownTopic,
    UnsupportedFormat,
)
from strandline.storage.model import TopicId, TopicIdPartition
from strandline.storage.plurals import counted, human_bytes
from strandline.storage.remote.keys import (
    CLUSTER_KEY,
    GROUPS_PREFIX,
    MANIFEST_FILE,
    TOPICS_PREFIX,
    TRANSACTIONS_PREFIX,
    parse_state_key,
    parse_topic_folder,
    state_key,
    topic_folder,
    topic_key,
)
from strandline.storage.remote.manifest import change_list
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.json_document import decode_document, encode_document
from strandline.storage.remote.manifest.topic_info import DamagedTopic, list_topics, load_topic_info
from strandline.storage.remote.manifest.verification import Verification, note_verification
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.s3.store import S3Store
from strandline.storage.tiering.audit.findings import Damage, Finding, PartitionReport
from strandline.storage.tiering.audit.repair import drop_pieces, repair_meta
from strandline.storage.tiering.audit.scrub import BATCH_SEGMENTS, PARALLEL_MAX, Depth, Scrub

DAMAGED = 3
STATE_FORMAT = "strandline-verify-state"
STATE_VERSIONS = range(1, 2)
# Partitions checked within this time before a kill are checked again.
STATE_INTERVAL_S = 1.0
# Small partitions that are checked concurrently.
SMALL_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Options of the command line."""

    topic: str | None = None
    depth: Depth = Depth.CHECKSUMS
    repair: bool = False
    drop_pieces: bool = False
    yes: bool = False
    state: Path | None = None


# --- verify ----------------------------------------------------------------------------------

_BRING_BACK = (
    "bring it back from a version of the bucket; a broker that has the topic writes it again at its"
    " next start"
)


_WRITTEN_AGAIN = (
    "The archive's broker writes it again from its disk, while it runs or when it starts; without"
    " its disk: bring it back from a version of the bucket, or `strandline restore --skip-damaged`"
)


def verify(store: ObjectStore, options: VerifyOptions) -> int:
    """Checks all partitions and prints findings; returns the exit code. Raises StrandlineError."""
    store.check()
    damaged: list[DamagedTopic] = []
    topics = list_topics(store, topic=options.topic, damaged=damaged)
    troubles = [f"{topic.reason}; {_BRING_BACK}" for topic in damaged]
    if not options.topic:
        known = {(info.topic, info.topic_id) for info in topics}
        known |= {(topic.folder.topic, topic.folder.topic_id) for topic in damaged}
        troubles += [*_check_cluster(store), *change_list.find_damage(store)]
        troubles += [
            *_check_states(store, GROUPS_PREFIX, "offsets of groups", "commit"),
            *_check_states(store, TRANSACTIONS_PREFIX, "transactional ids", "transaction"),
            *_check_topics(store, known),
        ]
    if options.topic and not (topics or damaged):
        raise UnknownTopic(f"no topic {options.topic!r} is archived at {store.url}")
    wanted = [
        TopicIdPartition(info.topic, info.topic_id, number)
        for info in topics
        if not info.is_deleted
        for number in range(info.partition_count)
    ]
    state = _State(options, store.url)
    reports: list[PartitionReport] = []
    try:
        _scrub_all(store, wanted, options, state, reports)
    except (StorageError, KeyboardInterrupt):
        _report(store, reports, troubles, replace(options, repair=False, drop_pieces=False))
        raise
    left = _report(store, reports, troubles, options)
    if not left:
        state.remove()
    if not options.topic:
        _remember(store, reports, options.depth, left)
    skipped = f", {counted(state.skipped, 'partition')} done before" if state.skipped else ""
    print(
        f"{counted(len(reports), 'partition')},"
        f" {counted(sum(r.segment_count for r in reports), 'segment')},"
        f" {human_bytes(sum(r.size_bytes for r in reports))} looked at"
        f" ({options.depth.value}{_by_size(reports)}){skipped}:"
        f" {'whole' if not left else counted(left, 'finding')}"
    )
    return DAMAGED if left else 0


def _remember(
    store: ObjectStore, reports: Sequence[PartitionReport], depth: Depth, left: int
) -> None:
    """Notes the check in the bucket, for `strandline status`, if it may be written."""
    done = Verification(
        depth=depth.value,
        finished_ms=SystemClock().now_ms(),
        finding_count=left,
        segment_count=sum(report.segment_count for report in reports),
        size_bytes=sum(report.size_bytes for report in reports),
    )
    try:
        note_verification(store, done)
    except StorageError as error:
        print(f"strandline: this check is not noted in the bucket: {error}", file=sys.stderr)


def _by_size(reports: Sequence[PartitionReport]) -> str:
    """Counts segments that were compared by size only, for want of a checksum."""
    count = sum(report.by_size_count for report in reports)
    if not count:
        return ""
    return f"; {counted(count, 'object')} by size alone, without a CRC-32C in the store: see --deep"


def _scrub_all(
    store: ObjectStore,
    wanted: Sequence[TopicIdPartition],
    options: VerifyOptions,
    state: _State,
    reports: list[PartitionReport],
) -> None:
    """Adds the reports of the partitions, in this order. Raises StorageError.

    Partitions with few segments are checked concurrently: each is a handful of sequential requests.
    One with many segments has the threads to itself.
    """
    with (
        BarProgress() as progress,
        ThreadPoolExecutor(PARALLEL_MAX, "verify") as executor,
        ThreadPoolExecutor(SMALL_AT_ONCE, "verify-partition") as partitions,
    ):
        progress.begin("manifests", len(wanted))
        counts = _segments_in(store, wanted, executor, on_read=progress.advance)
        progress.begin("segments", sum(counts))
        scrub = Scrub(store, executor, depth=options.depth, on_segments=progress.advance)
        left = [
            (partition, count <= BATCH_SEGMENTS)
            for partition, count in zip(wanted, counts, strict=True)
            if not state.has(partition)
        ]
        try:
            for are_small, run in itertools.groupby(left, key=lambda pair: pair[1]):
                for report in map_ahead(
                    partitions,
                    scrub.check,
                    (partition for partition, _ in run),
                    ahead_max=SMALL_AT_ONCE if are_small else 1,
                ):
                    reports.append(report)
                    if not report.findings and not report.unread:
                        state.done(report.partition)
        finally:
            state.write()


def _segments_in(
    store: ObjectStore,
    wanted: Sequence[TopicIdPartition],
    executor: ThreadPoolExecutor,
    *,
    on_read: Callable[[], None],
) -> list[int]:
    """Returns the segment count of each partition; 0 where it is unknown."""

    def count(partition: TopicIdPartition) -> int:
        try:
            stored = manifest_store.load(store, partition)
        except StorageError:
            return 0
        finally:
            on_read()
        return 0 if stored is None else stored.manifest.segment_count

    return list(executor.map(count, wanted))


def _check_cluster(store: ObjectStore) -> list[str]:
    """Returns the faults of objects that belong to no topic."""
    try:
        cluster_id, fault = cluster_id_or_damage(store)
        if not cluster_id:
            return [
                f"{CLUSTER_KEY} is missing: nobody knows whose archive this is; {WHERE_IT_IS}."
                f" {_WRITTEN_AGAIN}"
            ]
        damage = salvage_history(store, cluster_id=cluster_id).damage
    except CorruptFile as error:
        return [str(error)]
    texts = (fault, damage, _boundary_fault(store))
    return [f"{text}. {_WRITTEN_AGAIN}" for text in texts if text]


def _boundary_fault(store: ObjectStore) -> str:
    try:
        freed_through(store)
    except (CorruptFile, ObjectCorrupt) as error:
        return str(error)
    return ""


def _check_states(store: ObjectStore, prefix: str, content: str, change: str) -> list[str]:
    """Returns the objects of the coordinators below `prefix` that a restore could not read."""

    def check(number: int) -> str:
        try:
            read_group_state(store, number, prefix)
        except (CorruptRecords, ObjectCorrupt) as error:
            return (
                f"{state_key(prefix, number)}: {content} cannot be read: {error}. A broker"
                f" that has them writes them again with the next {change}; without its disk: bring"
                " the object back from a version of the bucket, or `strandline restore"
                " --skip-damaged`"
            )
        return ""

    numbers = (parse_state_key(prefix, info.key) for info in store.list(prefix))
    with ThreadPoolExecutor(PARALLEL_MAX, "verify") as executor:
        found = executor.map(check, [number for number in numbers if number is not None])
        return [text for text in found if text]


def _check_topics(store: ObjectStore, known: Collection[tuple[str, TopicId]]) -> list[str]:
    """Returns topics without `topic.json`, which a purge deletes last."""
    lost = [
        folder
        for name in store.list_folders(TOPICS_PREFIX)
        if (folder := parse_topic_folder(name)) is not None
        and (folder.topic, folder.topic_id) not in known
        and _has_manifest(store, topic_folder(folder.topic, folder.topic_id))
    ]
    return [
        f"{topic_key(folder.topic, folder.topic_id)} is missing, and yet the topic has manifests:"
        f" {_BRING_BACK}"
        for folder in lost
        # It may have been created after the listing.
        if load_topic_info(store, folder.topic, folder.topic_id) is None
    ]


def _has_manifest(store: ObjectStore, folder: str) -> bool:
    """Returns whether any partition has a manifest; leftovers of crashed copies make no topic."""
    keys = (f"{folder}{number}/{MANIFEST_FILE}" for number in store.list_folders(folder))
    return any(info.key == key for key in keys for info in store.list(key, limit=1))


def _report(
    store: ObjectStore,
    reports: Sequence[PartitionReport],
    troubles: Sequence[str],
    options: VerifyOptions,
) -> int:
    """Prints the findings with remedies, repairs on request; returns how many are left."""
    findings = [finding for report in reports for finding in report.findings]
    unread = [text for report in reports for text in report.unread]
    if findings:
        _print_findings(findings)
    for text in (*troubles, *(f"not looked at: {text}" for text in unread)):
        print(f"strandline: {text}", file=sys.stderr)
    repaired = _repair(store, findings) if options.repair else 0
    dropped = _drop_pieces(store, findings, yes=options.yes) if options.drop_pieces else 0
    return len(findings) + len(troubles) + len(unread) - repaired - dropped


def _print_findings(findings: Sequence[Finding]) -> None:
    print_table(
        "what is wrong, and what to do",
        ("partition", "offsets", "what", "object", "detail", "what to do"),
        [
            (
                finding.partition,
                finding.offsets,
                finding.damage.value,
                finding.key,
                finding.detail,
                finding.advice,
            )
            for finding in findings
        ],
    )


def _repair(store: ObjectStore, findings: Sequence[Finding]) -> int:
    repaired = 0
    for finding in findings:
        if not finding.repairable:
            continue
        try:
            key = repair_meta(
                store,
                finding.partition,
                finding.base_offset,
                damaged_key=finding.key,
                clock=SystemClock(),
            )
        except StorageError as error:
            print(f"strandline: not repaired: {finding.key}: {error}", file=sys.stderr)
            continue
        repaired += 1
        if key is None:
            print(f"nothing to repair any more: no segment has {finding.key}")
        else:
            print(f"repaired: {finding.key} is now {key}")
    return repaired


def _drop_pieces(store: ObjectStore, findings: Sequence[Finding], *, yes: bool) -> int:
    dropped = 0
    pieces = [finding for finding in findings if finding.damage is Damage.TAIL]
    if pieces:
        confirm(
            f"{counted(len(pieces), 'piece')} of open segments, and what came after them, to be"
            " given up: without the broker's disk those records are lost",
            yes=yes,
        )
    for finding in pieces:
        try:
            is_done = drop_pieces(
                store, finding.partition, damaged_key=finding.key, clock=SystemClock()
            )
        except StorageError as error:
            print(f"strandline: not dropped: {finding.key}: {error}", file=sys.stderr)
            continue
        dropped += 1
        if is_done:
            print(f"dropped: {finding.key}, and what came after it")
        else:
            print(f"nothing to drop any more: no open segment has {finding.key}")
    return dropped


class _State:
    """The partitions that an earlier, interrupted run has checked."""

    def __init__(self, options: VerifyOptions, url: str) -> None:
        """Raises InvalidConfig if the file belongs to another run or is damaged, and DiskError."""
        self._path = options.state
        self._about = {"url": url, "depth": options.depth.value, "topic": options.topic or ""}
        self._done: set[str] = set()
        self._written_count = 0
        self._written_s = -STATE_INTERVAL_S
        self._clock = SystemClock()
        self.skipped = 0
        content = None if self._path is None else files.read_if_there(self._path)
        if content is not None:
            try:
                fields = decode_document(
                    content,
                    format_name=STATE_FORMAT,
                    versions=STATE_VERSIONS,
                    source=str(self._path),
                )
                about = fields.texts_by_name("about")
                done = set(fields.texts_by_name("done"))
            except (CorruptFile, UnsupportedFormat) as error:
                raise InvalidConfig(
                    f"{error}: remove the file to check everything again"
                ) from error
            if about != self._about:
                raise InvalidConfig(f"{self._path} is the state of another run: {about}")
            self._done = done
            self._written_count = len(done)

    def has(self, partition: TopicIdPartition) -> bool:
        is_done = _name(partition) in self._done
        self.skipped += is_done
        return is_done

    def done(self, partition: TopicIdPartition) -> None:
        """Notes the partition; the whole file is written again within STATE_INTERVAL_S."""
        self._done.add(_name(partition))
        if self._clock.monotonic_s() >= self._written_s + STATE_INTERVAL_S:
            self.write()

    def write(self) -> None:
        """Writes new notes to the file. Raises DiskError."""
        if self._path is not None and len(self._done) > self._written_count:
            self._written_count = len(self._done)
            self._written_s = self._clock.monotonic_s()
            fields = {"about": dict(self._about), "done": dict.fromkeys(sorted(self._done), "")}
            content = encode_document(STATE_FORMAT, STATE_VERSIONS.start, fields)  # type: ignore[arg-type]  # dicts of texts are JSON
            # A concurrent run may use the same file: the later write wins.
            own = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            files.write_atomically(own, content, sync=False)
            files.rename(own, self._path, sync=False)

    def remove(self) -> None:
        if self._path is not None:
            files.remove(self._path)


def _name(partition: TopicIdPartition) -> str:
    return f"{partition.topic}-{partition.topic_id}-{partition.partition}"


# --- lifecycle -------------------------------------------------------------------------------


def lifecycle(store: ObjectStore, *, apply: bool) -> int:
    """Prints the rule that aborts incomplete uploads, or adds it to the bucket's rules."""
    if not isinstance(store, S3Store):
        raise InvalidConfig(f"{store.url} is no bucket: only S3 has lifecycle rules")
    if not apply:
        print(store.lifecycle.text)
    elif store.lifecycle.apply():
        print(f"added to the rules of {store.url}")
    else:
        print(f"{store.url} has the rule already")
    return 0
