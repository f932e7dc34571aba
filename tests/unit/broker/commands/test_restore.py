"""A restore takes what is whole, says what is not before it writes, and spares another one."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.commands.archive.commands import DAMAGED, VerifyOptions, verify
from strandline.broker.commands.restore import MARK_FORMAT, MARK_VERSIONS, Restore, RestoreSummary
from strandline.broker.config.loading import load_config
from strandline.broker.coordination.archive.state_archive import LiveRecord, encode_live
from strandline.broker.protocol.formats.metadata_records import NoOpRecord, ProducerIdsRecord
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.server.upkeep.folder_marks import (
    METADATA_FOLDER,
    RESTORE_MARK,
    RestoreRefused,
)
from strandline.storage.crash_points import RESTORE_BEFORE_UNMARK
from strandline.storage.errors import LogDirLocked
from strandline.storage.local.formats.checkpoint import META_PROPERTIES, read_properties
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicPartition
from strandline.storage.remote.keys import (
    CHANGES_KEY,
    CLUSTER_KEY,
    GROUPS_PREFIX,
    TRANSACTIONS_PREFIX,
    manifest_key,
    metadata_log_key,
    state_key,
    topic_key,
)
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.change_list import ChangeList, ManifestChange
from strandline.storage.remote.manifest.cluster_info import ClusterInfo, create_cluster_info
from strandline.storage.remote.manifest.json_document import encode_document
from strandline.storage.remote.manifest.topic_info import (
    TopicInfo,
    load_topic_info,
    save_topic_info,
)
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.tiering.audit.listing import list_partitions
from strandline.storage.tiering.audit.restoring import read_partition
from strandline.storage.tiering.audit.scrub import Depth
from strandline.storage.tiering.manager.topic_purge import TopicPurge
from strandline.storage.tiering.policy.metadata_threads import MetadataThreads
from tests.support.manual_clock import ManualClock
from tests.unit.storage.tiering.harness import (
    ID_PARTITION,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    Rig,
    asynchronous,
    make_small_pages,
)

CLUSTER = "cluster-of-the-tests00"
CLOCK = ManualClock(1_700_000_000_000)
GROUPS = state_key(GROUPS_PREFIX, 0)
DESCRIPTION = topic_key(TOPIC, TOPIC_ID)
# Of the metadata: the cluster, two topics, and producer ids twice.
ENTRIES = 4
UNKNOWN = TopicInfo(topic="unknown", topic_id=uuid.UUID(int=7), partition_count=1)
MANIFEST = manifest_key(ID_PARTITION)
OTHER = TopicPartition("other", 0)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of a topic, of one that the mirror does not know yet, and of a group."""
    folder = tmp_path_factory.mktemp("original")
    store = LocalDirectoryStore(folder / "archive", clock=CLOCK)
    create_cluster_info(store, ClusterInfo(cluster_id=CLUSTER))

    @asynchronous
    async def archive_segments() -> None:
        async with Rig(folder / "disk", store=store) as rig:
            rig.produce_segments(2)
            await rig.settle()

    archive_segments()
    metadata = MetadataLog(LocalDirectoryStore(folder / "own"), store, cluster_id=CLUSTER)
    metadata.load()
    tiered = {"remote.storage.enable": "true"}
    metadata.append(
        [
            *topic_records(TOPIC, TOPIC_ID, ((1,),), tiered),
            *topic_records(OFFSETS_TOPIC, uuid.UUID(int=1), ((1,),), {}),
        ]
    )
    for number in (1, 2):
        metadata.append([ProducerIdsRecord(broker_id=1, next_producer_id=1000 * number)])
    metadata.mirror_once()
    told = ChangeList(incarnation="one", sequence=1, complete_after=0, metadata_version=ENTRIES)
    store.put(CHANGES_KEY, told.encode())
    save_topic_info(store, UNKNOWN)
    store.put(GROUPS, encode_live([LiveRecord(key=b"key", value=b"value", timestamp_ms=1)]))
    return folder / "archive"


@pytest.fixture
def archive(original: Path, tmp_path: Path) -> Path:
    """One that may be damaged."""
    return shutil.copytree(original, tmp_path / "archive")


