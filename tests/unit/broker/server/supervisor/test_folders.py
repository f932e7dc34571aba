"""Folders of a lone broker become those of several, and back, through a crash after each step."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.loading import load_config
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.broker.server.supervisor.folders import (
    become_one,
    become_several,
    locked,
    lost_controller,
)
from strandline.broker.server.upkeep.folder_marks import (
    ARCHIVE_MARK,
    METADATA_FOLDER,
    are_of_several,
)
from strandline.storage.crash_points import (
    CRASH_POINTS,
    SEVERAL_BEFORE_UNMARK,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import InvalidConfig, LogDirLocked
from strandline.storage.local.formats.checkpoint import read_properties, write_properties
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from tests.unit.broker.controller.cluster_of_brokers import CLUSTER, broker

TO_SEVERAL = [point for point in CRASH_POINTS if point.startswith("several.")]
TO_ONE = [point for point in CRASH_POINTS if point.startswith("one.")]
# A topic may have the name of the folders.
FIRST = {"broker-1/0.log", "broker-2/0.log", "orders-0/0.log", "recovery-point-offset-checkpoint"}
SECOND = {"orders-1/0.log", ".kafka_cleanshutdown", "x-0.0123456789abcdef0123456789abcdef-stray/0"}


class World:
    """Two log folders of a lone broker, with something of somebody else in the first."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = folder / "a", folder / "b"
        for base, names in ((self.first, FIRST), (self.second, SECOND)):
            for name in names:
                path = base / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(name)
            write_properties(
                base / "meta.properties", {"version": "1", "node.id": "1", "cluster.id": CLUSTER}
            )
        (self.first / "notes.txt").write_text("mine")
        self.append([broker(1), *topics("orders", "broker", on=1)])
        self.kept = self.contents(self.first), self.contents(self.second)

    def log(self, folder: Path) -> MetadataLog:
        return MetadataLog(LocalDirectoryStore(folder / METADATA_FOLDER), cluster_id=CLUSTER)

    def append(self, records: Sequence[MetadataRecord]) -> None:
        log = self.log(self.metadata_folder)
        log.load()
        log.append(records)

    @property
    def metadata_folder(self) -> Path:
        several = self.first / "controller"
        return several if (several / METADATA_FOLDER).exists() else self.first

    @property
    def image(self) -> MetadataImage:
        return self.log(self.metadata_folder).load()

    def config(self, brokers: int = 1) -> BrokerConfig:
        return load_config(
            None, [f"log.dirs={self.first},{self.second}", f"strandline.brokers={brokers}"]
        )

    def several(self, brokers: int = 3) -> None:
        config = self.config(brokers)
        with locked(config.logs.dirs):
            become_several(config)

    def one(self) -> None:
        become_one(self.config())

    def contents(self, folder: Path) -> dict[str, bytes]:
        """All files but those of the metadata log, which grows, and of locks."""
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and METADATA_FOLDER not in path.parts and path.name != ".lock"
        }


def topics(*names: str, on: int) -> Iterator[MetadataRecord]:
    for number, name in enumerate(names):
        topic_id = uuid.UUID(int=100 * on + number)
        yield from topic_records(name, topic_id, ((on,), (on,)), {})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def check_several(world: World) -> None:
    first, second = world.kept
    assert world.contents(world.first / "broker-1") == {
        name: content for name, content in first.items() if name != "notes.txt"
    }
    assert world.contents(world.second / "broker-1") == second
    assert sorted(path.name for path in world.second.iterdir()) == [".lock", "broker-1"]
    assert (world.first / "notes.txt").read_text() == "mine"
    found = read_properties(world.first / "controller" / "meta.properties") or {}
    assert (found["cluster.id"], found["node.id"]) == (CLUSTER, "3000")
    assert not (world.first / METADATA_FOLDER).exists()
    # Its next process may register at once, and its partitions wait for that.
    assert world.image.brokers[1].fenced
    assert {one.leader for topic in world.image.topics.values() for one in topic.partitions} == {-1}


def check_one(world: World) -> None:
    assert (world.contents(world.first), world.contents(world.second)) == world.kept
    assert not are_of_several(world.config().logs.dirs)
    image = world.image
    assert list(image.brokers) == [1]
    assert {one.leader for topic in image.topics.values() for one in topic.partitions} == {1}


def test_one_becomes_several_and_one_again(world: World) -> None:
    world.several()
    check_several(world)
    world.several()
    check_several(world)
    world.one()
    check_one(world)


