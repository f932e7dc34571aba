"""A restore of an archive whose manifest, or a page of it, is not what lay there last."""

from __future__ import annotations

import shutil
import uuid
from functools import partial
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.records import TopicCreated
from strandline.broker.commands.restore import Restore, RestoreSummary
from strandline.broker.config.loading import load_config
from strandline.broker.server.folder_marks import RestoreRefused
from strandline.storage.clock import ManualClock
from strandline.storage.model import TopicPartition
from strandline.storage.remote.keys import CHANGES_KEY, manifest_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.change_list import ChangeList, ManifestChange
from strandline.storage.remote.manifest.cluster_info import ClusterInfo, create_cluster_info
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.tiering.audit.restoring import read_partition
from tests.unit.storage.tiering.harness import (
    ID_PARTITION,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    Rig,
    asynchronous,
)

CLUSTER = "cluster-of-the-tests00"
CLOCK = ManualClock(1_700_000_000_000)
MANIFEST = manifest_key(ID_PARTITION)
OTHER = TopicPartition("other", 0)


class Silent:
    """A progress that nobody sees."""

    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, count: int = 1) -> None:
        pass


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
                TopicCreated(topic=TOPIC, topic_id=TOPIC_ID, replicas=((1,),), properties=tiered),
                TopicCreated(
                    topic=OTHER.topic, topic_id=uuid.UUID(int=7), replicas=((1,),), properties={}
                ),
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
        config = load_config(None, [f"log.dirs={self.folder / 'data'}", "node.id=1"])
        restoring = Restore(
            config, self.store, clock=CLOCK, progress=Silent(), skip_damaged=skip_damaged
        )
        return restoring.run()

    @property
    def has_written(self) -> bool:
        return (self.folder / "data").exists()


@pytest.fixture
def lost(tmp_path: Path) -> LostMachine:
    return LostMachine(tmp_path)


def restored(summary: RestoreSummary) -> set[TopicPartition]:
    return {row.topic_partition for row in summary.partitions}


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
    (row,) = [row for row in summary.partitions if row.topic_partition == PARTITION]
    assert "2 segments from 20 on, beyond the end, that no manifest names" in row.note
    # What is written now is told from them by its epoch.
    assert read_partition(lost.store, ID_PARTITION).leader_epoch == 2


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three entries in the root, two in a page: pages after four segments."""
    small = partial(manifest_store.commit, root_entries_max=3, page_entries=2, page_entries_max=2)
    monkeypatch.setattr(manifest_store, "commit", small)


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