def spoil(archive: Path, key: str) -> None:
    content = bytearray((archive / key).read_bytes())
    content[len(content) // 2] ^= 4
    (archive / key).write_bytes(content)


def empty(archive: Path, key: str) -> None:
    (archive / key).write_bytes(b"")


class Meanwhile:
    """A progress that nobody sees; does something while the archive is read."""

    def __init__(self, call: Callable[[], object] = lambda: None) -> None:
        self._call = call

    def begin(self, what: str, total: int) -> None:
        if what == "metadata":
            self._call()

    def advance(self, count: int = 1) -> None:
        pass


def restore(
    folder: Path, meanwhile: Callable[[], object] = lambda: None, *, skip_damaged: bool = False
) -> RestoreSummary:
    """Into `data`, from the archive beside it."""
    config = load_config(None, [f"log.dirs={folder / 'data'}", "node.id=1"])
    store = LocalDirectoryStore(folder / "archive", clock=CLOCK)
    progress = Meanwhile(meanwhile)
    return Restore(config, store, clock=CLOCK, progress=progress, skip_damaged=skip_damaged).run()


@pytest.mark.parametrize("damage", [spoil, empty])
@pytest.mark.parametrize(
    ("key", "problem", "kept"),
    [
        (GROUPS, "offsets of groups are damaged, not restored", (3, 0)),
        (DESCRIPTION, "flights: description damaged, restored as the metadata have it", (3, 1)),
        (UNKNOWN.key, "unknown: description damaged, left out", (2, 1)),
    ],
)
def test_what_is_damaged_beside_the_partitions_is_told_and_the_rest_may_be_had(
    archive: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path, str], None],
    key: str,
    problem: str,
    kept: tuple[int, int],
) -> None:
    assert restore(archive.parent).problems == ()
    shutil.rmtree(archive.parent / "data")
    damage(archive, key)
    store = LocalDirectoryStore(archive, clock=CLOCK)
    assert verify(store, VerifyOptions()) == DAMAGED
    assert key in capsys.readouterr().err
    with pytest.raises(RestoreRefused, match=problem):
        restore(archive.parent)
    assert not (archive.parent / "data").exists()
    summary = restore(archive.parent, skip_damaged=True)
    (told,) = summary.problems
    assert problem in told
    assert (summary.topic_count, summary.offset_count) == kept
    assert TOPIC in {key.topic for key in summary.partitions}


def test_a_damaged_description_is_no_obstacle_to_other_topics(archive: Path) -> None:
    spoil(archive, UNKNOWN.key)
    (found,) = list_partitions(LocalDirectoryStore(archive), topic=TOPIC)
    assert (found.partition, found.segment_count) == (ID_PARTITION, 2)


@pytest.mark.parametrize("ends", ["archived again", "purged"])
def test_who_has_the_topic_writes_its_damaged_description_again(archive: Path, ends: str) -> None:
    spoil(archive, DESCRIPTION)
    store = LocalDirectoryStore(archive, clock=CLOCK)

    @asynchronous
    async def run() -> None:
        async with Rig(archive.parent / "disk", store=store, leader_epoch=2) as rig:
            if ends == "archived again":
                rig.produce_segments(1)
                await rig.settle()
                assert load_topic_info(store, TOPIC, TOPIC_ID) == rig.topic_info
                return
            await purge(rig)
            assert not [info.key for info in store.list("topics/") if TOPIC in info.key]

    run()


async def purge(rig: Rig) -> None:
    topic_purge = TopicPurge(
        rig.topic_info,
        leaving=(),
        threads=MetadataThreads(rig.store, rig.executors.metadata),
        clock=rig.clock,
        retry=rig.tiering_config.retry,
        grace_ms=0,
        on_away=pytest.fail,
    )
    for _ in range(8):
        await topic_purge.step()
    assert topic_purge.done


def delete(archive: Path, *keys: str) -> None:
    for key in keys:
        (archive / key).unlink()


def told_by_verify(archive: Path, capsys: pytest.CaptureFixture[str], depth: Depth) -> str:
    """What it says is wrong; that and no more has to stop a restore."""
    store = LocalDirectoryStore(archive, clock=CLOCK)
    assert verify(store, VerifyOptions(depth=depth)) == DAMAGED
    return capsys.readouterr().err