@pytest.mark.parametrize("point", TO_SEVERAL)
def test_a_crash_on_the_way_to_several_is_followed_by_the_rest(world: World, point: str) -> None:
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        world.several()
    with pytest.raises(InvalidConfig, match="becoming several brokers was interrupted"):
        world.one()
    world.several()
    check_several(world)


@pytest.mark.parametrize("point", TO_ONE)
def test_a_crash_on_the_way_to_one_is_followed_by_the_rest(world: World, point: str) -> None:
    world.several()
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        world.one()
    assert are_of_several(world.config().logs.dirs)
    with pytest.raises(InvalidConfig, match="becoming one broker again was interrupted"):
        world.several()
    world.one()
    check_one(world)


def grown(world: World) -> None:
    """Broker 2 has been there, with a folder in each of log.dirs."""
    world.several()
    for folder in (world.first, world.second):
        (folder / "broker-2" / "orders-9").mkdir(parents=True)
        write_properties(folder / "broker-2" / "meta.properties", {"version": "1", "node.id": "2"})
    world.append([broker(2)])


def test_partitions_elsewhere_are_named_and_nothing_changes(world: World) -> None:
    grown(world)
    world.append(list(topics("far", on=2)))
    before = world.contents(world.first), world.image.version
    with pytest.raises(InvalidConfig, match="far-0 on broker 2; far-1 on broker 2"):
        world.one()
    with pytest.raises(InvalidConfig, match="2 partitions would be without a broker"):
        world.several(brokers=1)
    assert (world.contents(world.first), world.image.version) == before


def test_brokers_without_partitions_are_put_away_and_not_deleted(world: World) -> None:
    grown(world)
    world.one()
    assert list(world.image.brokers) == [1]
    assert (world.first / "broker-2.former" / "orders-9").is_dir()
    # The partition of that name is back.
    assert (world.first / "broker-2" / "0.log").read_text() == "broker-2/0.log"


def test_fewer_brokers_than_before_are_several_still(world: World) -> None:
    grown(world)
    world.several(brokers=1)
    assert list(world.image.brokers) == [1]
    assert (world.second / "broker-2.former").is_dir()
    assert (world.first / "broker-1" / "broker-2" / "0.log").exists()


@pytest.mark.parametrize("lost", ["controller", f"controller/{METADATA_FOLDER}"])
def test_no_other_cluster_begins_where_the_controllers_folder_is_gone(
    world: World, lost: str
) -> None:
    world.several()
    assert lost_controller(world.first / "controller") == ""
    shutil.rmtree(world.first / lost)
    with pytest.raises(InvalidConfig, match=r"has lost its metadata, and .*broker-1 is there"):
        become_several(world.config(3))
    # The first start of all finds nobody's folder.
    assert lost_controller(world.first / "broker-1" / "controller") == ""


def test_a_lone_broker_that_runs_is_left_alone(world: World) -> None:
    with locked([world.second]), pytest.raises(LogDirLocked):
        world.several()
    assert not are_of_several(world.config().logs.dirs)


def test_processes_that_still_end_are_waited_for_by_another_start(world: World) -> None:
    world.several()
    with locked([world.second / "broker-1"]), pytest.raises(LogDirLocked):
        world.one()
    check_several(world)


def test_the_folder_of_another_id_is_refused(world: World) -> None:
    config = load_config(
        None, [f"log.dirs={world.first},{world.second}", "node.id=7", "strandline.brokers=2"]
    )
    with pytest.raises(InvalidConfig, match=r"the folder of broker 1, and node\.id is 7"):
        become_several(config)


def test_topics_with_an_archive_go_to_several_and_not_back(world: World) -> None:
    (world.first / ARCHIVE_MARK).write_text("file:///archive")
    tiered = {"remote.storage.enable": "true"}
    world.append(topic_records("tiered", uuid.uuid4(), ((1,),), tiered))
    world.several()
    assert (world.first / "broker-1" / ARCHIVE_MARK).exists()
    with pytest.raises(InvalidConfig, match="1 topic with an archive"):
        world.one()


def test_a_new_folder_among_those_of_log_dirs_comes_along(tmp_path: Path) -> None:
    world = World(tmp_path)
    shutil.rmtree(world.second)
    with simulated_crash(SEVERAL_BEFORE_UNMARK), pytest.raises(SimulatedCrash):
        world.several()
    world.several()
    assert [path.name for path in world.second.iterdir() if path.name != ".lock"] == ["broker-1"]
    assert not (world.second / "broker-1" / "broker-1").exists()
