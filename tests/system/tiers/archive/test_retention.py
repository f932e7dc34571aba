"""Retention and DeleteRecords over both tiers: the log start moves first, then things go."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping

import pytest

from strandline.storage.records.batch.batch import read_header
from tests.conftest import S3Bucket, make_bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.ministack import ServerProcess
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    LogClient,
    end_of,
    make_batches,
    timestamp_of,
)
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

OFFSET_OUT_OF_RANGE = 1
# Four closed segments and half of a fifth.
BATCHES = make_batches(size_bytes=9 * SEGMENT_BYTES // 2)
END = end_of(BATCHES)
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def bucket(ministack: ServerProcess) -> S3Bucket:
    return make_bucket(ministack.endpoint_url)


@pytest.fixture(scope="module")
def broker(bucket: S3Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredBroker]:
    """One broker for all tests that need no more than a topic of their own."""
    with TieredBroker(tmp_path_factory.mktemp("retention"), bucket) as running:
        yield running


@pytest.fixture
def archive(bucket: S3Bucket) -> Archive:
    return Archive.open(bucket)


@pytest.fixture
def client(broker: TieredBroker) -> Iterator[LogClient]:
    """For a topic that does not exist yet."""
    with broker.client(f"aging-{uuid.uuid4().hex[:8]}") as opened:
        yield opened


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
    assert len(archive.uploads(topic=client.topic)) == manifest.segment_count
    archive.wait_until_tidy()


def produce_and_archive(
    broker: TieredBroker, client: LogClient, config: Mapping[str, str] | None = None
) -> int:
    """Four segments in the archive, the active one on disk: where that begins."""
    client.create_topic({**TIERED, **FREE_LOCALLY, **(config or {})})
    client.produce(BATCHES)
    broker.wait_until_archived(client)
    return broker.wait_until_freed(client)


def test_retention_bytes_counts_both_tiers_and_deletes_whole_segments_of_the_archive(
    broker: TieredBroker, archive: Archive, client: LogClient
) -> None:
    retention_bytes = 2 * SEGMENT_BYTES
    border = produce_and_archive(broker, client, {"retention.bytes": str(retention_bytes)})
    local_bytes = sum(len(b) for b in BATCHES if read_header(b).base_offset >= border)

    def as_small_as_allowed() -> bool:
        first, *others = archive.segments(client.topic)
        without_first = local_bytes + sum(entry.size_bytes for entry in others)
        assert without_first + first.size_bytes >= retention_bytes
        return without_first < retention_bytes

    eventually(as_small_as_allowed, timeout_s=WAIT_S)
    start = archive.segments(client.topic)[0].base_offset
    assert start > 0
    check_begins_at(broker, archive, client, start)


def test_retention_ms_deletes_archived_segments_whose_newest_record_is_too_old(
    broker: TieredBroker, archive: Archive, client: LogClient
) -> None:
    fresh_from = read_header(BATCHES[len(BATCHES) // 2]).base_offset
    now_ms = int(time.time() * 1000)

    def timestamp(offset: int) -> int:
        return now_ms if offset >= fresh_from else now_ms - 2 * HOUR_MS

    batches = make_batches(size_bytes=9 * SEGMENT_BYTES // 2, timestamp=timestamp)
    client.create_topic({**TIERED, **FREE_LOCALLY, "retention.ms": str(HOUR_MS)})
    client.produce(batches)
    broker.wait_until_archived(client)
    broker.wait_until_freed(client)

    def first_is_fresh() -> bool:
        entries = archive.segments(client.topic)
        assert entries[0].base_offset <= fresh_from
        return fresh_from < entries[0].end_offset

    eventually(first_is_fresh, timeout_s=WAIT_S)
    manifest = broker.wait_until_deleted_below(client, archive)
    start = manifest.log_start_offset
    assert start == manifest.segments[0].base_offset > 0
    kept = [batch for batch in batches if read_header(batch).base_offset >= start]
    assert client.read(start, END) == kept
    archive.wait_until_tidy()


def test_deleting_records_in_the_middle_of_an_archived_segment_keeps_the_segment(
    broker: TieredBroker, archive: Archive, client: LogClient
) -> None:
    produce_and_archive(broker, client)
    inside = archive.segments(client.topic)[2].base_offset + 10
    assert client.delete_records(inside) == inside
    # The answer is the promise: it is so from here on, whatever is still to be deleted.
    assert client.offset_at(EARLIEST) == inside
    assert client.fetch(inside - 1).error_code == OFFSET_OUT_OF_RANGE
    check_begins_at(broker, archive, client, inside)
    # A log start does not go back.
    assert client.delete_records(inside - 20) == inside


@pytest.mark.parametrize("to_the_end", [False, True], ids=["into the local tier", "all"])
def test_deleting_records_past_the_archive_empties_it(
    broker: TieredBroker, archive: Archive, client: LogClient, to_the_end: bool
) -> None:
    border = produce_and_archive(broker, client)
    start = END if to_the_end else border + 5
    assert client.delete_records(-1 if to_the_end else start) == start
    check_begins_at(broker, archive, client, start)
    assert archive.uploads(topic=client.topic) == []
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
    archive = Archive.open(s3_bucket)
    with broker.client("stuck") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY, "local.retention.ms": "1"})
        client.produce(BATCHES)
        eventually(lambda: stuck.hit_count >= 2, timeout_s=WAIT_S)
        # The next segment is tried while the one before it is still being copied.
        eventually(lambda: len(archive.segments("stuck")) == 2, timeout_s=WAIT_S)
        archive_end = archive.end_offset("stuck")
        eventually(lambda: client.offset_at(EARLIEST_LOCAL) == archive_end, timeout_s=WAIT_S)
        assert int(broker.segment_files("stuck")[0].stem) == archive_end
        assert client.read(0, END) == BATCHES
        fault_proxy.clear()
        broker.wait_until_all_cold(client)
        assert client.read(0, END) == BATCHES