@pytest.mark.parametrize("depth", list(Depth))
@pytest.mark.parametrize(
    ("gone", "entry", "what"),
    [
        ((1, 2, 3, 4), 0, "metadata/ holds no metadata of the cluster: they were deleted"),
        ((1,), 0, "00001.json is missing"),
        ((1, 2, 3), 0, "00001.json is missing"),
        ((2,), 1, "00002.json is missing"),
        ((3,), 2, "00003.json is missing"),
        ((4,), 3, "metadata/ ends with entry 3, and had entry 4"),
        ((3, 4), 2, "metadata/ ends with entry 2, and had entry 4"),
    ],
)
def test_deleted_metadata_are_told_and_what_is_before_them_may_be_had(
    archive: Path,
    capsys: pytest.CaptureFixture[str],
    depth: Depth,
    gone: tuple[int, ...],
    entry: int,
    what: str,
) -> None:
    delete(archive, *map(metadata_log_key, gone))
    assert what in told_by_verify(archive, capsys, depth)
    with pytest.raises(RestoreRefused, match=re.escape(what)):
        restore(archive.parent)
    assert not (archive.parent / "data").exists()
    summary = restore(archive.parent, skip_damaged=True)
    assert f"restored as they were after entry {entry}" in summary.problems[0]
    topics = {key.topic for key in summary.partitions}
    assert topics >= {TOPIC, UNKNOWN.topic}
    has_groups = entry >= 2
    assert (OFFSETS_TOPIC in topics, summary.offset_count == 1) == (has_groups, has_groups)
    assert [GROUPS_PREFIX in text for text in summary.problems[1:]] == [True] * (not has_groups)


@pytest.mark.parametrize("gone", [(1, 2, 3, 4), (1,), (2,), (3,), (4,), (1, 2), (2, 4), (1, 2, 3)])
def test_what_was_restored_without_lost_metadata_owns_the_archive_and_makes_it_whole(
    archive: Path, gone: tuple[int, ...]
) -> None:
    delete(archive, *map(metadata_log_key, gone))
    restore(archive.parent, skip_damaged=True)
    store = LocalDirectoryStore(archive, clock=CLOCK)
    own = LocalDirectoryStore(archive.parent / "data" / METADATA_FOLDER)
    metadata = MetadataLog(own, store, cluster_id=CLUSTER)
    metadata.load()
    metadata.append([NoOpRecord()])
    metadata.claim_mirror()
    assert metadata.mirror_once() == 0
    assert MetadataLog(store, cluster_id=CLUSTER).load() == metadata.image
    assert verify(store, VerifyOptions()) == 0
    # Nobody who read the archive before takes what is new for what he has.
    assert metadata.image.version > ENTRIES


@pytest.mark.parametrize("damage", [spoil, empty])
def test_damaged_metadata_are_told_as_lost_ones_are(
    archive: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path, str], None]
) -> None:
    key = metadata_log_key(3)
    damage(archive, key)
    assert key in told_by_verify(archive, capsys, Depth.CHECKSUMS)
    with pytest.raises(RestoreRefused, match=key):
        restore(archive.parent)
    summary = restore(archive.parent, skip_damaged=True)
    assert "after entry 2" in summary.problems[0]
    assert (summary.topic_count, summary.offset_count) == (3, 1)


@pytest.mark.parametrize("damage", [delete, empty])
def test_without_its_cluster_json_an_archive_is_that_of_its_metadata(
    archive: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path, str], None]
) -> None:
    damage(archive, CLUSTER_KEY)
    told = told_by_verify(archive, capsys, Depth.SIZES)
    assert f"{CLUSTER_KEY}" in told
    assert CLUSTER in told
    assert "writes it again" in told
    with pytest.raises(RestoreRefused, match=f"archive of cluster {CLUSTER}"):
        restore(archive.parent)
    summary = restore(archive.parent, skip_damaged=True)
    assert summary.cluster_id == CLUSTER
    assert (summary.topic_count, summary.offset_count) == (3, 1)


