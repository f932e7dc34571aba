"""A deleted topic leaves nothing in the bucket, whatever happens meanwhile."""

from __future__ import annotations

import uuid

import pytest

from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.heavy import heavy
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST, LATEST, end_of, make_batches, with_epoch
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "short-lived"
PARTITIONS = 2
BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)


def archive_topic(broker: TieredBroker, topic: str = TOPIC) -> uuid.UUID:
    """A topic with archived segments in both partitions; its id."""
    with broker.client(topic) as client:
        topic_id = client.create_topic({**TIERED, **FREE_LOCALLY}, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        with broker.client(topic, partition) as client:
            client.produce(BATCHES)
            broker.wait_until_archived(client)
    return topic_id


def delete(broker: TieredBroker) -> None:
    with broker.client(TOPIC) as client:
        client.delete_topic()


def wait_until_empty(archive: Archive, topic_id: uuid.UUID) -> None:
    eventually(lambda: archive.keys(TOPIC, topic_id) == [], timeout_s=WAIT_S)


def test_a_deleted_topic_leaves_nothing_and_its_name_can_be_used_at_once(
    broker: TieredBroker, archive: Archive
) -> None:
    topic_id = archive_topic(broker)
    other_id = archive_topic(broker, "long-lived")
    others = archive.keys("long-lived", other_id)
    with broker.client(TOPIC) as client:
        # What was read is in the caches; none of it may turn up in the topic of the same name.
        assert client.read(0, end_of(BATCHES)) == BATCHES
        client.delete_topic()
        new_id = client.create_topic({**TIERED, **FREE_LOCALLY})
        assert new_id != topic_id
        assert (client.offset_at(EARLIEST), client.offset_at(LATEST)) == (0, 0)
        new = make_batches(size_bytes=5 * SEGMENT_BYTES // 2, seed=99)
        client.produce(new)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert client.read(0, end_of(new)) == new
    wait_until_empty(archive, topic_id)
    assert archive.topic_id(TOPIC) == new_id
    assert archive.keys("long-lived", other_id) == others
    eventually(lambda: list(broker.data.glob("*-delete")) == [], timeout_s=WAIT_S)
    archive.wait_until_tidy()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        heavy("PUT", r"topic\.json"),
        ("POST", r"\?delete"),
        heavy("DELETE|POST", r"topic\.json|\?delete"),
    ],
    ids=["before the tombstone", "before the objects", "between objects and topic.json"],
)
def test_a_deletion_that_is_killed_is_finished_after_the_restart(
    make_broker: MakeBroker,
    archive: Archive,
    fault_proxy: FaultProxy,
    request: pytest.FixtureRequest,
    method: str,
    path: str,
) -> None:
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    topic_id = archive_topic(broker)
    # The last request of a purge is the one that deletes topic.json.
    is_last = "between" in request.node.callspec.id
    stuck = fault_proxy.add(
        Rule(action=Action.HANG, method=method, path=path, skip=1 if is_last else 0)
    )
    delete(broker)
    eventually(lambda: stuck.hit_count, timeout_s=WAIT_S)
    assert archive.keys(TOPIC, topic_id) != []
    broker.kill()
    fault_proxy.clear()
    broker.start()
    wait_until_empty(archive, topic_id)
    with broker.client(TOPIC) as client:
        assert client.create_topic({**TIERED, **FREE_LOCALLY}) != topic_id
        again = [with_epoch(batch, 0) for batch in BATCHES]
        client.produce(again)
        assert client.read(0, end_of(again)) == again


def test_an_upload_under_way_leaves_nothing_behind_when_its_topic_is_deleted(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    slow = fault_proxy.add(Rule(action=Action.LATENCY, method="PUT", path=r"\.log", delay_s=1.5))
    with broker.client(TOPIC) as client:
        topic_id = client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        eventually(lambda: slow.hit_count, timeout_s=WAIT_S)
        client.delete_topic()
    # The purge reports itself done only after the upload has ended, one way or the other.
    eventually(lambda: "topic purged from the archive" in broker.log_text(), timeout_s=WAIT_S)
    assert archive.keys(TOPIC, topic_id) == []
