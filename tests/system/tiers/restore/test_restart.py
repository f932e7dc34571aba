"""A broker that is started again goes on where both tiers left off."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import eventually, size_bytes
from tests.support.fault_proxy import FaultProxy
from tests.support.heavy import heavy
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    end_of,
    make_batches,
    timestamp_of,
    with_epoch,
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

TOPIC = "restarted"
KAFKA_STORAGE_ERROR = 56
BEFORE = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
AFTER = [
    with_epoch(batch, 1)
    for batch in make_batches(base_offset=end_of(BEFORE), size_bytes=5 * SEGMENT_BYTES // 2)
]


def archive_half(broker: TieredBroker) -> int:
    """Two segments in the bucket alone, the active one on disk alone; where that begins."""
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BEFORE)
        broker.wait_until_archived(client)
        return broker.wait_until_freed(client)


@pytest.mark.parametrize(
    "end", [heavy(TieredBroker.stop), TieredBroker.kill], ids=["stopped", "killed"]
)
def test_a_restarted_broker_reads_cold_at_once_and_copies_no_segment_twice(
    make_broker: MakeBroker, archive: Archive, end: Callable[[TieredBroker], object]
) -> None:
    broker = make_broker()
    broker.start()
    border = archive_half(broker)
    segments = archive.segments(TOPIC)
    end(broker)
    broker.start()
    with broker.client(TOPIC) as client:
        assert client.read(0, end_of(BEFORE)) == BEFORE
        assert (client.offset_at(EARLIEST), client.offset_at(LATEST)) == (0, end_of(BEFORE))
        assert client.offset_at(EARLIEST_LOCAL) == client.offset_at(LATEST_TIERED) + 1 == border
        client.produce(AFTER)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert client.read(0, end_of(AFTER)) == BEFORE + AFTER
    assert archive.segments(TOPIC)[: len(segments)] == segments
    assert len(archive.uploads()) == len(archive.segments(TOPIC)) == 2 * len(segments) + 1
    archive.wait_until_tidy()


@pytest.mark.heavy
def test_lost_checkpoints_do_not_move_the_log_start_or_the_border(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker()
    broker.start()
    border = archive_half(broker)
    start = archive.segments(TOPIC)[1].base_offset + 7
    with broker.client(TOPIC) as client:
        assert client.delete_records(start) == start
        broker.wait_until_deleted_below(client, archive)
    broker.kill()
    for checkpoint in broker.data.glob("*-checkpoint"):
        checkpoint.unlink()
    broker.start()
    with broker.client(TOPIC) as client:
        assert client.offset_at(EARLIEST) == start
        assert client.offset_at(EARLIEST_LOCAL) == border
        kept = [batch for batch in BEFORE if end_of([batch]) > start]
        assert client.read(start, end_of(BEFORE)) == kept


def test_a_broker_started_without_its_remote_tier_calls_nothing_archived_out_of_range(
    broker: TieredBroker,
) -> None:
    border = archive_half(broker)
    broker.stop()
    with_both_tiers = dict(broker.settings)
    broker.settings = {k: v for k, v in with_both_tiers.items() if "remote" not in k}
    broker.start()
    with broker.client(TOPIC) as client:
        # A consumer that is told "out of range" skips to the end, and the records with it.
        cold = client.fetch(border - 1)
        assert (cold.error_code, cold.records, cold.log_start_offset) == (0, b"", 0)
        assert broker.warnings("no remote tier")
        assert client.list_offset(timestamp_of(1)).error_code == KAFKA_STORAGE_ERROR
        assert client.read(border, end_of(BEFORE)) == [b for b in BEFORE if end_of([b]) > border]
    broker.stop()
    broker.settings = with_both_tiers
    broker.start()
    with broker.client(TOPIC) as client:
        assert client.read(0, end_of(BEFORE)) == BEFORE


def test_chunks_on_disk_outlive_a_kill_and_damaged_ones_are_fetched_again(
    make_broker: MakeBroker, fault_proxy: FaultProxy, archive: Archive
) -> None:
    broker = make_broker(
        endpoint_url=fault_proxy.endpoint_url,
        settings={"strandline.remote.cache.disk.bytes": str(64 * SEGMENT_BYTES)},
    )
    cache = broker.data / "remote-cache"
    broker.start()
    border = archive_half(broker)
    with broker.client(TOPIC) as client:
        assert client.read(0, end_of(BEFORE)) == BEFORE
        archived_bytes = sum(segment.size_bytes for segment in archive.segments(TOPIC))
        eventually(lambda: cached_bytes(cache) == archived_bytes, timeout_s=WAIT_S)
    broker.kill()
    fault_proxy.clear()
    broker.start()
    with broker.client(TOPIC) as client:
        assert client.read(0, end_of(BEFORE)) == BEFORE
    assert fault_proxy.count("GET", r"\.log") == 0
    broker.kill()
    for path in cache.rglob("*"):
        if path.is_file():
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    broker.start()
    with broker.client(TOPIC) as client:
        assert client.offset_at(EARLIEST_LOCAL) == border
        assert client.read(0, end_of(BEFORE)) == BEFORE
    assert fault_proxy.count("GET", r"\.log") > 0


def cached_bytes(folder: Path) -> int:
    """Bytes of whole chunks: one that is still being written has another name."""
    return sum(size_bytes(path) for path in folder.glob("*.chunk"))


def test_a_broker_that_lost_a_partition_from_its_disk_serves_the_archive_and_goes_on_behind_it(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker()
    broker.start()
    border = archive_half(broker)
    archived = [batch for batch in BEFORE if end_of([batch]) <= border]
    broker.kill()
    shutil.rmtree(broker.data / f"{TOPIC}-0")
    broker.start()
    with broker.client(TOPIC) as client:
        assert (client.offset_at(EARLIEST), client.offset_at(LATEST)) == (0, border)
        assert client.read(0, border) == archived
        # Offsets that the archive has are not given out again.
        more = make_batches(base_offset=border, size_bytes=5 * SEGMENT_BYTES // 2)
        more = [with_epoch(batch, 1) for batch in more]
        client.produce(more)
        broker.wait_until_archived(client)
        assert client.read(0, end_of(more)) == archived + more
    archive.wait_until_tidy()


@pytest.mark.parametrize(
    "end", [heavy(TieredBroker.stop), TieredBroker.kill], ids=["stopped", "killed"]
)
def test_an_archive_that_was_emptied_is_told_and_not_begun_anew(
    make_broker: MakeBroker, archive: Archive, end: Callable[[TieredBroker], object]
) -> None:
    broker = make_broker()
    broker.start()
    border = archive_half(broker)
    local = [batch for batch in BEFORE if end_of([batch]) > border]
    end(broker)
    archive.store.delete(archive.keys())
    broker.start()
    with broker.client(TOPIC) as client:
        client.produce(AFTER)
        (line,) = eventually(lambda: broker.warnings("copying has stopped"), timeout_s=WAIT_S)
        assert f"base_offset={border}" in line
        assert "records between are missing" in line
        # What is missing is missing, and not deleted: it may come back.
        assert client.offset_at(EARLIEST) == 0
        assert client.read(border, end_of(AFTER)) == local + AFTER
        assert archive.segments(TOPIC) == ()
        # What the runbook of `copying has stopped` says about a gap: the records are given up.
        client.delete_records(border)
        broker.wait_until_archived(client)
        assert archive.segments(TOPIC)[0].base_offset == border
        assert client.read(border, end_of(AFTER)) == local + AFTER