def test_without_cluster_json_and_metadata_nobody_knows_whose_it_is(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    delete(archive, CLUSTER_KEY, *map(metadata_log_key, range(1, ENTRIES + 1)))
    assert f"{CLUSTER_KEY} is missing" in told_by_verify(archive, capsys, Depth.SIZES)
    with pytest.raises(RestoreRefused, match=re.escape("no cluster.json, and no metadata")):
        restore(archive.parent, skip_damaged=True)


def test_a_list_of_changes_that_tells_of_impossible_metadata_is_not_believed(
    archive: Path,
) -> None:
    told = ChangeList(incarnation="one", sequence=1, complete_after=0, metadata_version=2**63 - 1)
    store = LocalDirectoryStore(archive, clock=CLOCK)
    store.put(CHANGES_KEY, told.encode())
    assert verify(store, VerifyOptions()) == 0
    assert restore(archive.parent).problems == ()


class LostMachine:
    """What is left of a broker: its archive, of two topics, one of which has nothing in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalDirectoryStore(folder / "archive", clock=CLOCK)
        create_cluster_info(self.store, ClusterInfo(cluster_id=CLUSTER))
        metadata = MetadataLog(LocalDirectoryStore(folder / "own"), self.store, cluster_id=CLUSTER)
        metadata.load()
        tiered = {"remote.storage.enable": "true"}
        metadata.append(
            [
                *topic_records(TOPIC, TOPIC_ID, ((1,),), tiered),
                *topic_records(OTHER.topic, uuid.UUID(int=7), ((1,),), {}),
            ]
        )
        metadata.mirror_once()
        self.epoch = 0

    def archive(self, segment_count: int) -> bytes:
        """More segments, by a broker that is started and stopped; the manifest after it."""
        self.epoch += 1

        @asynchronous
        async def run() -> None:
            rig = Rig(self.folder / "disk", store=self.store, leader_epoch=self.epoch)
            async with rig:
                rig.produce_segments(segment_count)
                await rig.settle()

        run()
        return self.store.get(MANIFEST)

    def restore(self, *, skip_damaged: bool = False) -> RestoreSummary:
        return restore(self.folder, skip_damaged=skip_damaged)

    @property
    def has_written(self) -> bool:
        return (self.folder / "data").exists()


@pytest.fixture
def lost(tmp_path: Path) -> LostMachine:
    return LostMachine(tmp_path)


def restored(summary: RestoreSummary) -> set[TopicPartition]:
    return set(summary.partitions)


def test_a_restore_from_an_older_manifest_is_refused_or_does_without_the_partition(
    lost: LostMachine,
) -> None:
    older = lost.archive(2)
    newest = lost.archive(3)
    lost.store.put(MANIFEST, older)
    with pytest.raises(RestoreRefused, match="3 segments from 20 on lie beyond its end"):
        lost.restore()
    assert not lost.has_written
    summary = lost.restore(skip_damaged=True)
    (told,) = summary.problems
    assert "flights-0: damaged, not restored" in told
    assert "Bring back the newest version" in told
    assert restored(summary) == {OTHER}
    lost.store.put(MANIFEST, newest)
    assert read_partition(lost.store, ID_PARTITION).end_offset == 50


def test_an_older_manifest_that_the_list_of_changes_knows_a_later_one_of_is_refused(
    lost: LostMachine,
) -> None:
    older = lost.archive(2)
    lost.archive(1)
    stored = manifest_store.load(lost.store, ID_PARTITION)
    assert stored is not None
    change = ManifestChange(topic_id=TOPIC_ID, partition=0, sequence=1, order=stored.manifest.order)
    changes = ChangeList(
        incarnation="a", sequence=1, complete_after=0, metadata_version=1, changes=[change]
    )
    lost.store.put(CHANGES_KEY, changes.encode())
    assert restored(lost.restore()) == {PARTITION, OTHER}
    shutil.rmtree(lost.folder / "data")
    lost.store.put(MANIFEST, older)
    with pytest.raises(RestoreRefused, match=r"changes\.json tells of revision"):
        lost.restore()


def test_an_older_manifest_whose_segments_were_merged_meanwhile_is_refused(
    lost: LostMachine,
) -> None:
    older = lost.archive(4)

    @asynchronous
    async def merge() -> None:
        rig = Rig(
            lost.folder / "disk",
            store=lost.store,
            leader_epoch=2,
            merge_target_bytes=1500,
            grace_ms=0,
        )
        async with rig:
            for _ in range(4):
                rig.produce_segments(1)
                rig.pass_ms(5000)
                await rig.settle()
            assert len(rig.archived) < 8

    merge()
    assert lost.store.get(MANIFEST) != older
    lost.store.put(MANIFEST, older)
    with pytest.raises(RestoreRefused, match=r"is gone, and .* begins there"):
        lost.restore()


def test_copies_that_were_under_way_hold_no_restore_up_and_are_told(lost: LostMachine) -> None:
    older = lost.archive(2)
    lost.archive(2)
    lost.store.put(MANIFEST, older)
    summary = lost.restore()
    assert summary.problems == ()
    problem = summary.partitions[PARTITION].problem
    assert "2 segments from 20 on, beyond the end, that no manifest names" in problem
    # What is written now is told from them by its epoch.
    assert read_partition(lost.store, ID_PARTITION).leader_epoch == 2


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small_pages(monkeypatch)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("damage", ["lost", "flipped"])
def test_a_lost_page_of_a_manifest_is_told_and_what_it_does_not_name_may_be_had(
    lost: LostMachine, damage: str
) -> None:
    lost.archive(9)
    stored = manifest_store.load(lost.store, ID_PARTITION)
    assert stored is not None
    page = stored.manifest.pages[1]
    if damage == "lost":
        lost.store.delete([page.key])
    else:
        lost.store.put(page.key, lost.store.get(page.key)[:-2] + b" }")
    with pytest.raises(RestoreRefused, match="records from 20 to 39 cannot be read"):
        lost.restore()
    assert not lost.has_written
    summary = lost.restore(skip_damaged=True)
    (told,) = summary.problems
    assert page.key in told
    assert "DeleteRecords up to 40" in told
    assert restored(summary) == {PARTITION, OTHER}


@pytest.mark.usefixtures("small_pages")
def test_a_lost_page_that_ends_below_the_log_start_is_nobodys_loss(lost: LostMachine) -> None:
    lost.archive(9)
    stored = manifest_store.load(lost.store, ID_PARTITION)
    assert stored is not None
    page = stored.manifest.pages[0]
    manifest_store.commit(lost.store, stored, stored.manifest.with_log_start(page.end_offset))
    lost.store.delete([page.key])
    assert lost.restore().problems == ()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With an archive of nothing."""
    store = LocalDirectoryStore(tmp_path / "archive", clock=CLOCK)
    create_cluster_info(store, ClusterInfo(cluster_id=CLUSTER))
    return tmp_path


def test_a_restore_that_another_one_overtook_leaves_the_folders_as_they_are(folder: Path) -> None:
    with pytest.raises(RestoreRefused, match="is not empty"):
        restore(folder, lambda: restore(folder))
    found = read_properties(folder / "data" / META_PROPERTIES)
    assert found is not None
    assert found["cluster.id"] == CLUSTER
    assert not (folder / "data" / RESTORE_MARK).exists()


def test_a_restore_beside_one_that_is_under_way_takes_nothing_from_it(folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    restore(folder)
    # As the first one has it in its middle.
    fields = {"cluster_id": CLUSTER, "url": ""}
    (data / RESTORE_MARK).write_bytes(encode_document(MARK_FORMAT, MARK_VERSIONS.start, fields))
    opened = LogDirs.open([data], node_id=1, cluster_id=CLUSTER, clock=CLOCK)
    with pytest.raises(LogDirLocked):
        restore(folder)
    assert (data / META_PROPERTIES).exists()
    opened.close()


def test_a_restore_beside_one_that_takes_its_marks_away_empties_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def try_another(point: str) -> None:
        if point == RESTORE_BEFORE_UNMARK:
            with pytest.raises(LogDirLocked) as caught:
                restore(folder)
            refused.append(str(caught.value))

    monkeypatch.setattr("strandline.broker.commands.restore.crash_point", try_another)
    restore(folder)
    assert len(refused) == 1
    assert (folder / "data" / META_PROPERTIES).exists()
    assert not (folder / "data" / RESTORE_MARK).exists()
    LogDirs.open([folder / "data"], node_id=1, cluster_id=CLUSTER, clock=CLOCK).close()


def test_damaged_transactional_ids_are_told_and_unplaced_ones_stop_a_restore(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalDirectoryStore(archive, clock=CLOCK).put(state_key(TRANSACTIONS_PREFIX, 0), b"")
    told = told_by_verify(archive, capsys, Depth.SIZES)
    assert "transactions/0.log: transactional ids cannot be read" in told
    with pytest.raises(RestoreRefused, match="the metadata do not know __transaction_state"):
        restore(archive.parent)
    assert restore(archive.parent, skip_damaged=True).offset_count == 1


def test_a_restore_beside_a_broker_that_may_still_run_says_so(
    archive: Path, caplog: pytest.LogCaptureFixture
) -> None:
    restore(archive.parent)
    assert "the archive was written lately" in caplog.text


def test_a_restore_into_folders_that_nobody_named_is_refused(
    original: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["restore", "--remote", f"file://{original}", "--set", "node.id=1"]
    assert main(words) == 2
    assert "name the folders" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
