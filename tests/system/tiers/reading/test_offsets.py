"""Where things begin and end, and what lies at a time: answers over both tiers and their border.

    "half"      [ remote ][ remote ][ remote ][ local, active ]
    "overlap"   [ remote ][ remote ][ remote, local ][ remote, local ][ local, active ]
    "jumbled"   as half, timestamps in no order at all

Nothing is written after the set-up and the active segments are not rolled, so nothing moves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, TopicPartition

from strandline.broker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from strandline.storage.records.batch.batch import read_header
from strandline.storage.records.batch.record import Record, iter_records
from strandline.storage.records.compression import Codec
from tests.conftest import make_bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.ministack import ServerProcess
from tests.support.wire import WireClient
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import (
    BASE_TIMESTAMP_MS,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    LogClient,
    end_of,
    make_batches,
    timestamp_of,
)
from tests.system.tiers.tiered_broker import FREE_LOCALLY, SEGMENT_BYTES, TIERED, TieredBroker

pytestmark = [pytest.mark.slow, pytest.mark.s3]

NOTHING_FOUND = -1
OFFSET_OUT_OF_RANGE = 1
REQUEST_TIMED_OUT = 7
JUMBLED_SPAN_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A topic at rest: [0, local_start) is read from the archive, [0, remote_end) is there."""

    client: LogClient
    batches: list[bytes]
    local_start: int
    remote_end: int

    @property
    def end(self) -> int:
        return end_of(self.batches)

    def records(self) -> list[Record]:
        return [r for batch in self.batches for r in iter_records(batch, read_header(batch))]


@pytest.fixture(scope="module")
def broker(
    ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TieredBroker]:
    bucket = make_bucket(ministack.endpoint_url)
    with TieredBroker(tmp_path_factory.mktemp("offsets"), bucket) as running:
        yield running


def jumbled(offset: int) -> int:
    return BASE_TIMESTAMP_MS + random.Random(offset).randrange(JUMBLED_SPAN_MS)


