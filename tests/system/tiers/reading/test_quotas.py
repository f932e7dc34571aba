"""The quotas of the remote tier (KIP-956), kept by a real broker and altered while it runs."""

from __future__ import annotations

import time

import pytest

from strandline.broker.protocol.messages.incremental_alter_configs import ConfigOperation
from strandline.storage.records.batch.batch import read_header
from tests.support.broker import eventually
from tests.support.wire import WireClient
from tests.system.config_calls import alter
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import end_of, make_batches, split_batches
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

BATCHES = make_batches(size_bytes=12 * SEGMENT_BYTES)
# A sixteenth of a segment: what is kept to it takes minutes, and what is not takes seconds.
LOW = SEGMENT_BYTES // 16
# A window, by Kafka's default: what of it may go at once.
BURST_S = 1
LOOK_S = 5.0


def alter_broker(broker: TieredBroker, name: str, value: str | None) -> None:
    """Sets a dynamic key of the broker, None: back to what its file says."""
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    with WireClient(broker.port) as client:
        assert alter(client, "1", (name, operation, value)).error_code == 0


def test_the_archive_grows_no_faster_than_the_copy_quota_until_it_is_lifted(
    make_broker: MakeBroker, archive: Archive
) -> None:
    key = "remote.log.manager.copy.max.bytes.per.second"
    upload = {"strandline.remote.active.segment.upload.ms": "200"}
    broker = make_broker(settings={key: str(LOW), "strandline.remote.merge.target.bytes": "0"})
    broker.start()
    with broker.client("slow") as client:
        # What goes of the open segment counts as well.
        client.create_topic({**TIERED, **FREE_LOCALLY, **upload})
        began_s = time.monotonic()
        client.produce(BATCHES)
        eventually(lambda: archive.end_offset("slow") > 0, timeout_s=WAIT_S)
        files = broker.segment_files("slow")
        while time.monotonic() - began_s < LOOK_S:
            manifest = archive.manifest("slow")
            # What it may be grows while one looks, on a busy machine by more than a segment.
            since_s = time.monotonic() - began_s
            assert manifest is not None
            gone = manifest.size_bytes + sum(part.size_bytes for part in manifest.tail)
            # The last of them was within the quota when it began.
            assert gone <= (since_s + BURST_S) * LOW + SEGMENT_BYTES
            time.sleep(0.05)
        assert broker.segment_files("slow")[-1:] == files[-1:]
        alter_broker(broker, key, str(2**63 - 1))
        border = broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert client.read(0, end_of(BATCHES)) == BATCHES
        # And back to what the broker was started with.
        alter_broker(broker, key, None)
        client.produce(make_batches(base_offset=end_of(BATCHES), size_bytes=8 * SEGMENT_BYTES))
        eventually(lambda: archive.end_offset("slow") > border, timeout_s=WAIT_S)
        assert int(broker.segment_files("slow")[-1].stem) > archive.end_offset("slow")


def test_cold_reads_go_no_faster_than_the_fetch_quota_and_hot_ones_go_on(
    make_broker: MakeBroker,
) -> None:
    key = "remote.log.manager.fetch.max.bytes.per.second"
    broker = make_broker()
    broker.start()
    hot = make_batches(size_bytes=SEGMENT_BYTES // 8)
    with broker.client("cold") as client, broker.client("hot") as other:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        other.create_topic(TIERED)
        client.produce(BATCHES)
        other.produce(hot)
        border = broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        alter_broker(broker, key, str(LOW))
        began_s = time.monotonic()
        found: list[bytes] = []
        offset = answers = 0
        while time.monotonic() - began_s < LOOK_S:
            fetched = client.fetch_many(
                {"cold": offset, "hot": 0}, bytes_max=SEGMENT_BYTES, wait_ms=500
            )
            since_s = time.monotonic() - began_s
            assert [fetched[topic].error_code for topic in ("cold", "hot")] == [0, 0]
            # The cold one is first, and may fill an answer.
            assert fetched["hot"].records or fetched["cold"].records
            found += split_batches(fetched["cold"].records)
            offset = end_of(found) if found else 0
            answers += 1
            assert sum(map(len, found)) <= (since_s + BURST_S + 1) * LOW + 2 * SEGMENT_BYTES
        assert offset < border
        # Who asks for nothing but what has to wait is not answered at once.
        answers = 0
        while time.monotonic() - began_s < 2 * LOOK_S and answers < 100:
            fetched = client.fetch_many({"cold": offset}, wait_ms=500)
            assert fetched["cold"].error_code == 0
            found += split_batches(fetched["cold"].records)
            offset = end_of(found)
            answers += 1
        assert answers < 100
        alter_broker(broker, key, str(2**63 - 1))
        rest = client.read(offset, border)
        archived = [batch for batch in BATCHES if read_header(batch).next_offset <= border]
        assert found + rest == archived
