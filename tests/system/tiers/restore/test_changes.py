"""A replica is told what changed, and asks for little else; what nobody told it finds as well."""

from __future__ import annotations

import contextlib

import pytest

from strandline.storage.crash_points import COPY_AFTER_COMMIT
from strandline.storage.errors import ObjectNotFound
from strandline.storage.remote.keys import CHANGES_KEY
from strandline.storage.remote.manifest import change_list
from tests.support.broker import eventually
from tests.support.fault_proxy import FaultProxy
from tests.system.crash.dead_brokers import wait_for_death
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import LATEST, LogClient, end_of, make_batches
from tests.system.tiers.replicas import start_replica
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "told"
FULL_POLL = "strandline.remote.replica.full.poll.ms"
CHANGES_INTERVAL = "strandline.remote.changes.interval.ms"
NEVER = str(3_600_000)
PARTITIONS = 20
LOOKS = 5
FIRST = make_batches(size_bytes=3 * SEGMENT_BYTES // 2)
MORE = make_batches(base_offset=end_of(FIRST), size_bytes=SEGMENT_BYTES)


def wait_until_told(archive: Archive) -> None:
    """The list in the bucket tells the newest manifest of the partition."""

    def is_told() -> bool:
        manifest = archive.manifest(TOPIC)
        assert manifest is not None
        try:
            told = change_list.load(archive.store).changes.changes
        except ObjectNotFound:
            return False
        return any(change.partition == 0 and change.order == manifest.order for change in told)

    eventually(is_told, timeout_s=WAIT_S)


def test_a_replica_asks_for_one_object_while_nothing_changes_and_then_for_what_did(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    origin = make_broker(name="origin")
    origin.start()
    with origin.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY}, partitions=PARTITIONS)
        client.produce(FIRST)
        origin.wait_until_archived(client)
        wait_until_told(archive)
        replica = start_replica(
            make_broker, {FULL_POLL: NEVER}, endpoint_url=fault_proxy.endpoint_url
        )
        # What came into the bucket just now may be told of once more.
        eventually(lambda: asks_for_the_list_alone(fault_proxy), timeout_s=WAIT_S)
        client.produce(MORE)
        border = origin.wait_until_archived(client)
        with replica.client(TOPIC) as reader:
            eventually(lambda: reader.offset_at(LATEST) == border, timeout_s=WAIT_S)
        asked = {seen.path for seen in fault_proxy.seen if "/topics/" in seen.path}
        assert all("/0/" in path for path in asked), "nothing of the other partitions"
        # What becomes of topics is told as well.
        with origin.client("another") as another:
            another.create_topic(TIERED)
        with replica.client("another") as reader:
            eventually(lambda: reader.list_offset(LATEST).error_code == 0, timeout_s=WAIT_S)


def asks_for_the_list_alone(proxy: FaultProxy) -> bool:
    """Several times, a HEAD each."""
    proxy.clear()
    eventually(lambda: proxy.count("HEAD", CHANGES_KEY) > LOOKS, timeout_s=WAIT_S)
    return proxy.count("HEAD", CHANGES_KEY) == len(proxy.seen)


def stopped_origin(make_broker: MakeBroker, archive: Archive) -> tuple[TieredBroker, int]:
    """A broker that told of all it archived, and where that ends; it does not run."""
    origin = make_broker(name="origin")
    origin.start()
    with origin.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(FIRST)
        border = origin.wait_until_archived(client)
        wait_until_told(archive)
    origin.stop()
    return origin, border


@pytest.mark.parametrize("comes_back", [False, True], ids=["stays-dead", "comes-back"])
def test_a_commit_whose_broker_was_killed_before_it_told_is_found(
    make_broker: MakeBroker, archive: Archive, *, comes_back: bool
) -> None:
    origin, border = stopped_origin(make_broker, archive)
    origin.start_to_crash_at(COPY_AFTER_COMMIT)
    replica = start_replica(make_broker, {FULL_POLL: NEVER if comes_back else "1000"})
    with replica.client(TOPIC) as reader:
        assert reader.offset_at(LATEST) == border
        with origin.client(TOPIC) as client:
            produce_until_death(client)
        wait_for_death(origin)
        grown = archive.end_offset(TOPIC)
        assert grown > border
        manifest = archive.manifest(TOPIC)
        assert manifest is not None
        told = change_list.load(archive.store).changes.changes
        assert all(change.order != manifest.order for change in told), "it was killed before"
        if comes_back:
            origin.start()
        eventually(lambda: reader.offset_at(LATEST) >= grown, timeout_s=WAIT_S)


def produce_until_death(client: LogClient) -> None:
    with contextlib.suppress(OSError, EOFError):
        client.produce(MORE)


def test_a_replica_whose_broker_stopped_writing_its_list_follows_as_before(
    make_broker: MakeBroker, archive: Archive
) -> None:
    """As after going back to an older release: the list that is there does not move on."""
    origin, _ = stopped_origin(make_broker, archive)
    before = archive.store.get(CHANGES_KEY)
    origin.settings[CHANGES_INTERVAL] = "-1"
    origin.start()
    replica = start_replica(make_broker, {FULL_POLL: "1000"})
    with origin.client(TOPIC) as client, replica.client(TOPIC) as reader:
        client.produce(MORE)
        border = origin.wait_until_archived(client)
        eventually(lambda: reader.offset_at(LATEST) == border, timeout_s=WAIT_S)
    assert archive.store.get(CHANGES_KEY) == before