@pytest.fixture(scope="module")
def logs(broker: TieredBroker) -> Mapping[str, Log]:
    overlapping = {"local.retention.bytes": str(5 * SEGMENT_BYTES // 2)}
    size = 7 * SEGMENT_BYTES // 2
    shapes: dict[str, tuple[Mapping[str, str], list[bytes]]] = {
        "half": (FREE_LOCALLY, make_batches(size_bytes=size, record_count=7, codec=Codec.LZ4)),
        "overlap": (overlapping, make_batches(size_bytes=size + SEGMENT_BYTES)),
        "jumbled": (
            FREE_LOCALLY,
            make_batches(size_bytes=size, record_count=9, codec=Codec.ZSTD, timestamp=jumbled),
        ),
    }
    made = {}
    for topic, (config, batches) in shapes.items():
        client = broker.client(topic)
        client.create_topic({**TIERED, **config})
        client.produce(batches)
        remote_end = broker.wait_until_archived(client)
        files_kept = 3 if topic == "overlap" else 1
        made[topic] = Log(
            client=client,
            batches=batches,
            local_start=broker.wait_until_freed(client, files_kept=files_kept),
            remote_end=remote_end,
        )
    return made


def test_earliest_is_the_log_start_and_latest_the_end_wherever_they_lie(
    logs: Mapping[str, Log],
) -> None:
    for log in logs.values():
        assert log.client.offset_at(EARLIEST) == 0
        assert log.client.offset_at(LATEST) == log.end


def test_the_tiers_tell_where_they_begin_and_end(logs: Mapping[str, Log]) -> None:
    half, overlap = logs["half"], logs["overlap"]
    assert 0 < half.local_start == half.remote_end < half.end
    assert 0 < overlap.local_start < overlap.remote_end < overlap.end
    for log in logs.values():
        assert log.client.offset_at(EARLIEST_LOCAL) == log.local_start
        assert log.client.offset_at(LATEST_TIERED) == log.remote_end - 1
        assert log.client.offset_at(EARLIEST_PENDING_UPLOAD) == log.remote_end


@pytest.mark.parametrize("version", [1, 2, 4, 5])
def test_the_description_of_log_folders_tells_the_size_of_each_tier(
    broker: TieredBroker, logs: Mapping[str, Log], version: int
) -> None:
    request = DescribeLogDirsRequest(topics=None)
    with WireClient(broker.port) as client:
        (folder,) = client.ask(request, DescribeLogDirsResponse, version).results
    sizes = {
        topic.name: (partition.partition_size, partition.remote_size)
        for topic in folder.topics
        for partition in topic.partitions
    }
    for name, log in logs.items():
        local, remote = (
            sum(len(b) for b in log.batches if read_header(b).base_offset in range(*extent))
            for extent in ((log.local_start, log.end), (0, log.remote_end))
        )
        # Before version 2 there is no place for what Kafka does not know.
        assert sizes[name] == (local, remote if version >= 2 else -1)


@pytest.mark.parametrize("topic", ["half", "overlap"])
def test_a_lookup_by_time_finds_the_record_in_either_tier_and_at_their_border(
    logs: Mapping[str, Log], topic: str
) -> None:
    log = logs[topic]
    borders = (log.local_start, log.remote_end, log.end)
    near_borders = {offset + step for offset in borders for step in (-2, -1, 0, 1)}
    inside = {0, 1, log.local_start // 2, (log.remote_end + log.end) // 2}
    for offset in sorted(o for o in near_borders | inside if 0 <= o < log.end):
        at = log.client.list_offset(timestamp_of(offset))
        assert (at.offset, at.timestamp_ms) == (offset, timestamp_of(offset))
        # Between two records it is the later one.
        between = log.client.list_offset(timestamp_of(offset) - 3)
        assert (between.offset, between.timestamp_ms) == (offset, timestamp_of(offset))
    assert log.client.offset_at(0) == 0
    assert log.client.offset_at(timestamp_of(log.end)) == NOTHING_FOUND


def test_a_lookup_by_time_agrees_with_a_scan_when_timestamps_are_in_no_order(
    logs: Mapping[str, Log],
) -> None:
    log = logs["jumbled"]
    records = log.records()
    chance = random.Random(5)
    times = [BASE_TIMESTAMP_MS + chance.randrange(JUMBLED_SPAN_MS + 50) for _ in range(40)]
    # The highest of all cold records leads over the border, if a local one is higher.
    times.append(max(r.timestamp_ms for r in records if r.offset < log.local_start) + 1)
    times.append(max(r.timestamp_ms for r in records))
    for time_ms in times:
        first = next((r.offset for r in records if r.timestamp_ms >= time_ms), NOTHING_FOUND)
        assert log.client.offset_at(time_ms) == first, time_ms


def test_the_record_with_the_highest_timestamp_is_found_in_either_tier(
    logs: Mapping[str, Log],
) -> None:
    for log in logs.values():
        records = log.records()
        newest = max(records, key=lambda record: (record.timestamp_ms, -record.offset))
        found = log.client.list_offset(MAX_TIMESTAMP)
        assert (found.offset, found.timestamp_ms) == (newest.offset, newest.timestamp_ms)


@pytest.mark.parametrize("topic", ["half", "overlap", "jumbled"])
@pytest.mark.parametrize("bytes_max", [1, 100_000, 50_000_000])
def test_reading_on_over_the_border_of_the_tiers_gives_every_batch_once(
    logs: Mapping[str, Log], topic: str, bytes_max: int
) -> None:
    log = logs[topic]
    if bytes_max == 1:
        # One batch per answer is slow, so only the neighbourhood of the border.
        near = [b for b in log.batches if abs(read_header(b).base_offset - log.local_start) < 60]
        start, end = read_header(near[0]).base_offset, end_of(near)
        assert log.client.read(start, end, bytes_max=bytes_max) == near
    else:
        assert log.client.read(0, log.end, bytes_max=bytes_max) == log.batches


def test_an_ordinary_consumer_reads_over_the_border_from_anywhere(
    broker: TieredBroker, logs: Mapping[str, Log]
) -> None:
    log = logs["half"]
    for start in (0, log.local_start - 5):
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
        consumer.assign([TopicPartition("half", 0, start)])
        expected = [(r.offset, r.key, r.value) for r in log.records() if r.offset >= start]
        got: list[tuple[int, bytes | None, bytes | None]] = []
        for _ in range(200):
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, message.error()
                got.append((message.offset(), message.key(), message.value()))
            if len(got) >= len(expected):
                break
        consumer.close()
        assert got == expected


def test_an_offset_behind_the_end_is_out_of_range_and_never_a_cold_read(
    logs: Mapping[str, Log],
) -> None:
    log = logs["half"]
    assert log.client.fetch(log.end + 1).error_code == OFFSET_OUT_OF_RANGE
    at_end = log.client.fetch(log.end, wait_ms=0)
    assert (at_end.error_code, at_end.records) == (0, b"")
    assert (at_end.log_start_offset, at_end.high_watermark) == (0, log.end)


def test_a_lookup_by_time_waits_no_longer_than_its_client(
    make_broker: MakeBroker, fault_proxy: FaultProxy
) -> None:
    """ListOffsets 10 says how long that is; the broker would wait for ten minutes."""
    patience = {"remote.list.offsets.request.timeout.ms": "600000"}
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url, settings=patience)
    broker.start()
    with broker.client("far") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY}, partitions=2)
        batches = make_batches(size_bytes=7 * SEGMENT_BYTES // 2)
        client.produce(batches)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client, files_kept=1)
    # Nothing of the archive is in memory any more.
    broker.stop()
    broker.start()
    fault_proxy.add(
        Rule(action=Action.HANG, method="GET", path=r"\.(log|meta)", times=-1, delay_s=6)
    )
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name="far",
                partitions=[
                    ListOffsetsPartition(partition_index=0, timestamp=timestamp_of(3)),
                    ListOffsetsPartition(partition_index=1, timestamp=LATEST),
                ],
            )
        ],
        timeout_ms=300,
    )
    with WireClient(broker.port) as asking:
        (topic,) = asking.ask(request, ListOffsetsResponse, 10).topics
        assert [p.error_code for p in topic.partitions] == [REQUEST_TIMED_OUT, 0]
    fault_proxy.clear()

    def is_found() -> bool:
        with broker.client("far") as client:
            return client.list_offset(timestamp_of(3)).offset == 3

    eventually(is_found)
