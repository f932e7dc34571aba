"""Retention and DeleteRecords over both tiers: the log start moves first, then things go."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from strandline.storage.records.batch import read_header
from tests.conftest import S3Bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.tiers.conftest import MakeBroker
from tests.tiers.log_client import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    LogClient,
    end_of,
    make_batches,
    timestamp_of,
)
from tests.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "aging"
OFFSET_OUT_OF_RANGE = 1
# Four closed segments and half of a fifth.
BATCHES = make_batches(size_bytes=9 * SEGMENT_BYTES // 2)
END = end_of(BATCHES)
HOUR_MS = 3_600_000


def check_begins_at(broker: TieredBroker, archive: Archive, client: LogClient, start: int) -> None:
    """The log begins at `start` for everybody, and nothing of what was before is left."""
    manifest = broker.wait_until_deleted_below(client, archive)
    assert client.offset_at(EARLIEST) == manifest.log_start_offset == start
    assert client.offset_at(LATEST) == END
    assert client.fetch(start - 1).error_code == OFFSET_OUT_OF_RANGE
    assert client.offset_at(timestamp_of(0)) == (start if start < END else -1)
    if start < END:
        kept = [batch for batch in BATCHES if read_header(batch).next_offset > start]
        assert client.read(start, END) == kept
    assert len(archive.uploads()) == manifest.segment_count
    assert archive.orphans() == ()


def produce_and_archive(broker: TieredBroker, client: LogClient, config: Mapping[str, str]) -> None:
    client.create_topic({**TIERED, **FREE_LOCALLY, **config})
    client.produce(BATCHES)
    broker.wait_until_archived(client)


def test_retention_bytes_counts_both_tiers_and_deletes_whole_segments_of_the_archive(
    broker: TieredBroker, archive: Archive
) -> None:
    with broker.client(TOPIC) as client:
        retention_bytes = 2 * SEGMENT_BYTES
        produce_and_archive(broker, client, {"retention.bytes": str(retention_bytes)})
        eventually(lambda: client.offset_at(EARLIEST) > 0, timeout_s=WAIT_S)
        broker.wait_until_freed(client)
        start = client.offset_at(EARLIEST)
        check_begins_at(broker, archive, client, start)
        kept_bytes = sum(len(batch) for batch in client.read(start, END))
        first_bytes = archive.segments(TOPIC)[0].size_bytes
        # As little as the limit allows: without the oldest segment it would be less than that.
        assert kept_bytes >= retention_bytes > kept_bytes - first_bytes


def test_retention_ms_deletes_archived_segments_whose_newest_record_is_too_old(
    broker: TieredBroker, archive: Archive
) -> None:
    fresh_from = read_header(BATCHES[len(BATCHES) // 2]).base_offset
    now_ms = int(time.time() * 1000)

    def timestamp(offset: int) -> int:
        return now_ms if offset >= fresh_from else now_ms - 2 * HOUR_MS

    batches = make_batches(size_bytes=9 * SEGMENT_BYTES // 2, timestamp=timestamp)
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY, "retention.ms": str(HOUR_MS)})
        client.produce(batches)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        eventually(lambda: client.offset_at(EARLIEST) > 0, timeout_s=WAIT_S)
        manifest = broker.wait_until_deleted_below(client, archive)
        start = manifest.log_start_offset
        # The first segment that is left holds the first fresh record.
        assert start <= fresh_from < manifest.segments[0].end_offset
        kept = [batch for batch in batches if read_header(batch).base_offset >= start]
        assert client.read(start, END) == kept
        assert archive.orphans() == ()


def test_deleting_records_in_the_middle_of_an_archived_segment_keeps_the_segment(
    broker: TieredBroker, archive: Archive
) -> None:
    with broker.client(TOPIC) as client:
        produce_and_archive(broker, client, {})
        broker.wait_until_freed(client)
        inside = archive.segments(TOPIC)[2].base_offset + 10
        assert client.delete_records(inside) == inside
        # The answer is the promise: it is so from here on, whatever is still to be deleted.
        assert client.offset_at(EARLIEST) == inside
        assert client.fetch(inside - 1).error_code == OFFSET_OUT_OF_RANGE
        check_begins_at(broker, archive, client, inside)
        # A log start does not go back.
        assert client.delete_records(inside - 20) == inside


@pytest.mark.parametrize("to_the_end", [False, True], ids=["into the local tier", "all"])
def test_deleting_records_past_the_archive_empties_it(
    broker: TieredBroker, archive: Archive, to_the_end: bool
) -> None:
    with broker.client(TOPIC) as client:
        produce_and_archive(broker, client, {})
        border = broker.wait_until_freed(client)
        start = END if to_the_end else border + 5
        assert client.delete_records(-1 if to_the_end else start) == start
        check_begins_at(broker, archive, client, start)
        assert archive.uploads() == []
        assert client.offset_at(LATEST_TIERED) == -1
        # The log goes on behind what was deleted, and so does the archive.
        more = make_batches(base_offset=END, size_bytes=2 * SEGMENT_BYTES)
        client.produce(more)
        broker.wait_until_archived(client)
        assert client.read(END, end_of(more)) == more


def test_local_retention_frees_only_what_is_archived(
    make_broker: MakeBroker, s3_bucket: S3Bucket, fault_proxy: FaultProxy
) -> None:
    # The third segment cannot be uploaded, so the archive ends with the second.
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    stuck = fault_proxy.add(
        Rule(action=Action.STATUS, method="PUT", path=r"\.log", skip=2, times=-1, status=403)
    )
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY, "local.retention.ms": "1"})
        client.produce(BATCHES)
        eventually(lambda: stuck.hit_count >= 2, timeout_s=WAIT_S)
        archive = Archive.open(s3_bucket)
        archive_end = archive.end_offset(TOPIC)
        eventually(lambda: client.offset_at(EARLIEST_LOCAL) == archive_end, timeout_s=WAIT_S)
        assert len(archive.segments(TOPIC)) == 2
        assert int(broker.segment_files(TOPIC)[0].stem) == archive_end
        assert client.read(0, END) == BATCHES
        fault_proxy.clear()
        broker.wait_until_all_cold(client)
        assert client.read(0, END) == BATCHES
