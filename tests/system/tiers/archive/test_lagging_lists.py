"""A store whose LIST shows late what was written, and for a while what was deleted.

purge      leaves nothing, and does not ask without pause
replica    finds topics and records that are not listed
restore    has every topic that the metadata in the bucket has
"""

from __future__ import annotations

import pytest

from strandline.storage.remote.keys import topic_folder
from strandline.storage.remote.open_store import open_store
from strandline.storage.tiering.manager.topic_objects import KEYS_PER_DELETE_MAX
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import LATEST, end_of, make_batches
from tests.system.tiers.restoring import mirrors_topic, run_restore
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    REGION,
    REPLICA,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "restored"
BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
LIST = r"list-type=2"
LAGS = "ListingLags"
PURGED = "topic purged from the archive"


def lag(proxy: FaultProxy) -> Rule:
    """Each listing stays what it is when it is made for the first time."""
    return proxy.add(Rule(action=Action.STALE, method="GET", path=LIST, times=-1))


def test_a_deleted_topic_goes_though_it_was_never_listed(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    with broker.client(TOPIC) as client:
        topic_id = client.create_topic({**TIERED, **FREE_LOCALLY})
        lagging = lag(fault_proxy)
        store = open_store(archive.bucket.url, endpoint_url=fault_proxy.endpoint_url, region=REGION)
        # As the purge will ask; from now on the folder is listed as an empty one.
        assert not list(store.list(topic_folder(TOPIC, topic_id), limit=KEYS_PER_DELETE_MAX + 1))
        store.close()
        client.produce(BATCHES)
        broker.wait_until_archived(client)
        client.delete_topic()
    eventually(lambda: PURGED in broker.log_text(), timeout_s=WAIT_S)
    assert lagging.hit_count > 1, "the purge saw another listing"
    assert archive.keys(TOPIC, topic_id) == []


def test_a_purge_waits_for_a_listing_that_shows_what_it_deleted(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    with broker.client(TOPIC) as client:
        topic_id = client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        broker.wait_until_archived(client)
        lagging = lag(fault_proxy)
        store = open_store(archive.bucket.url, endpoint_url=fault_proxy.endpoint_url, region=REGION)
        assert list(store.list(topic_folder(TOPIC, topic_id), limit=KEYS_PER_DELETE_MAX + 1))
        store.close()
        client.delete_topic()
        eventually(lambda: broker.warnings(LAGS), timeout_s=WAIT_S)
        # The waits between two looks grow: three take longer than one more here.
        eventually(lambda: lagging.hit_count >= 4, timeout_s=WAIT_S)
        assert lagging.hit_count < 10
        lagging.times = 0
        eventually(lambda: PURGED in broker.log_text(), timeout_s=WAIT_S)
    assert archive.keys(TOPIC, topic_id) == []


def test_a_replica_follows_though_nothing_new_is_listed(
    make_broker: MakeBroker, fault_proxy: FaultProxy
) -> None:
    origin = make_broker(name="origin")
    origin.start()
    lagging = lag(fault_proxy)
    replica = make_broker(name="replica", settings=REPLICA, endpoint_url=fault_proxy.endpoint_url)
    replica.command = ("serve", "--read-only")
    with origin.client("first") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        origin.wait_until_archived(client)
    replica.start()
    assert lagging.hit_count
    with origin.client(TOPIC) as client, replica.client(TOPIC) as reader:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        border = origin.wait_until_archived(client)
        eventually(lambda: reader.list_offset(LATEST).offset == border, timeout_s=WAIT_S)
        archived = [batch for batch in BATCHES if end_of([batch]) <= border]
        assert reader.read(0, border) == archived


def test_a_restore_has_the_topics_that_are_not_listed_yet(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    lost = make_broker(name="lost")
    lost.start()
    with lost.client("first") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        lost.wait_until_archived(client)
        # A restore refuses metadata that change while it reads them.
        eventually(lambda: mirrors_topic(archive, "first"), timeout_s=WAIT_S)
    lagging = lag(fault_proxy)
    early = make_broker(name="early", endpoint_url=fault_proxy.endpoint_url)
    assert run_restore(early).returncode == 0
    with lost.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        border = lost.wait_until_archived(client)
        eventually(lambda: mirrors_topic(archive, TOPIC), timeout_s=WAIT_S)
    lost.kill()
    late = make_broker(name="late", endpoint_url=fault_proxy.endpoint_url)
    hits = lagging.hit_count
    assert run_restore(late).returncode == 0
    assert lagging.hit_count > hits
    late.start()
    with late.client(TOPIC) as client:
        assert client.offset_at(LATEST) == border
        archived = [batch for batch in BATCHES if end_of([batch]) <= border]
        assert client.read(0, border) == archived
