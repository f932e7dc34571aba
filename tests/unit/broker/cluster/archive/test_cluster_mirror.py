"""The mirror of a cluster's metadata: written by whoever is the caretaker, and read by restores."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from strandline.broker.cluster.archive.caretaker import ARCHIVE_FEATURE, caretaker_of
from strandline.broker.cluster.archive.cluster_mirror import ClusterMirror, MirrorAhead
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.log_reader import read_history
from strandline.broker.cluster.metadata.records import REMOTE_ENABLED, topic_records
from strandline.broker.protocol.formats.metadata_records import (
    BrokerFeature,
    MetadataRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
)
from strandline.storage.remote.keys import (
    METADATA_LOG_PREFIX,
    METADATA_PREFIX,
    metadata_log_key,
)
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.unit.broker.cluster.controlled import registered
from tests.unit.broker.cluster.metadata_rig import CLUSTER, opened

A, B, C = uuid.UUID(int=0xA), uuid.UUID(int=0xB), uuid.UUID(int=0xC)
TIERED = {REMOTE_ENABLED: "true"}


class Controllers:
    """The metadata of controllers elsewhere: `image` is the newest."""

    def __init__(self) -> None:
        self.image = MetadataImage(cluster_id=CLUSTER, epoch=3)

    def decide(self, records: Sequence[MetadataRecord]) -> MetadataImage:
        self.image = replace(self.image.apply_entry(records), cluster_id=CLUSTER, epoch=3)
        return self.image

    def create(self, name: str, topic_id: uuid.UUID, **properties: str) -> MetadataImage:
        return self.decide(topic_records(name, topic_id, ((1,), (2,)), properties or TIERED))


class Caretaker:
    """A broker with a mirror; `image` is what it has heard."""

    def __init__(self, store: MemoryStore, controllers: Controllers) -> None:
        self.store = store
        self.image = controllers.image
        self.is_it = True
        self.clock = ManualClock()
        self.mirror = ClusterMirror(
            store,
            cluster_id=CLUSTER,
            image=lambda: self.image,
            is_caretaker=lambda: self.is_it,
            clock=self.clock,
        )

    def hear(self, image: MetadataImage) -> None:
        self.image = image
        self.mirror.mirror_once()


def mirrored(store: MemoryStore) -> MetadataImage:
    return read_history(store, cluster_id=CLUSTER).image


def entries(store: MemoryStore) -> int:
    return len([*store.list(METADATA_LOG_PREFIX)])


@pytest.fixture
def controllers() -> Controllers:
    return Controllers()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def archiving(node_id: int, **state: bool) -> RegisterBrokerRecord:
    feature = BrokerFeature(name=ARCHIVE_FEATURE, min_supported_version=0, max_supported_version=1)
    return registered(node_id).replaced(features=[feature], **state)


def test_the_caretaker_is_the_lowest_broker_that_archives_and_lives() -> None:
    def named(*brokers: RegisterBrokerRecord) -> int | None:
        return caretaker_of(MetadataImage().apply_entry(brokers))

    assert named() is None
    assert named(registered(1), archiving(3), archiving(2)) == 2
    assert named(archiving(1, fenced=True), archiving(2)) == 2
    assert named(archiving(1, in_controlled_shutdown=True), archiving(2)) == 2
    assert named(archiving(1, fenced=True)) is None


def test_the_mirror_has_what_the_caretaker_has_heard(
    store: MemoryStore, controllers: Controllers
) -> None:
    caretaker = Caretaker(store, controllers)
    caretaker.hear(controllers.create("a", A))
    caretaker.hear(controllers.create("b", B, **{"retention.ms": "7"}))
    found = mirrored(store)
    assert found.topics == controllers.image.topics
    assert (found.next_offset, found.epoch) == (controllers.image.next_offset, 3)
    asked = len(store.requests)
    caretaker.mirror.mirror_once()
    assert len(store.requests) == asked, "nothing has changed"
    assert caretaker.mirror.statistics().mirror_lag == 0


def test_the_mirror_of_a_lone_broker_is_continued(
    store: MemoryStore, controllers: Controllers
) -> None:
    lone = opened(MemoryStore(), store)
    lone.append(topic_records("a", A, ((1,),), TIERED))
    lone.mirror_once()
    controllers.image = lone.image
    controllers.create("b", B)
    caretaker = Caretaker(store, controllers)
    caretaker.mirror.mirror_once()
    assert set(mirrored(store).topics) == {"a", "b"}
    assert mirrored(store).version == lone.image.version + 1


def test_another_caretaker_goes_on_where_the_one_before_it_ended(
    store: MemoryStore, controllers: Controllers
) -> None:
    first, second = Caretaker(store, controllers), Caretaker(store, controllers)
    first.hear(controllers.create("a", A))
    second.hear(controllers.create("b", B))
    first.hear(controllers.decide([RemoveTopicRecord(topic_id=A)]))
    assert set(mirrored(store).topics) == {"b"}
    assert entries(store) == 3


def test_a_caretaker_that_was_stopped_puts_nothing_over_what_came_later(
    store: MemoryStore, controllers: Controllers
) -> None:
    stopped, other = Caretaker(store, controllers), Caretaker(store, controllers)
    stopped.hear(controllers.create("a", A))
    stopped.image = controllers.create("b", B)
    controllers.create("c", C)
    other.hear(controllers.decide([RemoveTopicRecord(topic_id=B)]))
    with pytest.raises(MirrorAhead, match="has not heard of the rest yet"):
        stopped.mirror.mirror_once()
    assert set(mirrored(store).topics) == {"a", "c"}
    stopped.hear(controllers.image)
    assert set(mirrored(store).topics) == {"a", "c"}


def test_what_a_caretaker_that_was_stopped_writes_first_is_put_right_by_the_next_look(
    store: MemoryStore, controllers: Controllers
) -> None:
    stopped, other = Caretaker(store, controllers), Caretaker(store, controllers)
    stopped.hear(controllers.create("a", A))
    stopped.image = controllers.create("b", B)
    other.hear(controllers.decide([RemoveTopicRecord(topic_id=B)]))
    stopped.mirror.mirror_once()
    assert set(mirrored(store).topics) == {"a", "b"}, "as it was then"
    other.mirror.repair_mirror()
    assert set(mirrored(store).topics) == {"a"}


def test_controllers_that_were_restored_from_an_older_copy_do_not_turn_the_mirror_back(
    store: MemoryStore, controllers: Controllers
) -> None:
    older = controllers.create("a", A)
    caretaker = Caretaker(store, controllers)
    caretaker.hear(controllers.create("b", B))
    again = Caretaker(store, controllers)
    again.image = older
    with pytest.raises(MirrorAhead, match="restored from an older copy"):
        again.mirror.mirror_once()
    assert set(mirrored(store).topics) == {"a", "b"}
    assert not mirrored(store).pending_purges


def test_a_broker_that_is_not_the_caretaker_writes_nothing(
    store: MemoryStore, controllers: Controllers
) -> None:
    other = Caretaker(store, controllers)
    other.is_it = False
    other.hear(controllers.create("a", A))
    other.mirror.repair_mirror()
    assert not [*store.list("")]


def test_a_broker_writes_groups_once_the_mirror_has_their_topic(
    store: MemoryStore, controllers: Controllers
) -> None:
    caretaker, other = Caretaker(store, controllers), Caretaker(store, controllers)
    other.is_it = False
    image = controllers.create("__consumer_offsets", A)
    other.hear(image)
    assert other.mirror.statistics().mirror_lag > 0
    caretaker.hear(image)
    other.clock.advance_ms(10_000)
    other.mirror.mirror_once()
    assert other.mirror.statistics().mirror_lag == 0


def test_a_deleted_topic_is_noted_until_nothing_of_it_is_left(
    store: MemoryStore, controllers: Controllers
) -> None:
    """The controllers may be Kafka's, which note nothing."""
    controllers.create("plain", B, **{"retention.ms": "7"})
    first = Caretaker(store, controllers)
    first.hear(controllers.create("a", A))
    first.hear(controllers.decide([RemoveTopicRecord(topic_id=A), RemoveTopicRecord(topic_id=B)]))
    assert set(first.mirror.pending_purges) == {A}, "the other had no archive"
    second = Caretaker(store, controllers)
    second.hear(controllers.image)
    assert set(second.mirror.pending_purges) == {A}
    second.mirror.finish_purge(A)
    second.mirror.mirror_once()
    assert not mirrored(store).pending_purges
    assert not second.mirror.pending_purges


