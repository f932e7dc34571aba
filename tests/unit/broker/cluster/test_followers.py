"""Followers of the metadata end alike, however the same history reaches them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from hypothesis import example, given, settings

from strandline.broker.authorization.changes import CreateAcls
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.replicas.read_only_replica import FollowingController
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.cluster.replicas.tiers import BothTiers
from strandline.broker.config.loading import load_config
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.quotas.quotas import ClientQuotas, QuotaWindows
from strandline.broker.security.acl import Acl
from strandline.broker.server.decisions import decisions
from strandline.storage.local.log_dirs.folder_work import FolderWork
from strandline.storage.model import TopicPartition
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.tiering.manager.manager import TieringManager
from strandline.storage.tiering.partition.config import TieringConfig, TieringExecutors
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.unit.broker.cluster.histories import FIRST, PICKS, Entry, history, replayed
from tests.unit.broker.cluster.metadata_rig import opened
from tests.unit.broker.replication.rig import until
from tests.unit.storage.local.log_folders import open_dirs
from tests.unit.storage.tiering.threaded_cleaner import ThreadedCleaner

Publication: TypeAlias = tuple[MetadataDelta, MetadataImage]


def one_by_one(entries: Iterable[Entry]) -> Iterator[Publication]:
    image = MetadataImage()
    for records in entries:
        delta = replayed(image, records)
        image = delta.image()
        yield delta, image


def start_and_one(entries: list[Entry]) -> Iterator[Publication]:
    """A start in the middle, and all that came later at once."""
    middle = len(entries) // 2
    first = replayed(MetadataImage(), *entries[:middle])
    image = first.image()
    yield first, image
    rest = replayed(image, *entries[middle:])
    yield rest, rest.image()


def from_nothing(entries: list[Entry]) -> Iterator[Publication]:
    image = replayed(MetadataImage(), *entries).image()
    yield MetadataDelta(MetadataImage(), image), image


WAYS = (one_by_one, start_and_one, from_nothing)
# A topic that is tiered later, and one that is so no longer.
TIERED_LATER = [[("create", 0)], [("topic configs", 1)]]
UNTIERED = [[("create", 4)], [("topic configs", 0)]]
FOR_ALL_BROKERS = [[("broker configs", 3)], [("producer ids", 1)]]


def configs(publications: Iterable[Publication]) -> object:
    running, image = RunningConfig(load_config(None, ["node.id=1"])), MetadataImage()
    for delta, image in publications:
        running.follow(delta, image)
    assert running.own == image.broker_properties.get(1, {})
    assert running.cluster_wide == image.broker_properties.get(None, {})
    return dict(running.current.given)


def quotas(publications: Iterable[Publication]) -> object:
    clock = ManualClock()
    client_quotas = ClientQuotas(clock, QuotaWindows())
    for delta, image in publications:
        client_quotas.follow(delta, image)
    return client_quotas.is_active, [client_quotas.produced(user, "", 10**6) for user in "abc"]


@settings(max_examples=50)
@given(PICKS)
@example(FOR_ALL_BROKERS)
def test_configurations_and_quotas_are_the_same(picks: list) -> None:  # type: ignore[type-arg]
    entries = history(picks)
    for follow in (configs, quotas):
        first, *others = [follow(way(entries)) for way in WAYS]
        assert all(other == first for other in others)


@contextmanager
def tiering(executor: Executor) -> Iterator[TieringManager]:
    store, clock = MemoryStore(), ManualClock()
    reader = ColdReader(store, executor)
    manager = TieringManager(
        store,
        reader=reader,
        executors=TieringExecutors(copies=executor, metadata=executor),
        clock=clock,
        config=TieringConfig(),
        cleaner=ThreadedCleaner(clock),
    )
    yield manager
    manager.close()
    reader.close()


def here(image: MetadataImage) -> set[TopicPartition]:
    return {
        TopicPartition(topic.name, one.partition)
        for topic in image.topics.values()
        for one in topic.partitions
        if 1 in one.replicas
    }


async def replicas(publications: Iterable[Publication]) -> object:
    """What is served, and tiered."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(1) as disk,
        tiering(disk) as manager,
    ):
        dirs = open_dirs(Path(folder))
        served = ReplicaManager(
            dirs,
            BothTiers(manager, {}, lookups=disk),
            node_id=1,
            topic_defaults=dict,
            folders=FolderWork(lambda _: disk),
            syncs=lambda _: disk,
        )
        await served.follow(MetadataDelta(MetadataImage()), MetadataImage())
        for delta, image in publications:
            await served.follow(delta, image)
            # It does not wait for ever for a disk that is late with new logs.
            wanted = here(image)
            await until(lambda: {one.topic_partition for one in served.partitions()} == wanted)  # noqa: B023
        partitions = {
            (one.topic_partition, one.topic_id): (
                one.leader_epoch,
                one.log.config,
                one.log.remote is not None,
                manager.statistics_of(one.topic_partition) is not None,
            )
            for one in served.partitions()
        }
        names = {(name, served.traffic_of(name) is not None) for name in served.topic_names()}
        await served.deleted()
        folders = {path.name for path in Path(folder).glob("*-?")}
        dirs.close()
        return partitions, names, folders, manager.untiered


@settings(max_examples=15)
@given(PICKS)
@example(TIERED_LATER)
@example(UNTIERED)
def test_replicas_and_their_tiers_are_the_same(picks: list) -> None:  # type: ignore[type-arg]
    entries = history(picks)
    first, *others = [asyncio.run(replicas(way(entries))) for way in WAYS]
    assert all(other == first for other in others)


@settings(max_examples=50)
@given(PICKS)
@example(TIERED_LATER)
@example(UNTIERED)
def test_a_read_only_replica_has_the_same_image(picks: list) -> None:  # type: ignore[type-arg]
    entries = history(picks)

    async def follow(store: ObjectStore, *, polls_each: bool) -> MetadataImage:
        with ThreadPoolExecutor(1) as executor:
            writer, origin = opened(store), opened(store)
            replica = FollowingController(
                origin, opened(MemoryStore()), {}, node_id=7, executor=executor
            )
            image = MetadataImage()

            def take(delta: MetadataDelta, after: MetadataImage) -> None:
                nonlocal image
                assert delta.before == image
                image = after

            await replica.view.publish_to(take)
            for records in entries:
                if records is not FIRST:
                    writer.append(records)
                if polls_each:
                    await replica.refresh()
            await replica.refresh()
            assert image is replica.view.image
            again = FollowingController(
                opened(store), opened(MemoryStore()), {}, node_id=7, executor=executor
            )
            assert again.view.image == image
            return image

    one, another = (
        asyncio.run(follow(MemoryStore(), polls_each=polls_each)) for polls_each in (True, False)
    )
    assert one == another


def test_a_read_only_replica_refuses_changes_of_rules() -> None:
    rule = Acl(2, "t", 3, "User:a", "*", 3, 3)

    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            replica = FollowingController(
                opened(MemoryStore()),
                opened(MemoryStore()),
                decisions(RunningConfig(load_config())),
                node_id=7,
                executor=executor,
            )
            results = await replica.ask(CreateAcls([rule]))
            assert [one.error_code for one in results] == [ErrorCode.POLICY_VIOLATION]
            assert not replica.view.image.acls

    asyncio.run(main())
