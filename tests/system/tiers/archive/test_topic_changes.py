"""What may be changed about a topic while it lives: tiering, partitions, segment size, copying."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
)

from tests.system.tiers.log_client import EARLIEST, LATEST_TIERED, LogClient, end_of, make_batches
from tests.system.tiers.log_client import with_epoch as stamped
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "changed"
BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
MORE = make_batches(base_offset=end_of(BATCHES), size_bytes=5 * SEGMENT_BYTES // 2)


def check_cold(broker: TieredBroker, client: LogClient, batches: list[bytes]) -> int:
    """All closed segments are in the archive alone, and everything is read; where it ends."""
    border = broker.wait_until_archived(client)
    assert broker.wait_until_freed(client) == border
    assert client.offset_at(LATEST_TIERED) == border - 1
    assert client.offset_at(EARLIEST) == 0
    assert client.read(0, end_of(batches)) == batches
    return border


def test_the_segments_of_an_old_topic_are_archived_when_it_becomes_tiered(
    broker: TieredBroker, archive: Archive
) -> None:
    with broker.client(TOPIC) as client:
        client.create_topic({})
        client.produce(BATCHES)
        assert client.offset_at(LATEST_TIERED) == -1
        properties = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
        assert broker.alter_topic(TOPIC, properties) == 0
        assert check_cold(broker, client, BATCHES) == archive.end_offset(TOPIC)


def test_partitions_that_a_tiered_topic_gets_later_are_archived_like_the_first(
    broker: TieredBroker, archive: Archive
) -> None:
    with broker.client(TOPIC) as first, broker.client(TOPIC, 1) as second:
        first.create_topic({**TIERED, **FREE_LOCALLY})
        first.produce(BATCHES)
        check_cold(broker, first, BATCHES)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions(TOPIC, 2)])[TOPIC].result(60)
        second.produce(BATCHES)
        first.produce(MORE)
        check_cold(broker, second, BATCHES)
        check_cold(broker, first, BATCHES + MORE)
    archive.wait_until_tidy()
    assert archive.findings() == []


def test_another_segment_size_counts_from_the_next_segment_on_and_after_a_restart(
    broker: TieredBroker, archive: Archive
) -> None:
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        border = check_cold(broker, client, BATCHES)
        properties = {"segment.bytes": str(2 * SEGMENT_BYTES)}
        assert broker.alter_topic(TOPIC, properties) == 0
        client.produce(MORE)
        check_cold(broker, client, BATCHES + MORE)
    assert broker.stop() == 0
    broker.start()
    again = [
        stamped(batch, 1)
        for batch in make_batches(base_offset=end_of(MORE), size_bytes=5 * SEGMENT_BYTES // 2)
    ]
    with broker.client(TOPIC) as client:
        client.produce(again)
        check_cold(broker, client, BATCHES + MORE + again)
    sizes = [entry.size_bytes for entry in archive.segments(TOPIC) if entry.base_offset >= border]
    assert sizes
    assert max(sizes) > SEGMENT_BYTES
    assert archive.findings() == []


def test_a_topic_whose_copying_is_off_is_read_from_both_tiers_and_goes_on_where_it_was(
    broker: TieredBroker, archive: Archive
) -> None:
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        border = check_cold(broker, client, BATCHES)
        properties = {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"}
        assert broker.alter_topic(TOPIC, properties) == 0
        client.produce(MORE)
        assert client.read(0, end_of(MORE)) == BATCHES + MORE
        # Records may be deleted, and what is archived of them goes.
        assert client.delete_records(border // 2) == border // 2
        broker.wait_until_deleted_below(client, archive)
        assert archive.end_offset(TOPIC) == border
        assert len(broker.segment_files(TOPIC)) > 2
        properties = {"remote.log.copy.disable": "false", "local.retention.bytes": "1"}
        assert broker.alter_topic(TOPIC, properties) == 0
        assert broker.wait_until_archived(client) > border
        broker.wait_until_freed(client)
        kept = [batch for batch in BATCHES + MORE if end_of([batch]) > border // 2]
        assert client.read(border // 2, end_of(MORE)) == kept
    archive.wait_until_tidy()
    assert archive.findings() == []