def test_a_topic_that_was_deleted_while_there_was_no_caretaker_is_noted_too(
    store: MemoryStore, controllers: Controllers
) -> None:
    Caretaker(store, controllers).hear(controllers.create("a", A))
    controllers.decide([RemoveTopicRecord(topic_id=A)])
    Caretaker(store, controllers).hear(controllers.create("a", B))
    assert set(mirrored(store).pending_purges) == {A}
    assert mirrored(store).topics["a"].topic_id == B


def test_what_was_deleted_in_the_mirror_is_written_again(
    store: MemoryStore, controllers: Controllers
) -> None:
    caretaker = Caretaker(store, controllers)
    caretaker.hear(controllers.create("a", A))
    caretaker.hear(controllers.create("b", B))
    store.delete([metadata_log_key(1)])
    caretaker.mirror.repair_mirror()
    assert mirrored(store).topics == controllers.image.topics
    assert caretaker.mirror.statistics().mirror_deleted_count == 1
    store.delete([one.key for one in store.list(METADATA_PREFIX)])
    caretaker.mirror.repair_mirror()
    assert mirrored(store).topics == controllers.image.topics


def test_a_check_lists_the_mirror_and_reads_it_only_if_somebody_else_wrote(
    store: MemoryStore, controllers: Controllers
) -> None:
    caretaker = Caretaker(store, controllers)
    caretaker.hear(controllers.create("a", A))
    caretaker.hear(controllers.create("b", B))
    caretaker.mirror.repair_mirror()
    caretaker.hear(controllers.create("c", C))
    asked = len(store.requests)
    caretaker.mirror.repair_mirror()
    assert [one.operation for one in store.requests[asked:]] == ["list"]
    store.put(metadata_log_key(2), b"{}")
    caretaker.mirror.repair_mirror()
    assert mirrored(store).topics == controllers.image.topics


def test_a_damaged_mirror_is_made_whole_by_whoever_takes_over(
    store: MemoryStore, controllers: Controllers
) -> None:
    caretaker = Caretaker(store, controllers)
    caretaker.hear(controllers.create("a", A))
    caretaker.hear(controllers.create("b", B))
    store.put(metadata_log_key(1), b"{}")
    again = Caretaker(store, controllers)
    again.mirror.mirror_once()
    assert mirrored(store).topics == controllers.image.topics
    assert mirrored(store).next_offset == controllers.image.next_offset
    again.hear(controllers.decide([RemoveTopicRecord(topic_id=A)]))
    assert set(mirrored(store).topics) == {"b"}
