"""The whole way from produce to restore over S3 servers that others wrote: `make test-stores`."""

from __future__ import annotations

import shutil

import pytest

from tests.conftest import S3Bucket, StartServer, make_bucket
from tests.support.broker import eventually
from tests.support.metrics import METRICS_ON, metric
from tests.support.s3_servers import SERVERS
from tests.support.wire import WireClient
from tests.system.group_calls import commit, committed
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST, LATEST, end_of, make_batches, with_epoch
from tests.system.tiers.restoring import run_restore
from tests.system.tiers.tiered_broker import (
    ARCHIVE_ALL,
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "travelled"
GROUP = "readers"
BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
HALF = end_of(BATCHES) // 2


@pytest.fixture(params=SERVERS)
def s3_bucket(request: pytest.FixtureRequest, start_server: StartServer) -> S3Bucket:
    """A bucket of each server."""
    return make_bucket(start_server(request.param).endpoint_url)


def test_what_was_produced_is_archived_read_cold_and_restored_after_the_disk_is_lost(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker(settings={**METRICS_ON, "offsets.topic.num.partitions": "1"})
    broker.start()
    assert metric(broker, "strandline_remote_conditions_atomic") == 1
    with broker.client(TOPIC) as client, WireClient(broker.port) as groups:
        client.create_topic({**TIERED, **FREE_LOCALLY, **ARCHIVE_ALL})
        client.produce(BATCHES)
        assert broker.wait_until_all_cold(client) == end_of(BATCHES)
        assert client.read(0, end_of(BATCHES)) == BATCHES
        assert commit(groups, GROUP, {(TOPIC, 0): HALF}) == [0]
    broker.stop()

    shutil.rmtree(broker.data)
    restored = run_restore(broker)
    assert restored.returncode == 0, restored.stderr
    broker.start()
    later = make_batches(base_offset=end_of(BATCHES), size_bytes=2 * SEGMENT_BYTES)
    with broker.client(TOPIC) as client, WireClient(broker.port) as groups:
        eventually(lambda: client.list_offset(LATEST).error_code == 0, timeout_s=WAIT_S)
        assert (client.offset_at(EARLIEST), client.offset_at(LATEST)) == (0, end_of(BATCHES))
        assert client.read(0, end_of(BATCHES)) == BATCHES
        assert committed(groups, GROUP, TOPIC) == HALF
        everything = BATCHES + [with_epoch(batch, 1) for batch in later]
        client.produce(everything[len(BATCHES) :])
        assert broker.wait_until_all_cold(client) == end_of(everything)
        assert client.read(0, end_of(everything)) == everything
    assert broker.warnings("one request at a time") == []
    archive.wait_until_tidy()
    assert archive.findings() == []


def test_retention_empties_the_bucket_of_what_it_gave_up_and_a_deleted_topic_leaves_nothing(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker()
    broker.start()
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY, **ARCHIVE_ALL})
        client.produce(BATCHES)
        broker.wait_until_all_cold(client)
        topic_id = archive.topic_id(TOPIC)
        client.delete_records(end_of(BATCHES))
        broker.wait_until_deleted_below(client, archive)
        assert archive.uploads(topic=TOPIC) == []
        client.delete_topic()
    eventually(lambda: archive.keys(TOPIC, topic_id) == [], timeout_s=WAIT_S)
